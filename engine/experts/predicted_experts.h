// The predictions of a batch for one layer as one list: what SlotTable::prefetch takes. Shared by engine and replay.
#pragma once

#include <cstdint>
#include <span>
#include <vector>


namespace ft {

class PredictedExperts {
 public:
  explicit PredictedExperts(int experts) : seen_(static_cast<size_t>(experts), false) {
    ids_.reserve(static_cast<size_t>(experts));
  }

  // Distinct experts, every token's best first, then every token's second, and so on. at(token, rank) is an expert or,
  // trailing only, -1. Allocates nothing.
  template <class At>
  std::span<const int> merge(int64_t tokens, int ranks, At&& at) {
    for (const int id : ids_) seen_[static_cast<size_t>(id)] = false;
    ids_.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t token = 0; token < tokens; ++token) {
        const int id = at(token, rank);
        if (id < 0 || seen_[static_cast<size_t>(id)]) continue;
        seen_[static_cast<size_t>(id)] = true;
        ids_.push_back(id);
      }
    }
    return ids_;
  }

 private:
  std::vector<int> ids_;
  std::vector<bool> seen_;
};

}  // namespace ft
