// Few replays instead of all combinations. A replay is what a prediction costs (milliseconds to tenths of a second);
// rates of thread counts and mechanisms come from the same replay for next to nothing. So
//   - every split and promotion budget of hybrid is replayed at the largest slot count alone; the kKeptPolicies that
//     each mechanism's prediction ranks first are replayed at the others, where order changes little;
//   - look-ahead is tried on what is best without it.
// Pure; a test compares with the exhaustive search.
#pragma once

#include <set>
#include <vector>

#include "tuner/predictor.h"

namespace ft {

// Bound of one search: what is beyond is left out and named in a remark. Three thread counts, two mechanisms and three
// slot counts stay inside it.
inline constexpr int kMaxReplays = 160;
inline constexpr size_t kKeptPolicies = 3;
inline constexpr size_t kOtherPolicies = 3;  // rows of one strategy with another split or promotion budget

struct Policy {
  SplitTable fetch_of_misses;
  PromotionRate promotions = 0;
  bool operator==(const Policy&) const = default;
};

// Hands out replays until kMaxReplays are done.
class ReplayBudget {
 public:
  explicit ReplayBudget(Predictor& predictor, int most = kMaxReplays) : predictor_(predictor), most_(most) {}
  // Whether `use` may be replayed: it was already, or there are replays left. false is remembered in refused().
  bool allows(const SlotUse& use);
  int64_t refused() const { return refused_; }

 private:
  Predictor& predictor_;
  int most_;
  int64_t refused_ = 0;
};

// At some number of misses that occurs, the split shares them between link and CPU or treats sizes differently.
bool is_hybrid(const SlotUse& use, const std::vector<ReplayResult>& replays);

// Every split with the promotion rates that go with it. A split that fetches at every number of misses has none or
// whole ones. One that leaves some to the CPU alone may have a fraction of one, and none only where half of a token's
// experts missing make it fetch: what a cache holds when the text turns to something else is then replaced, and how
// many misses it settles at is in the replay.
std::vector<Policy> hybrid_policies(const std::set<SplitTable>& splits, int top_k);

// Of `policies` the ones worth replaying at other slot counts: of those that are hybrid with the slots of `base`, the
// best kKeptPolicies for each mechanism, the first mechanism's best first. Empty when none is, or no replay is left.
std::vector<Policy> best_policies(Predictor& predictor, ReplayBudget& budget, const CandidateSpec& base,
                                  const std::vector<Policy>& policies, const std::vector<FetchMechanism>& mechanisms);

// Of `policies` other than the first, what a decode run would tell most about: the best of each promotion budget, then
// the next best, kOtherPolicies at most. What a promotion costs is what the model knows least.
std::vector<Policy> other_policies(Predictor& predictor, ReplayBudget& budget, const CandidateSpec& base,
                                   const std::vector<Policy>& policies, const Policy& first);

}  // namespace ft
