// The arithmetic of the device kernels. Compiled with -ftz=true -prec-div=true -prec-sqrt=true -fmad=false these are
// the operations of kernels/reference/scalar_math.h: one rounding to nearest even each, denormal inputs and results
// flushed to zeros of their sign. Only these touch fp32 values; moves and integer steps keep bits as they are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/ops/exp.h"
#include "kernels/ops/glu.h"

namespace ft::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

namespace f32 {

__device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float div(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float sqrt(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ float max(float a, float b) { return a > b ? a : b; }  // b when either is NaN
__device__ __forceinline__ float min(float a, float b) { return a < b ? a : b; }  // likewise

// kernels/ops/exp.h. NaN passes the clamps and makes r and the result NaN (its int is 0).
__device__ __forceinline__ float exp(float x) {
  constexpr float c0 = kExpCoefficients[0], c1 = kExpCoefficients[1], c2 = kExpCoefficients[2],
                  c3 = kExpCoefficients[3], c4 = kExpCoefficients[4], c5 = kExpCoefficients[5],
                  c6 = kExpCoefficients[6], c7 = kExpCoefficients[7];
  x = x < kExpLow ? kExpLow : x;
  x = x > kExpHigh ? kExpHigh : x;
  const float n = rintf(mul(x, kLog2E));
  float r = fma(n, -kLn2High, x);
  r = fma(n, -kLn2Low, r);
  float p = fma(c0, r, c1);
  p = fma(p, r, c2);
  p = fma(p, r, c3);
  p = fma(p, r, c4);
  p = fma(p, r, c5);
  p = fma(p, r, c6);
  p = fma(p, r, c7);
  const float power = __uint_as_float(static_cast<uint32_t>(__float2int_rn(n) + 127) << 23);
  return mul(p, power);
}

// log(1 + u), 0 <= u <= 1: kernels/ops/exp.h.
__device__ __forceinline__ float log1p(float u) {
  constexpr float c0 = kLog1pCoefficients[0], c1 = kLog1pCoefficients[1], c2 = kLog1pCoefficients[2],
                  c3 = kLog1pCoefficients[3], c4 = kLog1pCoefficients[4], c5 = kLog1pCoefficients[5],
                  c6 = kLog1pCoefficients[6], c7 = kLog1pCoefficients[7];
  const float s = div(u, add(2.0f, u)), z = mul(s, s);
  float p = fma(c0, z, c1);
  p = fma(p, z, c2);
  p = fma(p, z, c3);
  p = fma(p, z, c4);
  p = fma(p, z, c5);
  p = fma(p, z, c6);
  p = fma(p, z, c7);
  return mul(mul(2.0f, s), p);
}

__device__ __forceinline__ float silu(float g) { return div(g, add(1.0f, exp(-g))); }
__device__ __forceinline__ float sigmoid(float g) { return div(1.0f, add(1.0f, exp(-g))); }

// kernels/ops/glu.h; `how` is the same for the whole grid.
__device__ __forceinline__ float glu(const Glu& how, float g, float u) {
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

// The fixed tree over 16 lanes, widths 8, 4, 2, 1: lane 0 of each half of the warp gets its half's sum. All 32 lanes
// call it.
__device__ __forceinline__ float tree_sum(float lane) {
#pragma unroll
  for (int width = 8; width >= 1; width /= 2) lane = add(lane, __shfl_down_sync(kFullWarp, lane, width, 16));
  return lane;
}

}  // namespace f32

// to_bf16 of kernels/base/bf16.h: nearest even, denormals rounded like the rest, NaN made quiet.
__device__ __forceinline__ uint32_t bf16_bits(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u >> 16) | 0x40u;
  return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

// As an activation: denormals give a zero of their sign.
__device__ __forceinline__ uint32_t activation_bits(float x) {
  const uint32_t u = __float_as_uint(x);
  return bf16_bits((u & 0x7f800000u) == 0 ? __uint_as_float(u & 0x80000000u) : x);
}

__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Word of a packed row (kernels/ops/activations.h) that holds element k, even, and k + 1.
__device__ __forceinline__ int64_t activation_word(int64_t k) { return k / 256 * 128 + k % 16 / 2 * 16 + k % 256 / 16; }

}  // namespace ft::cuda
