// Checked against: brute force over neighbours for bf16 rounding, the formulas of the OCP specifications (in double,
// with ldexp) for every code of E2M1, E4M3 and E8M0, and integer counters for the random numbers.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#include "kernels/base/bf16.h"
#include "kernels/base/fp_codes.h"
#include "kernels/base/random.h"

namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// Nearest bf16 by distance in double, ties to the even code: tries the truncated code and the one above it.
uint16_t nearest_bf16(float value) {
  const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const auto high = static_cast<uint16_t>(low + 1);
  const auto as_double = [](uint16_t code) {
    // The code above the largest finite one stands for 2^128, as in IEEE 754's rounding rule.
    if ((code & 0x7fffu) == 0x7f80u) return std::copysign(std::ldexp(1.0, 128), (code & 0x8000u) != 0 ? -1.0 : 1.0);
    return static_cast<double>(from_bits(static_cast<uint32_t>(code) << 16));
  };
  const double to_low = std::fabs(static_cast<double>(value) - as_double(low));
  const double to_high = std::fabs(static_cast<double>(value) - as_double(high));
  if (to_low != to_high) return to_low < to_high ? low : high;
  return (low & 1u) == 0 ? low : high;
}

uint64_t count_wrong_roundings(uint32_t first_bits, uint32_t step, uint64_t count) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const float value = from_bits(first_bits + static_cast<uint32_t>(i) * step);
    if (!std::isfinite(value)) continue;
    if (ft::to_bf16(value).bits != nearest_bf16(value)) ++wrong;
  }
  return wrong;
}

}  // namespace

TEST_CASE("every bf16 code becomes the float with the same upper half, and comes back") {
  int nans = 0;
  for (uint32_t code = 0; code < 65536; ++code) {
    const ft::bf16 value{static_cast<uint16_t>(code)};
    const float wide = ft::to_float(value);
    REQUIRE(std::bit_cast<uint32_t>(wide) == code << 16);
    if (std::isnan(wide)) {
      ++nans;
      REQUIRE(std::isnan(ft::to_float(ft::to_bf16(wide))));
    } else {
      REQUIRE(ft::to_bf16(wide) == value);
      REQUIRE(std::bit_cast<uint32_t>(ft::round_to_bf16(wide)) == code << 16);
    }
  }
  CHECK(nans == 2 * 127);
}

TEST_CASE("rounding to bf16 is to the nearest, ties to even") {
  // The lower half around zero, a tie, and full, under every upper half: 65536 x 9 values.
  for (const uint32_t low : {0u, 1u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0x8002u, 0xfffeu, 0xffffu}) {
    CAPTURE(low);
    CHECK(count_wrong_roundings(low, 0x10000u, 65536) == 0);
  }
  // All lower halves under a few upper halves: smallest normal, one, odd mantissa, largest, denormal, negative.
  for (const uint32_t high : {0x0080u, 0x3f80u, 0x3f81u, 0x7f7fu, 0x0000u, 0x0001u, 0xc2c7u, 0xff7fu}) {
    CAPTURE(high);
    CHECK(count_wrong_roundings(high << 16, 1, 65536) == 0);
  }
  // A sweep of all of fp32 with a step that is odd, so that it meets every lower half.
  CHECK(count_wrong_roundings(0, 257, (uint64_t{1} << 32) / 257) == 0);
}

TEST_CASE("bf16 edges: overflow, infinity, NaN, signed zero, denormals kept") {
  CHECK(ft::to_bf16(from_bits(0x7f7fffff)).bits == 0x7f80);  // largest float rounds up to infinity
  CHECK(ft::to_bf16(from_bits(0x7f7f7fff)).bits == 0x7f7f);  // just under the tie
  CHECK(ft::to_bf16(HUGE_VALF).bits == 0x7f80);
  CHECK(ft::to_bf16(-HUGE_VALF).bits == 0xff80);
  CHECK(ft::to_bf16(-0.0f).bits == 0x8000);
  CHECK(ft::to_bf16(from_bits(0x00010000)).bits == 0x0001);
  for (const uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    CHECK(std::isnan(ft::to_float(ft::to_bf16(from_bits(nan)))));
  }
}

TEST_CASE("E2M1: all 16 codes by the formula of OCP MX 1.0") {
  for (int code = 0; code < 16; ++code) {
    const int exponent = (code >> 1) & 3;
    const int mantissa = code & 1;
    const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, exponent - 1);
    const float value = ft::decode_e2m1(static_cast<uint8_t>(code));
    CHECK(static_cast<double>(std::fabs(value)) == magnitude);
    CHECK(std::signbit(value) == (code >= 8));
  }
}

TEST_CASE("E4M3: all 256 codes by the formula of OCP OFP8") {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    const float value = ft::decode_e4m3(static_cast<uint8_t>(code));
    if (exponent == 15 && mantissa == 7) {
      CHECK(std::isnan(value));
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    CHECK(static_cast<double>(std::fabs(value)) == magnitude);
    CHECK(std::signbit(value) == (code >= 128));
    CHECK(ft::to_float(ft::to_bf16(value)) == value);  // the numerics contract: codes are exact in bf16
  }
}

TEST_CASE("E8M0: all 256 codes are powers of two, 255 is NaN") {
  for (int code = 0; code < 255; ++code) {
    CHECK(static_cast<double>(ft::decode_e8m0(static_cast<uint8_t>(code))) == std::ldexp(1.0, code - 127));
  }
  CHECK(std::isnan(ft::decode_e8m0(255)));
}

TEST_CASE("random numbers: SplitMix64's published stream, bounds, moments, and any element on its own") {
  // First outputs of the reference splitmix64.c for state 0: mix64(k * gamma) for k = 0, 1, 2.
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15u;
  CHECK(ft::mix64(0) == 0xe220a8397b1dcdafu);
  CHECK(ft::mix64(kGamma) == 0x6e789e6aa1b965f4u);
  CHECK(ft::mix64(2 * kGamma) == 0x06c45d188009454fu);
  ft::Random random(7);
  ft::Random again(7);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    const double value = random.normal();
    REQUIRE(std::isfinite(value));
    REQUIRE(value == again.normal());
    sum += value;
    squares += value * value;
  }
  CHECK(std::fabs(sum / kCount) < 0.02);  // 6 standard errors
  CHECK(std::fabs(squares / kCount - 1) < 0.03);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(random.below(10) < 10);
    const double value = random.uniform();
    REQUIRE(value >= 0);
    REQUIRE(value < 1);
  }
  CHECK(random.below(0) == 0);
}
