// The query heads of one token that read one key/value head (one head, or a group of grouped-query attention), against
// the cached keys and values of its sequence.
//
// Keys and values are bf16 rows. The visible positions are walked in chunks of kAttentionChunk that start at multiples
// of it, so arithmetic depends on positions only: not on threads, batch, or how many heads are given together.
// Per head, from m = -inf, sum = +0, out = +0:
//   lane[l] = +0, l < 16; for each block of 32 dimensions b, in order, with d = 32 b + 2 l:
//     lane[l] = fma(q[d+1], k[t][d+1], lane[l]); lane[l] = fma(q[d], k[t][d], lane[l])      (as vdpbf16ps)
//   score[t] = tree(lane) * scale                                    (the tree of kernels/ops/rows.h)
//   per chunk: m' = max(m, largest score); c = exp(m - m'); e[t] = exp(score[t] - m'); m = m'
//     sum = fma(sum, c, s), s = the sum of e over lanes t mod 16, as in kernels/ops/rows.h
//     out[d] = out[d] * c, then out[d] = fma(e[t], v[t][d], out[d]) in order of t
//   at the end out[d] = out[d] / sum; with no visible position out is +0
// exp is kernels/ops/exp.h. Dimensions past head_dim, up to whole blocks, count as +0. Every fp32 operation flushes
// denormal inputs and results; the kernel sets that mode itself. A score that is NaN or +inf, or a first chunk without
// a score above -inf, makes the whole head NaN. NaN matches NaN, its sign and payload are not promised.
//
// Positions outside [begin, length) are never read. No allocation; the stack use is below 100 KiB. Any thread may call.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"

namespace ft {

inline constexpr int64_t kAttentionChunk = 64;
inline constexpr int64_t kMaxHeadDim = 512;

struct AttentionArgs {
  const float* q = nullptr;  // (heads, head_dim); values that the caller rounded to bf16: lower bits are ignored
  const bf16* k = nullptr;   // row t at k + t * kv_stride
  const bf16* v = nullptr;
  int64_t kv_stride = 0;  // elements between positions
  int64_t begin = 0;      // first visible position (0, or the window's start)
  int64_t length = 0;     // visible positions are [begin, length)
  int64_t head_dim = 0;   // 1 .. kMaxHeadDim
  float scale = 0;
  float* out = nullptr;  // (heads, head_dim); may be q
  int64_t heads = 1;     // query heads of this key/value head: given together they share one walk over the cache
};
using AttentionFn = void (*)(const AttentionArgs&);

}  // namespace ft
