// The query heads of one token that read one key/value head (one head, or a group of grouped-query attention), against
// the cached keys and values of its sequence.
//
// Keys and values are bf16 rows. The context is cut into splits of kAttentionSplit positions that start at multiples of
// it, so arithmetic depends on positions only: not on threads, batch, or how many heads are given together. A split can
// be computed anywhere; how splits are joined is a fixed tree, so a device may join any aligned 2, 4, 8 or 16 of them
// where they were computed. Per head, over the visible positions t of a split:
//   lane[l] = +0, l < 16; for each block of 32 dimensions b, in order, with d = 32 b + 2 l:
//     lane[l] = fma(q[d+1], k[t][d+1], lane[l]); lane[l] = fma(q[d], k[t][d], lane[l])      (as vdpbf16ps)
//   score[t] = tree(lane) * scale                                    (the tree of kernels/ops/rows.h)
//   m = the largest score; e[t] = exp(score[t] - m)
//   sum = the sum of e over lanes t mod 16, as in kernels/ops/rows.h
//   out[d] = +0, then out[d] = fma(e[t], v[t][d], out[d]) in order of t
// join(a, b), a before b: m = max(a.m, b.m); wa = exp(a.m - m); wb = exp(b.m - m);
//   sum = fma(b.sum, wb, a.sum * wa); out[d] = fma(b.out[d], wb, a.out[d] * wa)
// A group is kAttentionGroup splits that start at a multiple of it. In a group: the binary tree over the split's place,
// neighbours 2i and 2i + 1 first; where one side has no visible position the other is the result as it is. Groups are
// joined in order: r = the first one, then r = join(r, group). A head with a sink ends with r = join(r, s), s being a
// part with m = sink, sum = 1 and out = +0: a logit that takes its share of the softmax and has no value. At the end
// out[d] = out[d] / sum; with no visible position out is +0.
// exp is kernels/ops/exp.h. Dimensions past head_dim, up to whole blocks, count as +0. Every fp32 operation flushes
// denormal inputs and results; the kernel sets that mode itself. A score that is NaN or +inf, or a split without a
// score above -inf, makes the whole head NaN; so does a sink that is NaN or +inf. NaN matches NaN, its sign and payload
// are not promised.
//
// Positions outside [begin, length) are never read. No allocation; the stack use is below 160 KiB. Any thread may call.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"

namespace ft {

inline constexpr int64_t kAttentionSplit = 64;  // positions
inline constexpr int64_t kAttentionGroup = 16;  // splits
inline constexpr int64_t kMaxHeadDim = 512;

struct AttentionArgs {
  const float* q = nullptr;  // (heads, head_dim); values that the caller rounded to bf16: lower bits are ignored
  const bf16* k = nullptr;   // position t at k + t * kv_stride, or where `ring` says
  const bf16* v = nullptr;
  int64_t kv_stride = 0;  // elements between positions
  int64_t begin = 0;      // first visible position (0, or the window's start)
  int64_t length = 0;     // visible positions are [begin, length)
  int64_t head_dim = 0;   // 1 .. kMaxHeadDim
  float scale = 0;
  float* out = nullptr;  // (heads, head_dim); may be q
  int64_t heads = 1;     // query heads of this key/value head: given together they share one walk over the cache
  const float* sinks = nullptr;  // (heads), or none
  // Position t is at k + (t mod ring) * kv_stride, v likewise: a multiple of kAttentionSplit that [begin, length) fits
  // in, so that a split's rows follow each other. 0: no ring.
  int64_t ring = 0;
};
using AttentionFn = void (*)(const AttentionArgs&);

}  // namespace ft
