// Body of the router (kernels/ops/rows.h, RouterTopKArgs). Include after a vector vocabulary.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/flush.inc.h"
#include "kernels/ops/rows.h"

namespace ft::FT_ISA_NAMESPACE {

// Which operand wins against a NaN does not matter: with a NaN among the logits every p is NaN whatever is subtracted.
static inline float largest_logit(const float* logits, int64_t experts) {
  F32x16 lanes = broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + 16 <= experts; i += 16) lanes = max(lanes, load(logits + i));
  float largest = tree_max(lanes);
  for (; i < experts; ++i) largest = logits[i] > largest ? logits[i] : largest;
  return largest;
}

// p = softmax(logits)
static inline void softmax(const float* logits, float* p, int64_t experts) {
  const F32x16 largest = broadcast(largest_logit(logits, experts));
  F32x16 sums = zero();
  int64_t i = 0;
  for (; i + 16 <= experts; i += 16) {
    const F32x16 e = exp(sub(load(logits + i), largest));
    store(p + i, e);
    sums = add(sums, e);
  }
  if (i < experts) {
    const int rest = static_cast<int>(experts - i);
    store_n(p + i, exp(sub(load_n(logits + i, rest), largest)), rest);
    sums = add(sums, load_n(p + i, rest));
  }
  const F32x16 sum = broadcast(tree_sum(sums));
  for (i = 0; i + 16 <= experts; i += 16) store(p + i, div(load(p + i), sum));
  if (i < experts) {
    const int rest = static_cast<int>(experts - i);
    store_n(p + i, div(load_n(p + i, rest), sum), rest);
  }
}

// One pass with the best so far kept sorted: an equal p that comes later goes behind. NaN, which is all or nothing,
// compares false and fills the list in order.
static inline void select_top(const RouterTopKArgs& args) {
  int64_t kept = 0;
  for (int64_t i = 0; i < args.experts; ++i) {
    const float p = args.scratch[i];
    if (kept == args.k && !(p > args.weights[kept - 1])) continue;
    int64_t s = kept < args.k ? kept++ : kept - 1;
    for (; s > 0 && p > args.weights[s - 1]; --s) {
      args.weights[s] = args.weights[s - 1];
      args.ids[s] = args.ids[s - 1];
    }
    args.weights[s] = p;
    args.ids[s] = static_cast<int32_t>(i);
  }
}

FT_KERNEL_BODY void router_top_k_body(const RouterTopKArgs& args) {
  if (args.experts == 0) return;
  softmax(args.logits, args.scratch, args.experts);
  if (args.k == 0) return;
  select_top(args);
  if (args.renormalize) {
    float total = 0.0f;
    for (int64_t s = 0; s < args.k; ++s) total += args.weights[s];
    for (int64_t s = 0; s < args.k; ++s) args.weights[s] /= total;
  }
  if (args.expert_scale == nullptr) return;
  for (int64_t s = 0; s < args.k; ++s) args.weights[s] *= args.expert_scale[args.ids[s]];
}

void router_top_k(const RouterTopKArgs& args) {
  const FlushScope flush;
  router_top_k_body(args);
}

}  // namespace ft::FT_ISA_NAMESPACE
