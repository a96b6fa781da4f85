// Checked against: STREAM's definitions written as loops here, bit for bit, for every variant in the registry that this
// CPU runs; lengths around every vector and stream boundary; what lies outside the arrays must not change.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/host/isa.h"
#include "kernels/registry.h"

namespace {

constexpr int64_t kPadding = 8;  // doubles before and after, so that the array stays aligned to 64 bytes
constexpr double kCanary = -12345.0;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

class Doubles {
 public:
  Doubles(int64_t count, uint64_t seed)
      : count_(count),
        total_((count + 2 * kPadding + 7) / 8 * 8),
        memory_(static_cast<double*>(std::aligned_alloc(64, static_cast<size_t>(total_) * 8))) {
    for (int64_t i = 0; i < total_; ++i) memory_.get()[i] = kCanary;
    ft::Random random(seed);
    for (int64_t i = 0; i < count; ++i) data()[i] = random.normal();
  }
  double* data() { return memory_.get() + kPadding; }
  std::vector<double> values() { return {data(), data() + count_}; }
  bool intact() {
    for (int64_t i = 0; i < kPadding; ++i) {
      if (memory_.get()[i] != kCanary) return false;
    }
    for (int64_t i = kPadding + count_; i < total_; ++i) {
      if (memory_.get()[i] != kCanary) return false;
    }
    return true;
  }

 private:
  int64_t count_;
  int64_t total_;
  std::unique_ptr<double, FreeMemory> memory_;
};

struct Arrays {
  std::vector<double> a, b, c;
};

Arrays expected(ft::OpId op, Arrays in, double s) {
  for (size_t i = 0; i < in.a.size(); ++i) {
    switch (op) {
      case ft::OpId::kStreamCopy:
        in.c[i] = in.a[i];
        break;
      case ft::OpId::kStreamScale:
        in.b[i] = s * in.c[i];
        break;
      case ft::OpId::kStreamAdd:
        in.c[i] = in.a[i] + in.b[i];
        break;
      default:
        in.a[i] = in.b[i] + s * in.c[i];
    }
  }
  return in;
}

void check_stream(ft::OpId op, ft::StreamFn fn, int64_t count) {
  Doubles a(count, 1);
  Doubles b(count, 2);
  Doubles c(count, 3);
  const Arrays want = expected(op, {a.values(), b.values(), c.values()}, 1.7);
  fn({a.data(), b.data(), c.data(), count, 1.7});
  CHECK(a.values() == want.a);
  CHECK(b.values() == want.b);
  CHECK(c.values() == want.c);
  CHECK(a.intact());
  CHECK(b.intact());
  CHECK(c.intact());
}

void check_read(ft::MemReadFn fn, int64_t lines) {
  Doubles words(lines * 8, 4);  // what lies around must not enter the checksum
  uint64_t want = 0;
  for (int64_t i = 0; i < lines * 8; ++i) want ^= std::bit_cast<uint64_t>(words.data()[i]);
  ft::MemReadArgs args{reinterpret_cast<const std::byte*>(words.data()), lines * 64, 99};
  fn(args);
  CHECK(args.checksum == want);
}

}  // namespace

TEST_CASE("every variant of the memory kernels computes what STREAM says") {
  const ft::OpId ops[] = {ft::OpId::kStreamCopy, ft::OpId::kStreamScale, ft::OpId::kStreamAdd, ft::OpId::kStreamTriad,
                          ft::OpId::kMemRead};
  for (const ft::OpId op : ops) {
    int references = 0;
    int run = 0;
    for (const ft::KernelDesc& kernel : ft::kernel_registry()) {
      if (kernel.op != op) continue;
      if (kernel.isa == ft::Isa::kScalar) ++references;
      if (kernel.isa > ft::detect_isa()) {
        MESSAGE("skipped, this CPU lacks it: " << kernel.name);
        continue;
      }
      ++run;
      CAPTURE(kernel.name);
      // 0 to 3 lines and every tail, then around the read kernel's steps: 4 streams of 2 lines.
      std::vector<int64_t> counts;
      for (int64_t i = 0; i <= 33; ++i) counts.push_back(i);
      for (const int64_t around : {64, 128, 1024, 8192}) {
        for (const int64_t d : {-1, 0, 1}) counts.push_back(around + d);
      }
      for (const int64_t count : counts) {
        CAPTURE(count);
        if (op == ft::OpId::kMemRead) {
          check_read(std::get<ft::MemReadFn>(kernel.fn), count);
        } else {
          check_stream(op, std::get<ft::StreamFn>(kernel.fn), count);
        }
      }
    }
    CHECK(references == 1);
    CHECK(run >= 1);
  }
}
