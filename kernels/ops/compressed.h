// Attention to compressed entries: what it is made of beside the products and the attention itself. Fp32 rows; the
// rules of kernels/ops/rows.h (16 lanes, tree, flushed denormals, NaN, threads) hold here too.
// Source: Hugging Face transformers 5.17, models/deepseek_v4.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"

namespace ft {

// Rotates the LAST 2 * half dimensions of each row in neighbouring pairs (a, b), pair j by cos[j] and sin[j], in place:
// (a * cos - b * sin, b * cos + a * sin), every product rounded. `inverse` takes -sin for sin.
struct RotatePairsArgs {
  float* x = nullptr;  // (rows, dim) without gaps
  int64_t rows = 0;
  int64_t dim = 0;
  const float* cos = nullptr;  // (half) of the row's position
  const float* sin = nullptr;
  int64_t half = 0;
  bool inverse = false;
};
using RotatePairsFn = void (*)(const RotatePairsArgs&);

// One entry from the tokens of its windows, per channel: l[s] = logit[s] + bias[s]; m the largest; e = exp(l[s] - m);
// sum = sum + e and out = fma(e, value[s], out), both in order of s from +0; out = out / sum.
struct CompressArgs {
  const float* const* value = nullptr;  // (slots) rows of cols
  const float* const* logit = nullptr;
  const float* const* bias = nullptr;
  int64_t slots = 0;  // 1 or more
  int64_t cols = 0;
  float* out = nullptr;  // (cols)
};
using CompressFn = void (*)(const CompressArgs&);

// How well entries fit a token: dot[h] the sum over lanes of fma(q[h][i], k[i], lane); d = dot[h] < 0 ? +0 : dot[h];
// score = fma(weight[h], d, score) in order of h from +0.
struct IndexScoresArgs {
  const float* q = nullptr;       // (heads, dim)
  const float* weight = nullptr;  // (heads)
  int64_t heads = 0;
  int64_t dim = 0;
  const bf16* keys = nullptr;  // (count, dim) without gaps
  int64_t count = 0;
  float* scores = nullptr;  // (count)
};
using IndexScoresFn = void (*)(const IndexScoresArgs&);

// A router whose scores do not compete: p[i] = sqrt(max(l, 0) + log1p(exp(-|l|))), log1p of kernels/ops/exp.h. Chosen
// are the k largest p[i] + bias[i], largest first, ties to the lower index, NaN last; or the ids that are given.
// weights[s] = (p[ids[s]] / (sum of the k p in order from +0 + kRouterSumFloor)) * scale.
// REQUIRES 0 <= k <= min(experts, kMaxTopK), experts <= kMaxRoutedExperts.
inline constexpr float kRouterSumFloor = 1e-20f;
struct RouterScoresArgs {
  const float* logits = nullptr;  // (experts)
  int64_t experts = 0;
  int64_t k = 0;
  const float* bias = nullptr;     // (experts) or null
  const int32_t* given = nullptr;  // (k) ids within 0 .. experts - 1, maybe one twice; or null
  float scale = 1;
  float* scratch = nullptr;  // (experts); p on return
  int32_t* ids = nullptr;    // (k)
  float* weights = nullptr;  // (k)
};
using RouterScoresFn = void (*)(const RouterScoresArgs&);

}  // namespace ft
