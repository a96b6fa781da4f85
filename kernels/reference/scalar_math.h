// The arithmetic of the reference kernels: one fp32 operation at a time, denormal inputs and results flushed to zeros
// of the same sign in software, so that the result is independent of MXCSR and of the instruction set.
//
// Tininess is detected after rounding, as x86 does: a result that rounds to 2^-126 with the exponent unbounded is
// normal. Below 2^-126 - 2^-151 it is tiny and is flushed, although the denormal grid, which is coarser there, would
// round it up to 2^-126.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/ops/exp.h"
#include "kernels/ops/glu.h"

namespace ft::reference {

inline constexpr double kSmallestNormal = 0x1p-126;
inline constexpr double kTinyBelow = 0x1p-126 - 0x1p-151;
inline constexpr int kLanes = 16;

inline float flush(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}

inline float signed_zero(float sign_of) { return std::bit_cast<float>(std::bit_cast<uint32_t>(sign_of) & 0x80000000u); }

// `rounded` is the IEEE result and `exact` the result in double, off by at most half of its own last place; `rest` is
// the sign of (true value - exact).
inline float flush_result(float rounded, double exact, double rest) {
  if (std::fabs(static_cast<double>(rounded)) != kSmallestNormal) return flush(rounded);
  const double size = std::fabs(exact);
  const double rest_of_size = exact < 0 ? -rest : rest;
  const bool tiny = size < kTinyBelow || (size == kTinyBelow && rest_of_size < 0);
  return tiny ? signed_zero(rounded) : rounded;
}

// Sums near the smallest normal are exact (every fp32 is a multiple of 2^-149), so no second look is needed.
inline float add(float a, float b) { return flush(flush(a) + flush(b)); }
inline float sub(float a, float b) { return flush(flush(a) - flush(b)); }

inline float mul(float a, float b) {
  a = flush(a);
  b = flush(b);
  return flush_result(a * b, static_cast<double>(a) * static_cast<double>(b), 0);  // 48 bits: exact in double
}

// A quotient of two 24-bit numbers that is not kTinyBelow is further from it than double's rounding.
inline float div(float a, float b) {
  a = flush(a);
  b = flush(b);
  return flush_result(a / b, static_cast<double>(a) / static_cast<double>(b), 0);
}

inline float fma(float a, float b, float c) {
  a = flush(a);
  b = flush(b);
  c = flush(c);
  const float rounded = std::fma(a, b, c);
  if (std::fabs(static_cast<double>(rounded)) != kSmallestNormal) return flush(rounded);
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double sum = product + static_cast<double>(c);
  const double c_part = sum - product;  // TwoSum (Knuth): product + c = sum + rest exactly
  const double rest = (product - (sum - c_part)) + (static_cast<double>(c) - c_part);
  return flush_result(rounded, sum, rest);
}

inline float sqrt(float x) { return std::sqrt(flush(x)); }  // never tiny

inline float max(float a, float b) { return a > b ? a : b; }  // b when either is NaN
inline float min(float a, float b) { return a < b ? a : b; }  // b when either is NaN

// The fixed tree over 16 lanes: widths 8, 4, 2, 1.
inline float tree_sum(float lanes[kLanes]) {
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = add(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

// kernels/ops/exp.h
inline float exp(float x) {
  if (std::isnan(x)) return x;
  x = x < kExpLow ? kExpLow : x;
  x = x > kExpHigh ? kExpHigh : x;
  const float n = std::nearbyint(mul(x, kLog2E));
  float r = fma(n, -kLn2High, x);
  r = fma(n, -kLn2Low, r);
  float p = kExpCoefficients[0];
  for (int i = 1; i < 8; ++i) p = fma(p, r, kExpCoefficients[i]);
  return mul(p, std::bit_cast<float>(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23));
}

// kernels/ops/glu.h
inline float glu(const Glu& how, float g, float u) {
  g = flush(g);
  u = flush(u);
  if (how.kind == GluKind::kSiluClamped || how.kind == GluKind::kOss) {
    g = min(how.limit, g);
    u = min(how.limit, max(-how.limit, u));
  }
  float minus_s = -g;
  if (how.kind == GluKind::kGeluTanh) minus_s = mul(-kGeluTwiceScale, fma(kGeluCubic, mul(mul(g, g), g), g));
  if (how.kind == GluKind::kOss) {
    minus_s = mul(-kOssAlpha, g);
    u = add(u, 1.0f);
  }
  return mul(div(g, add(1.0f, exp(minus_s))), u);
}

}  // namespace ft::reference
