// Bodies of attention to compressed entries (kernels/ops/compressed.h). Include after a vector vocabulary.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/for_lanes.inc.h"
#include "kernels/cpu/log1p.inc.h"
#include "kernels/ops/compressed.h"
#include "kernels/ops/rows.h"

namespace ft::FT_ISA_NAMESPACE {

FT_KERNEL_BODY void rotate_pairs_body(const RotatePairsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    float* x = args.x + (row + 1) * args.dim - 2 * args.half;
    for (int64_t j = 0; j < args.half; ++j) {
      const float a = x[2 * j], b = x[2 * j + 1], sin = args.inverse ? -args.sin[j] : args.sin[j];
      x[2 * j] = a * args.cos[j] - b * sin;
      x[2 * j + 1] = b * args.cos[j] + a * sin;
    }
  }
}

// load_lanes(row) loads the channels at work of a row.
template <typename Load>
static inline F32x16 compress_lanes(const CompressArgs& args, Load load_lanes) {
  const auto logit = [&](int64_t s) { return add(load_lanes(args.logit[s]), load_lanes(args.bias[s])); };
  F32x16 largest = logit(0), sum = zero(), out = zero();
  for (int64_t s = 1; s < args.slots; ++s) largest = max(logit(s), largest);
  for (int64_t s = 0; s < args.slots; ++s) {
    const F32x16 e = exp(sub(logit(s), largest));
    sum = add(sum, e);
    out = fma(e, load_lanes(args.value[s]), out);
  }
  return div(out, sum);
}

FT_KERNEL_BODY void compress_body(const CompressArgs& args) {
  for_lanes(
      args.cols,
      [&](int64_t i) { store(args.out + i, compress_lanes(args, [&](const float* row) { return load(row + i); })); },
      [&](int64_t i, int n) {
        store_n(args.out + i, compress_lanes(args, [&](const float* row) { return load_n(row + i, n); }), n);
      });
}

FT_KERNEL_BODY void index_scores_body(const IndexScoresArgs& args) {
  for (int64_t entry = 0; entry < args.count; ++entry) {
    const bf16* key = args.keys + entry * args.dim;
    float score = 0.0f;
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* q = args.q + h * args.dim;
      F32x16 lanes = zero();
      for_lanes(
          args.dim, [&](int64_t i) { lanes = fma(load(q + i), load_bf16(key + i), lanes); },
          [&](int64_t i, int n) { lanes = fma(load_n(q + i, n), load_bf16_n(key + i, n), lanes); });
      const float dot = tree_sum(lanes);
      score = __builtin_fmaf(args.weight[h], dot < 0.0f ? 0.0f : dot, score);
    }
    args.scores[entry] = score;
  }
}

// sqrt(softplus(logits))
static inline void score_experts(const RouterScoresArgs& args) {
  const auto softplus = [](F32x16 l) {
    const F32x16 minus_size = bits_to_float(or_words(float_to_bits(l), broadcast_word(0x80000000u)));
    return add(max(zero(), l), log1p(exp(minus_size)));  // max passes NaN on
  };
  for_lanes(
      args.experts, [&](int64_t i) { store(args.scratch + i, softplus(load(args.logits + i))); },
      [&](int64_t i, int n) { store_n(args.scratch + i, softplus(load_n(args.logits + i, n)), n); });
  for (int64_t i = 0; i < args.experts; ++i) args.scratch[i] = __builtin_sqrtf(args.scratch[i]);
}

// One pass with the best so far kept sorted: what is equal and comes later goes behind.
static inline void choose_experts(const RouterScoresArgs& args) {
  float best[kMaxTopK];
  int64_t kept = 0;
  for (int64_t i = 0; i < args.experts && args.k > 0; ++i) {
    float c = args.bias == nullptr ? args.scratch[i] : args.scratch[i] + args.bias[i];
    c = c == c ? c : -__builtin_inff();
    if (kept == args.k && !(c > best[kept - 1])) continue;
    int64_t s = kept < args.k ? kept++ : kept - 1;
    for (; s > 0 && c > best[s - 1]; --s) {
      best[s] = best[s - 1];
      args.ids[s] = args.ids[s - 1];
    }
    best[s] = c;
    args.ids[s] = static_cast<int32_t>(i);
  }
}

FT_KERNEL_BODY void router_scores_body(const RouterScoresArgs& args) {
  score_experts(args);
  if (args.given == nullptr) {
    choose_experts(args);
  } else {
    for (int64_t s = 0; s < args.k; ++s) args.ids[s] = args.given[s];
  }
  float total = 0.0f;
  for (int64_t s = 0; s < args.k; ++s) total += args.weights[s] = args.scratch[args.ids[s]];
  total += kRouterSumFloor;
  for (int64_t s = 0; s < args.k; ++s) args.weights[s] = args.weights[s] / total * args.scale;
}

void rotate_pairs(const RotatePairsArgs& args) {
  const FlushScope flush;
  rotate_pairs_body(args);
}
void compress(const CompressArgs& args) {
  const FlushScope flush;
  compress_body(args);
}
void index_scores(const IndexScoresArgs& args) {
  const FlushScope flush;
  index_scores_body(args);
}
void router_scores(const RouterScoresArgs& args) {
  const FlushScope flush;
  router_scores_body(args);
}

}  // namespace ft::FT_ISA_NAMESPACE
