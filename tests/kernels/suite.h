// The kernel suite: every variant in the registry is run against the scalar reference of its op, or counted as skipped
// with the reason. Equality is equality of bits, a NaN being equal to any NaN.
//
// To cover an op, write a file with FT_OP_CASE(kOp, name) { ... } and list it in meson.build. The body gets `variant`
// and `reference_kernel` (same op and format) and calls both; `variant` may be the reference itself, for what can be
// checked without a comparison. suite_test.cpp walks the registry and fails for an op without a case.
#pragma once

#include <doctest/doctest.h>
#include <xmmintrin.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/registry.h"
#include "tests/kernels/guarded.h"

namespace ft::test {

struct OpCase {
  OpId op{};
  const char* name = nullptr;
  void (*run)(const KernelDesc& variant, const KernelDesc& reference_kernel) = nullptr;
};
std::span<const OpCase> op_cases();
bool register_case(const OpCase& op_case);

#define FT_OP_CASE(op_id, case_name)                                                            \
  static void case_name(const ft::KernelDesc& variant, const ft::KernelDesc& reference_kernel); \
  [[maybe_unused]] static const bool case_name##_registered =                                   \
      ft::test::register_case({ft::OpId::op_id, #case_name, case_name});                        \
  static void case_name([[maybe_unused]] const ft::KernelDesc& variant,                         \
                        [[maybe_unused]] const ft::KernelDesc& reference_kernel)

// The scalar kernel of an op and format. Aborts when there is none.
const KernelDesc& reference_of(OpId op, int format);

// Calls check(fn, reference) with MXCSR as it is and in flush mode, and checks that the kernels give MXCSR back.
template <class Fn, class Check>
void in_both_flush_modes(const KernelDesc& variant, const KernelDesc& reference_kernel, Check check) {
  constexpr unsigned kFlushBits = 0x8040;
  constexpr unsigned kStickyFlags = 0x3f;
  for (const unsigned flush : {0u, kFlushBits}) {
    CAPTURE(flush);
    const unsigned saved = _mm_getcsr();
    const unsigned mode = (saved & ~kFlushBits) | flush;
    _mm_setcsr(mode);
    check(std::get<Fn>(variant.fn), std::get<Fn>(reference_kernel.fn));
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    CHECK((after & ~kStickyFlags) == (mode & ~kStickyFlags));
  }
}

// A word of two bf16: same bits, or both halves' NaN in the same place.
bool same_pair(uint32_t a, uint32_t b);

// "" when all elements are the same, else the first that differs, with its bits.
std::string difference(std::span<const float> got, std::span<const float> expected);
std::string difference_of_pairs(std::span<const uint32_t> got, std::span<const uint32_t> expected);

// Random values with an exponent in [low, high]; one in `special_in` is 0, -0, denormal, near 2^-126, inf or NaN.
struct Exponents {
  int low = -4;
  int high = 4;
  int special_in = 0;  // 0: none
};
float random_with(Random& random, const Exponents& exponents);

}  // namespace ft::test
