// One candidate's prediction: its replays through the cost model at every (context, batch), with the interval that the
// fit's refits give. Replays are shared: thread counts and mechanisms change no cache.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tuner/search.h"

namespace ft {

// What a replay depends on.
struct SlotUse {
  int64_t slots = 0;
  SplitTable fetch_of_misses;
  PromotionRate promotions = 0;
  bool start_full = false;
  int max_prefetches = 0;
  bool operator<(const SlotUse& other) const {
    return std::tie(slots, fetch_of_misses, promotions, start_full, max_prefetches) <
           std::tie(other.slots, other.fetch_of_misses, other.promotions, other.start_full, other.max_prefetches);
  }
};

// What is predicted: all that tells one candidate from another.
struct CandidateSpec {
  Strategy strategy{};
  size_t model = 0;  // index into SearchInput::models
  int threads = 1;   // of the engine: not the model's where the pool has no work
  SlotUse use;
  FetchMechanism mechanism = FetchMechanism::kSm;
};

class Predictor {
 public:
  // `input` stays valid.
  explicit Predictor(const SearchInput& input);

  int max_distinct() const { return max_distinct_; }  // experts of one layer at the largest batch
  // Per batch. The reference stays valid.
  const std::vector<ReplayResult>& replays(const SlotUse& use);
  bool has_replayed(const SlotUse& use) const { return replays_.contains(use); }
  int64_t replays_done() const { return static_cast<int64_t>(replays_.size()); }

  double score(const CandidateSpec& spec);  // the geometric mean of the rates alone
  CandidatePrediction predict(const CandidateSpec& spec);

 private:
  using Replays = std::shared_ptr<const std::vector<ReplayResult>>;
  const Replays& replays_of(const SlotUse& use);
  CostParameters cost_of(const CandidateSpec& spec, const CostParameters& fitted) const;
  std::vector<double> rates(const CostParameters& cost, const DenseCost& dense,
                            const std::vector<ReplayResult>& replays) const;

  const SearchInput& input_;
  int max_distinct_ = 0;
  std::map<SlotUse, Replays> replays_;
};

}  // namespace ft
