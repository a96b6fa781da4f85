// What the device tests share: arrays on the device with marks around them, comparisons, and one table of results.
//
// A device test is a plain program (no doctest: it is copied alone to a machine with a GPU): run_tests(argc, argv,
// list). It prints one line per group of comparisons, the first mismatch of a group with its index and both values,
// then "N passed, N failed, N skipped"; exit code 0 when nothing failed. Without a device it says so and exits 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/cuda/device.h"
#include "kernels/registry.h"
#include "tests/kernels/guarded.h"

namespace ft::device_test {

// Groups of comparisons, in the order of their first result.
class Report {
 public:
  // One comparison of a group; `difference` is empty when it holds.
  void check(const std::string& group, const std::string& difference);
  void skip(const std::string& group, const std::string& reason);
  // Prints the table and the totals; the program's exit code.
  int finish() const;
  bool failed() const;

 private:
  struct Group {
    std::string name;
    int64_t checks = 0, failures = 0;
    std::string first_failure, skipped;
  };
  Group& group_of(const std::string& name);
  std::vector<Group> groups_;
  std::map<std::string, size_t> index_;
};

struct Context {
  cuda::Stream stream;
  KernelTable cpu;  // the CPU kernels that results are compared with
  Report report;
};

struct TestList {
  std::string_view name;
  void (*run)(Context&);
};
// --bench runs `bench` instead of the tests; --scalar compares with the scalar reference kernels (slower) instead of
// this CPU's; other arguments are names of the lists to run.
int run_tests(int argc, char** argv, std::span<const TestList> tests, void (*bench)(Context&) = nullptr);

// A host vector on 64-byte boundaries, as packed rows and matrices want them.
template <class T>
class HostArray {
 public:
  explicit HostArray(int64_t count, T value = T{}) : storage_(static_cast<size_t>(count) + 64 / sizeof(T), value) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = reinterpret_cast<T*>((address + 63) / 64 * 64);
    count_ = count;
  }
  HostArray(HostArray&&) noexcept = default;
  HostArray& operator=(HostArray&&) noexcept = default;
  HostArray(const HostArray&) = delete;
  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  std::vector<T> storage_;
  T* data_ = nullptr;
  int64_t count_ = 0;
};

// Bytes on the device between two marked stretches.
class GuardedBytes {
 public:
  GuardedBytes(cuda::StreamHandle stream, int64_t bytes);
  std::byte* data() const { return buffer_.data() + kGuard; }
  void write(const void* from);
  void read(void* to) const;
  bool intact() const;

 private:
  static constexpr int64_t kGuard = 256;
  cuda::StreamHandle stream_;
  int64_t bytes_;
  cuda::DeviceBuffer buffer_;
};

inline constexpr uint8_t kPoisonByte = 0x5a;

template <class T>
class DeviceArray {
 public:
  // Every byte kPoisonByte: no kernel's result.
  DeviceArray(Context& context, int64_t count)
      : count_(count), bytes_(context.stream.handle(), count * static_cast<int64_t>(sizeof(T))) {
    const std::vector<uint8_t> poison(static_cast<size_t>(count) * sizeof(T), kPoisonByte);
    bytes_.write(poison.data());
  }
  DeviceArray(Context& context, const HostArray<T>& from) : DeviceArray(context, from.data(), from.size()) {}
  DeviceArray(Context& context, const std::vector<T>& from)
      : DeviceArray(context, from.data(), static_cast<int64_t>(from.size())) {}
  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  int64_t size() const { return count_; }
  HostArray<T> read() const {
    HostArray<T> result(count_);
    bytes_.read(result.data());
    return result;
  }
  void write(const HostArray<T>& from) { bytes_.write(from.data()); }
  bool intact() const { return bytes_.intact(); }

 private:
  DeviceArray(Context& context, const T* from, int64_t count)
      : count_(count), bytes_(context.stream.handle(), count * static_cast<int64_t>(sizeof(T))) {
    bytes_.write(from);
  }
  int64_t count_;
  GuardedBytes bytes_;
};

// A host array as a poisoned DeviceArray reads back.
template <class T>
HostArray<T> poisoned(int64_t count) {
  HostArray<T> result(count);
  std::memset(static_cast<void*>(result.data()), kPoisonByte, static_cast<size_t>(count) * sizeof(T));
  return result;
}

inline HostArray<float> random_floats(Random& random, test::Values kind, int64_t count) {
  HostArray<float> result(count);
  test::fill(random, kind, result.data(), count);
  return result;
}

// "" when all elements have the same bits (a NaN being equal to any NaN), else the first that differs.
std::string difference(const HostArray<float>& got, const HostArray<float>& expected);
std::string difference(const HostArray<int32_t>& got, const HostArray<int32_t>& expected);
std::string difference(const HostArray<uint32_t>& got, const HostArray<uint32_t>& expected);  // pairs of bf16
std::string difference(const HostArray<bf16>& got, const HostArray<bf16>& expected);

// Reads `got` back and compares; marks around it must be whole. `what` (sizes, seed) is put before a mismatch.
template <class T>
void check_same(Context& context, const std::string& group, const std::string& what, const DeviceArray<T>& got,
                const HostArray<T>& expected) {
  std::string text = difference(got.read(), expected);
  if (text.empty() && !got.intact()) text = "wrote outside the array";
  context.report.check(group, text.empty() ? text : what + ": " + text);
}

// Median seconds of a replay of what `record` puts on the context's stream, of `runs` after the first.
double replay_seconds(Context& context, int runs, const std::function<void()>& record);

}  // namespace ft::device_test
