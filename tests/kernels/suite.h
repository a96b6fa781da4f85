// The kernel suite: every variant in the registry is run against the scalar reference of its op, or counted as skipped
// with the reason. Equality is equality of bits, a NaN being equal to any NaN.
//
// To cover an op, write a file with FT_OP_CASE(kOp, name) { ... } and list it in meson.build. The body gets `variant`
// and `reference` (the same op and format) and calls both; `variant` may be the reference itself (for checks that need
// no comparison). suite_test.cpp walks the registry and fails for an op without a case.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/registry.h"

namespace ft::test {

struct OpCase {
  OpId op{};
  const char* name = nullptr;
  void (*run)(const KernelDesc& variant, const KernelDesc& reference) = nullptr;
};
std::vector<OpCase>& op_cases();
bool register_case(const OpCase& op_case);

#define FT_OP_CASE(op_id, case_name)                                                                             \
  static void case_name(const ft::KernelDesc& variant, const ft::KernelDesc& reference);                         \
  static const bool case_name##_registered = ft::test::register_case({ft::OpId::op_id, #case_name, &case_name}); \
  static void case_name([[maybe_unused]] const ft::KernelDesc& variant,                                          \
                        [[maybe_unused]] const ft::KernelDesc& reference)

// The scalar kernel of an op and format. Aborts when there is none (the registry test says so first).
const KernelDesc& reference_of(OpId op, int format);

// Calls f(variant) for each variant of `op` that this CPU can run, for tests that are not pairs with the reference.
void for_each_runnable(OpId op, const std::function<void(const KernelDesc&)>& f);

inline bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}
inline bool same_bits_bf16(uint16_t a, uint16_t b) {
  const auto is_nan = [](uint16_t x) { return (x & 0x7fffu) > 0x7f80u; };
  return a == b || (is_nan(a) && is_nan(b));
}
inline bool same_bits(uint32_t a, uint32_t b) {  // bf16 pairs
  return same_bits_bf16(static_cast<uint16_t>(a), static_cast<uint16_t>(b)) &&
         same_bits_bf16(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16));
}

// "" when all elements are equal, else the first that differs, with its bits.
template <class T>
std::string first_difference(std::span<const T> got, std::span<const T> expected) {
  if (got.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (same_bits(got[i], expected[i])) continue;
    std::ostringstream text;
    text << "element " << i << ": got " << std::hexfloat << got[i] << " (0x" << std::hex
         << std::bit_cast<uint32_t>(got[i]) << "), expected " << std::hexfloat << expected[i] << " (0x" << std::hex
         << std::bit_cast<uint32_t>(expected[i]) << ")";
    return text.str();
  }
  return "";
}

// `count` elements, 64-byte aligned but for `misalign` elements, between canary bytes. Elements start as `poison`
// bytes.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count, size_t misalign = 0)
      : count_(count), bytes_(kCanary * 2 + 64 + (count + misalign) * sizeof(T), kCanaryByte) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data()) + kCanary;
    data_ = reinterpret_cast<T*>((address + 63) / 64 * 64) + misalign;
    refill();
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return data_; }
  std::span<T> span() { return {data_, count_}; }
  std::span<const T> view() const { return {data_, count_}; }
  T& operator[](size_t i) { return data_[i]; }
  void refill() { std::memset(static_cast<void*>(data_), kPoisonByte, count_ * sizeof(T)); }
  static T poison() {
    T value;
    std::memset(static_cast<void*>(&value), kPoisonByte, sizeof value);
    return value;
  }
  bool canaries_intact() const {
    const auto* first = reinterpret_cast<const unsigned char*>(data_);
    const auto* last = reinterpret_cast<const unsigned char*>(data_ + count_);
    for (const unsigned char* p = bytes_.data(); p < first; ++p) {
      if (*p != kCanaryByte) return false;
    }
    for (const unsigned char* p = last; p < bytes_.data() + bytes_.size(); ++p) {
      if (*p != kCanaryByte) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kCanary = 256;
  static constexpr unsigned char kCanaryByte = 0xa5;
  static constexpr unsigned char kPoisonByte = 0x5a;  // 1.5e16 as fp32: no kernel result
  size_t count_;
  std::vector<unsigned char> bytes_;
  T* data_ = nullptr;
};

// What random fp32 values look like.
struct Values {
  int exponent_low = -4;
  int exponent_high = 4;  // inclusive
  int special_in = 0;     // one in so many is 0, -0, denormal, inf or NaN; 0: none
};
float random_float(Random& random, const Values& values);

}  // namespace ft::test
