#include "engine/runtime/expert_pairs.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {

ExpertPairs::ExpertPairs(int experts, int top_k, int64_t max_tokens) : top_k_(top_k) {
  distinct_.reserve(static_cast<size_t>(experts));
  begin_.resize(static_cast<size_t>(experts) + 1);
  next_.resize(static_cast<size_t>(experts));
  order_.resize(static_cast<size_t>(max_tokens * top_k));
}

void ExpertPairs::group(const int32_t* ids, int64_t tokens) {
  const int64_t pairs = tokens * top_k_;
  FT_CHECK(pairs <= static_cast<int64_t>(order_.size()));
  std::fill(next_.begin(), next_.end(), 0);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (ids[pair] >= 0) ++next_[static_cast<size_t>(ids[pair])];
  }
  distinct_.clear();
  begin_[0] = 0;
  for (size_t expert = 0; expert < next_.size(); ++expert) {
    const int64_t count = next_[expert];
    if (count > 0) distinct_.push_back(static_cast<int>(expert));
    begin_[expert + 1] = begin_[expert] + count;
    next_[expert] = begin_[expert];
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (ids[pair] < 0) continue;
    order_[static_cast<size_t>(next_[static_cast<size_t>(ids[pair])]++)] = pair;
  }
}

void deal_plan_ids(const LayerPlan& plan, int64_t tokens, int top_k, int32_t* ids) {
  const size_t hits = plan.hits.size(), fetches = plan.fetches.size();
  const auto count = static_cast<int64_t>(hits + fetches + plan.cpu.size());
  const int64_t used = std::min<int64_t>(top_k, count);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t slot = 0; slot < top_k; ++slot) {
      int32_t& id = ids[token * top_k + slot];
      id = -1;
      if (slot >= used) continue;
      const auto i = static_cast<size_t>((token * used + slot) % count);
      id = i < hits             ? plan.hits[i].expert
           : i < hits + fetches ? plan.fetches[i - hits].expert
                                : plan.cpu[i - hits - fetches];
    }
  }
}

}  // namespace ft
