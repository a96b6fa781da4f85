// Reference of attention to compressed entries: kernels/ops/compressed.h.
#include "kernels/ops/compressed.h"

#include <limits>

#include "kernels/ops/rows.h"
#include "kernels/reference/scalar_math.h"

namespace ft::reference {

void rotate_pairs(const RotatePairsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    float* x = args.x + (row + 1) * args.dim - 2 * args.half;
    for (int64_t j = 0; j < args.half; ++j) {
      const float a = x[2 * j], b = x[2 * j + 1], sin = args.inverse ? -args.sin[j] : args.sin[j];
      x[2 * j] = sub(mul(a, args.cos[j]), mul(b, sin));
      x[2 * j + 1] = add(mul(b, args.cos[j]), mul(a, sin));
    }
  }
}

void compress(const CompressArgs& args) {
  for (int64_t i = 0; i < args.cols; ++i) {
    const auto logit = [&](int64_t s) { return add(args.logit[s][i], args.bias[s][i]); };
    float largest = logit(0), sum = 0.0f, out = 0.0f;
    for (int64_t s = 1; s < args.slots; ++s) largest = max(logit(s), largest);
    for (int64_t s = 0; s < args.slots; ++s) {
      const float e = exp(sub(logit(s), largest));
      sum = add(sum, e);
      out = fma(e, args.value[s][i], out);
    }
    args.out[i] = div(out, sum);
  }
}

void index_scores(const IndexScoresArgs& args) {
  for (int64_t entry = 0; entry < args.count; ++entry) {
    const bf16* key = args.keys + entry * args.dim;
    float score = 0.0f;
    for (int64_t h = 0; h < args.heads; ++h) {
      float lanes[kLanes] = {};
      for (int64_t i = 0; i < args.dim; ++i) {
        lanes[i % kLanes] = fma(args.q[h * args.dim + i], to_float(key[i]), lanes[i % kLanes]);
      }
      const float dot = tree_sum(lanes);
      score = fma(args.weight[h], dot < 0.0f ? 0.0f : dot, score);
    }
    args.scores[entry] = score;
  }
}

void router_scores(const RouterScoresArgs& args) {
  float* p = args.scratch;
  for (int64_t i = 0; i < args.experts; ++i) {
    const float l = args.logits[i];
    p[i] = sqrt(add(max(0.0f, flush(l)), log1p(exp(-std::fabs(l)))));
  }
  bool taken[kMaxRoutedExperts] = {};
  const auto choice = [&](int64_t i) {
    const float c = args.bias == nullptr ? p[i] : add(p[i], args.bias[i]);
    return std::isnan(c) ? -std::numeric_limits<float>::infinity() : c;
  };
  float total = 0.0f;
  for (int64_t s = 0; s < args.k; ++s) {
    int64_t best = args.given == nullptr ? -1 : args.given[s];
    for (int64_t i = 0; i < args.experts && args.given == nullptr; ++i) {
      if (!taken[i] && (best < 0 || choice(i) > choice(best))) best = i;
    }
    taken[best] = true;
    args.ids[s] = static_cast<int32_t>(best);
    args.weights[s] = p[best];
    total = add(total, p[best]);
  }
  for (int64_t s = 0; s < args.k; ++s) {
    args.weights[s] = mul(div(args.weights[s], add(total, kRouterSumFloor)), args.scale);
  }
}

}  // namespace ft::reference
