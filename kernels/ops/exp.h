// The one exponential: the same bits on every device. fma, add, mul and integer steps only.
//   x clamped to [-87, 88]; n = rint(x * log2e) (nearest even); r = fma(n, -ln2_hi, x); r = fma(n, -ln2_lo, r)
//   p = Horner of degree 7 with coefficients 1/5040, 1/720, 1/120, 1/24, 1/6, 1/2, 1, 1; result p * 2^n
// 2^n is made of its exponent bits, (n + 127) << 23: on the clamped range it and the result are normal.
// Relative error below 2^-22 on the clamped range (test: against long double, over a dense sweep). NaN stays NaN.
// Scalar: reference::exp (kernels/reference/scalar_math.h). Vector: kernels/cpu/exp.inc.h.
//
// log(1 + u) for 0 <= u <= 1, by atanh: s = u / (2 + u), the division correctly rounded; z = s * s; p = Horner of
// degree 7 in z with coefficients 1/15, 1/13, ... 1/3, 1; result (2 * s) * p. Right to 2^-22, relative (test: against
// long double). Scalar: reference::log1p. Vector: kernels/cpu/log1p.inc.h.
#pragma once

namespace ft {

inline constexpr float kExpLow = -87.0f;
inline constexpr float kExpHigh = 88.0f;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693145752f;
inline constexpr float kLn2Low = 1.42860677e-6f;
inline constexpr float kExpCoefficients[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                              1.0f / 6,    0.5f,       1.0f,       1.0f};
inline constexpr float kLog1pCoefficients[8] = {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9,
                                                1.0f / 7,  1.0f / 5,  1.0f / 3,  1.0f};

}  // namespace ft
