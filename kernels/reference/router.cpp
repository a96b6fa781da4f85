// Reference of the router: kernels/ops/rows.h, RouterTopKArgs.
#include <limits>

#include "kernels/ops/rows.h"
#include "kernels/reference/scalar_math.h"

namespace ft::reference {

void router_top_k(const RouterTopKArgs& args) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < args.experts; ++i) largest = max(args.logits[i], largest);
  float lanes[kLanes] = {};
  float* p = args.scratch;
  for (int64_t i = 0; i < args.experts; ++i) {
    p[i] = exp(sub(args.logits[i], largest));
    lanes[i % kLanes] = add(lanes[i % kLanes], p[i]);
  }
  const float sum = tree_sum(lanes);
  for (int64_t i = 0; i < args.experts; ++i) p[i] = div(p[i], sum);

  // Either all p are NaN or none is. With NaN no comparison holds and the lowest ids are taken in order.
  bool taken[kMaxRoutedExperts] = {};
  float total = 0.0f;
  for (int64_t s = 0; s < args.k; ++s) {
    int64_t best = -1;
    for (int64_t i = 0; i < args.experts; ++i) {
      if (!taken[i] && (best < 0 || p[i] > p[best])) best = i;
    }
    taken[best] = true;
    args.ids[s] = static_cast<int32_t>(best);
    args.weights[s] = p[best];
    total = add(total, p[best]);
  }
  if (args.renormalize) {
    for (int64_t s = 0; s < args.k; ++s) args.weights[s] = div(args.weights[s], total);
  }
  if (args.expert_scale == nullptr) return;
  for (int64_t s = 0; s < args.k; ++s) args.weights[s] = mul(args.weights[s], args.expert_scale[args.ids[s]]);
}

}  // namespace ft::reference
