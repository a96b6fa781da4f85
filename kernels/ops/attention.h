// One query head of one token against the cached keys and values of its sequence.
//
// Keys and values are bf16 rows. The positions 0 .. length-1 (or window_begin ..) are walked in chunks of
// kAttentionChunk that start at multiples of it, so arithmetic depends on position only:
//   score[t] = (sum over d of q[d] * k[t][d], 16 lanes d mod 16, fma, fixed tree) * scale
//   per chunk: m' = max(m, max score); c = exp(m - m'); e[t] = exp(score[t] - m'); sum = fma(sum, c, sum of e in order
//   of t); out[d] = fma over t in order of (e[t], v[t][d], out[d] * c)
//   at the end out[d] = out[d] / sum.
// exp is kernels/ops/exp.h. q is fp32 values that were rounded to bf16 by the caller. Flushes denormals.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"

namespace ft {

inline constexpr int64_t kAttentionChunk = 64;

struct AttentionArgs {
  const float* q = nullptr;  // (head_dim)
  const bf16* k = nullptr;   // row t at k + t * kv_stride
  const bf16* v = nullptr;
  int64_t kv_stride = 0;  // elements between positions
  int64_t begin = 0;      // first visible position (0, or the window's start)
  int64_t length = 0;     // visible positions are [begin, length)
  int64_t head_dim = 0;   // multiple of 1; at most kMaxHeadDim
  float scale = 0;
  float* out = nullptr;  // (head_dim)
};
inline constexpr int64_t kMaxHeadDim = 512;
using AttentionFn = void (*)(const AttentionArgs&);

}  // namespace ft
