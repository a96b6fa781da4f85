#include "tuner/search_prune.h"

#include <algorithm>
#include <set>

#include "tuner/search_space.h"

namespace ft {

bool ReplayBudget::allows(const SlotUse& use) {
  if (predictor_.has_replayed(use) || predictor_.replays_done() < most_) return true;
  ++refused_;
  return false;
}

bool is_hybrid(const SlotUse& use, const std::vector<ReplayResult>& replays) {
  bool fetches = false, computes = false;
  for (const ReplayResult& result : replays) {
    for (size_t m = 1; m < result.misses_histogram.size(); ++m) {
      if (result.misses_histogram[m] == 0) continue;
      fetches = fetches || use.fetch_of_misses[m] > 0;
      computes = computes || use.fetch_of_misses[m] < static_cast<int>(m);
    }
  }
  return fetches && computes;
}

std::vector<Policy> hybrid_policies(const std::set<SplitTable>& splits, int top_k) {
  std::vector<Policy> policies;
  for (const SplitTable& table : splits) {
    const auto half = table.begin() + std::clamp<std::ptrdiff_t>(top_k / 2, 1, std::ssize(table) - 1);
    const bool learns = *std::max_element(table.begin() + 1, half + 1) > 0;
    const bool always = std::find(table.begin() + 1, table.end(), 0) == table.end();
    if (learns) policies.push_back({table, 0});
    for (const PromotionRate promotions : kPromotionRates) {
      if (!always || promotions >= PromotionRate(1)) policies.push_back({table, promotions});
    }
  }
  return policies;
}

std::vector<Policy> best_policies(Predictor& predictor, ReplayBudget& budget, const CandidateSpec& base,
                                  const std::vector<Policy>& policies, const std::vector<FetchMechanism>& mechanisms) {
  std::vector<CandidateSpec> specs;
  for (const Policy& policy : policies) {
    CandidateSpec spec = base;
    spec.use.fetch_of_misses = policy.fetch_of_misses;
    spec.use.promotions = policy.promotions;
    if (budget.allows(spec.use) && is_hybrid(spec.use, predictor.replays(spec.use))) specs.push_back(std::move(spec));
  }
  std::vector<Policy> best;
  for (const FetchMechanism mechanism : mechanisms) {
    std::vector<std::pair<double, const CandidateSpec*>> scored;
    for (CandidateSpec& spec : specs) {
      spec.mechanism = mechanism;
      scored.emplace_back(predictor.score(spec), &spec);
    }
    std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (size_t i = 0; i < std::min(scored.size(), kKeptPolicies); ++i) {
      Policy policy{scored[i].second->use.fetch_of_misses, scored[i].second->use.promotions};
      if (std::find(best.begin(), best.end(), policy) == best.end()) best.push_back(std::move(policy));
    }
  }
  return best;
}

std::vector<Policy> other_policies(Predictor& predictor, ReplayBudget& budget, const CandidateSpec& base,
                                   const std::vector<Policy>& policies, const Policy& first) {
  std::vector<std::pair<double, const Policy*>> scored;
  for (const Policy& policy : policies) {
    CandidateSpec spec = base;
    spec.use.fetch_of_misses = policy.fetch_of_misses;
    spec.use.promotions = policy.promotions;
    if (policy == first || !budget.allows(spec.use)) continue;
    if (base.strategy == Strategy::kHybrid && !is_hybrid(spec.use, predictor.replays(spec.use))) continue;
    scored.emplace_back(predictor.score(spec), &policy);
  }
  std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Policy> others;
  std::set<PromotionRate> budgets = {first.promotions};
  for (const bool only_new : {true, false}) {
    for (const auto& [score, policy] : scored) {
      if (others.size() == kOtherPolicies) return others;
      if (std::find(others.begin(), others.end(), *policy) != others.end()) continue;
      if (!only_new || budgets.insert(policy->promotions).second) others.push_back(*policy);
    }
  }
  return others;
}

}  // namespace ft
