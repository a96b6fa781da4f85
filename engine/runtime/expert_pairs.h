// The (token, top-k slot) pairs of one MoE layer, grouped by expert: every expert sees only the tokens routed to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/experts/slot_table.h"

namespace ft {

class ExpertPairs {
 public:
  ExpertPairs(int experts, int top_k, int64_t max_tokens);

  // ids: (tokens, top_k); -1 is "no expert" and may only trail a token's slots. Counting sort, allocates nothing.
  void group(const int32_t* ids, int64_t tokens);

  std::span<const int> distinct() const { return distinct_; }  // ascending
  // Pair indexes token * top_k + slot of one expert, ascending.
  std::span<const int64_t> of(int expert) const {
    const auto begin = begin_[static_cast<size_t>(expert)];
    return {order_.data() + begin, static_cast<size_t>(begin_[static_cast<size_t>(expert) + 1] - begin)};
  }
  int64_t begin(int expert) const { return begin_[static_cast<size_t>(expert)]; }
  // All pairs in order of experts: (count()).
  std::span<const int64_t> order() const { return {order_.data(), static_cast<size_t>(begin_.back())}; }

 private:
  int top_k_ = 0;
  std::vector<int> distinct_;
  std::vector<int64_t> begin_;  // (experts + 1)
  std::vector<int64_t> next_;   // (experts)
  std::vector<int64_t> order_;  // (max_tokens * top_k)
};

// The ids of a plan from outside: its experts in turn over the (token, slot) pairs, so that every expert gets its share
// of the rows that real routing would send, tokens * top_k in all. With fewer experts than top_k every token goes to
// each, and the slots that are left hold -1. ids: (tokens, top_k).
void deal_plan_ids(const LayerPlan& plan, int64_t tokens, int top_k, int32_t* ids);

}  // namespace ft
