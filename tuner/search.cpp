#include "tuner/search.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "tuner/explain_words.h"
#include "tuner/predictor.h"
#include "tuner/search_prune.h"
#include "tuner/search_space.h"

namespace ft {
namespace {

class Search {
 public:
  explicit Search(const SearchInput& input)
      : input_(input), predictor_(input), budget_(predictor_), size_(predictor_.max_distinct()) {
    for (size_t i = 0; i < input.models.size(); ++i) {
      if (!input.threads || input.models[i].cost.cost.threads == *input.threads) measured_.push_back(i);
    }
  }

  SearchResult run() {
    if (measured_.empty()) refuse_threads();
    for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
      if (input_.strategy && *input_.strategy != strategy) continue;
      const SlotBounds bounds = bounds_of(input_, strategy);
      switch (strategy) {
        case Strategy::kResident:
          resident(bounds);
          break;
        case Strategy::kOffload:
          offload(bounds);
          break;
        case Strategy::kCpu:
          cpu(bounds);
          break;
        case Strategy::kHybrid:
          hybrid(bounds);
          break;
      }
    }
    if (budget_.refused() > 0) {
      remark("the search stopped after " + std::to_string(kMaxReplays) + " replays of the routing trace: " +
             std::to_string(budget_.refused()) + " ways to serve were not predicted");
    }
    if (result_.ranked.empty()) refuse_nothing();
    rank();
    return std::move(result_);
  }

 private:
  // One row for all thread counts where the pool has no work: the first model's.
  std::vector<size_t> models_of(Strategy strategy) const {
    return pool_works(input_, strategy) ? measured_ : std::vector<size_t>{measured_.front()};
  }

  void reject(Strategy strategy, const std::string& reason) {
    for (const RejectedStrategy& entry : result_.rejected) {
      if (entry.strategy == strategy && entry.reason == reason) return;
    }
    result_.rejected.push_back({strategy, reason});
  }

  void remark(const std::string& text) {
    auto& remarks = result_.remarks;
    if (std::find(remarks.begin(), remarks.end(), text) == remarks.end()) remarks.push_back(text);
  }

  std::string slots_asked() const {
    return input_.slots_asked.empty() ? std::to_string(*input_.slots) : input_.slots_asked;
  }

  // Slot counts worth a row: all that fits, half of it, the least that works; or the pinned one. Slots for every expert
  // are resident's, which starts with them filled: the other strategies would only get there later.
  std::vector<int64_t> slot_counts(Strategy strategy, const SlotBounds& bounds) {
    const std::string range = std::to_string(bounds.min) + " to " + std::to_string(bounds.max);
    if (input_.slots) {
      if (*input_.slots >= bounds.min && *input_.slots <= bounds.max) {
        if (*input_.slots == input_.geometry.total_experts()) {
          remark(std::string(strategy_name(strategy)) +
                 " with a slot for every expert works as resident once they are filled");
        }
        return {*input_.slots};
      }
      reject(strategy, slots_asked() + " slots asked for, possible are " + range);
      return {};
    }
    if (bounds.max < bounds.min) {
      reject(strategy, "needs " + std::to_string(bounds.min) + " slots, " + std::to_string(bounds.max) + " fit");
      return {};
    }
    const int64_t all = input_.geometry.total_experts();
    std::vector<int64_t> counts;
    if (bounds.max < all) counts.push_back(bounds.max);
    if (bounds.max / 2 > bounds.min) counts.push_back(bounds.max / 2);
    if (bounds.min < bounds.max) counts.push_back(bounds.min);
    if (counts.empty()) {
      reject(strategy, "one layer's experts at the largest batch need a slot for every expert: resident");
    }
    return counts;
  }

  void resident(const SlotBounds& bounds) {
    const int64_t all = input_.geometry.total_experts();
    if (bounds.max < all) {
      return reject(Strategy::kResident,
                    "needs " + std::to_string(all) + " slots, " + std::to_string(bounds.max) + " fit");
    }
    if (input_.slots && *input_.slots != all) {
      return reject(Strategy::kResident, "needs all " + std::to_string(all) + " slots, asked for are " + slots_asked());
    }
    for (const size_t model : models_of(Strategy::kResident)) {
      add(spec_of(Strategy::kResident, model, {all, {}, 0, true, 0}));
    }
  }

  void offload(const SlotBounds& bounds) {
    for (const int64_t slots : slot_counts(Strategy::kOffload, bounds)) {
      for (const size_t model : models_of(Strategy::kOffload)) {
        add_variants(spec_of(Strategy::kOffload, model, {slots, constant_share(size_, 1), 0, false, 0}));
      }
    }
  }

  void cpu(const SlotBounds& bounds) {
    const SplitTable none = constant_share(size_, 0);
    if (!input_.slots || *input_.slots == 0) {
      for (const size_t model : measured_) add(spec_of(Strategy::kCpu, model, {0, none, 0, false, 0}));
    }
    if (input_.slots == 0) return;
    bool first = true;  // the largest slot count
    for (const int64_t slots : slot_counts(Strategy::kCpu, bounds)) {
      std::vector<Policy> policies;  // with slots but no promotion the cache would stay empty
      for (const PromotionRate promotions : kPromotionRates) policies.push_back({none, promotions});
      for (const size_t model : measured_) {
        const CandidateSpec base = spec_of(Strategy::kCpu, model, {slots, none, 1, false, 0});
        const auto best = best_of(base, policies);
        if (!best) continue;
        add(*best);
        if (first) add_others(*best, policies);
      }
      first = false;
    }
  }

  void hybrid(const SlotBounds& bounds) {
    for (const size_t model : measured_) {
      const std::vector<Policy> all =
          hybrid_policies(hybrid_splits(input_, input_.models[model], size_), input_.geometry.expert.top_k);
      std::vector<Policy> kept;  // of the largest slot count, which comes first
      for (const int64_t slots : slot_counts(Strategy::kHybrid, bounds)) {
        const CandidateSpec base = spec_of(Strategy::kHybrid, model, {slots, {}, 0, false, 0});
        const std::vector<Policy> best = best_policies(predictor_, budget_, base, kept.empty() ? all : kept,
                                                       mechanisms(input_, Strategy::kHybrid, input_.models[model]));
        if (best.empty()) {
          reject(Strategy::kHybrid,
                 "with " + std::to_string(slots) + " slots every split is offload's or cpu's at the misses that occur");
          continue;
        }
        CandidateSpec chosen = base;
        chosen.use.fetch_of_misses = best[0].fetch_of_misses;
        chosen.use.promotions = best[0].promotions;
        add_variants(chosen, best);
        if (kept.empty()) add_others(chosen, all);
        if (kept.empty()) kept = best;
      }
    }
  }

  CandidateSpec spec_of(Strategy strategy, size_t model, const SlotUse& use) const {
    return {strategy, model, engine_threads(input_, strategy, input_.models[model]), use, FetchMechanism::kSm};
  }

  // Of the policies the one with the best prediction.
  std::optional<CandidateSpec> best_of(const CandidateSpec& base, const std::vector<Policy>& policies) {
    std::optional<CandidateSpec> best;
    double best_score = 0;
    for (const Policy& policy : policies) {
      CandidateSpec spec = base;
      spec.use.fetch_of_misses = policy.fetch_of_misses;
      spec.use.promotions = policy.promotions;
      if (!budget_.allows(spec.use)) continue;
      const double score = predictor_.score(spec);
      if (best && score <= best_score) continue;
      best = spec;
      best_score = score;
    }
    return best;
  }

  // A row for every mechanism, and with look-ahead one more with the number of prefetches that is best. `policies`: the
  // splits to choose from, which another mechanism may order otherwise; empty: the one of `base`.
  void add_variants(const CandidateSpec& base, const std::vector<Policy>& policies = {}) {
    const ThreadModel& model = input_.models[base.model];
    for (const FetchMechanism mechanism : mechanisms(input_, base.strategy, model)) {
      std::optional<CandidateSpec> ahead;
      double ahead_score = 0;
      for (const int prefetches : prefetch_counts(input_, base.strategy, base.use.slots, size_)) {
        CandidateSpec spec = base;
        spec.mechanism = mechanism;
        spec.use.max_prefetches = prefetches;
        if (!policies.empty()) spec = best_of(spec, policies).value_or(spec);
        if (!budget_.allows(spec.use)) continue;
        if (prefetches == 0) {
          add(spec);
          continue;
        }
        const double score = predictor_.score(spec);
        if (ahead && score <= ahead_score) continue;
        ahead = spec;
        ahead_score = score;
      }
      if (ahead) add(*ahead);
    }
  }

  // Rows of other policies than the best one's, by the first mechanism and without look-ahead.
  void add_others(const CandidateSpec& best, const std::vector<Policy>& policies) {
    const Policy first{best.use.fetch_of_misses, best.use.promotions};
    for (const Policy& policy : other_policies(predictor_, budget_, best, policies, first)) {
      CandidateSpec spec = best;
      spec.use.fetch_of_misses = policy.fetch_of_misses;
      spec.use.promotions = policy.promotions;
      add(spec);
    }
  }

  void add(const CandidateSpec& spec) {
    if (budget_.allows(spec.use)) result_.ranked.push_back(predictor_.predict(spec));
  }

  void rank() {
    auto& ranked = result_.ranked;
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
    size_t chosen = 0;
    for (size_t i = 1; i < ranked.size(); ++i) {
      if (complexity(ranked[i].config) >= complexity(ranked[chosen].config)) continue;
      if (is_tie(ranked[i], ranked[0])) chosen = i;
    }
    result_.tie = chosen != 0;
    std::rotate(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(chosen),
                ranked.begin() + static_cast<std::ptrdiff_t>(chosen) + 1);
    for (size_t i = 1; i < ranked.size(); ++i) {
      const double ratio = ranked[0].score / ranked[i].score;
      const std::string amount = percent_more(ratio >= 1 ? ratio : 1 / ratio);
      ranked[i].verdict = is_tie(ranked[i], ranked[0]) ? "tie with the choice, which is not more complex"
                          : ratio >= 1                 ? "predicted " + amount + " slower"
                                                       : "predicted " + amount + " faster, within the interval";
    }
    ranked[0].verdict = result_.tie ? "chosen: tie with a faster prediction, and simpler" : "chosen";
  }

  [[noreturn]] void refuse_threads() const {
    std::string counts;
    for (const ThreadModel& model : input_.models) {
      counts += (counts.empty() ? "" : ", ") + std::to_string(model.cost.cost.threads);
    }
    throw Error(ErrorKind::kUsage, {.what = "no measurement for this thread count",
                                    .value = std::to_string(*input_.threads),
                                    .allowed = counts,
                                    .path = "--threads"});
  }

  [[noreturn]] void refuse_nothing() const {
    std::string reasons;
    for (const RejectedStrategy& entry : result_.rejected) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(strategy_name(entry.strategy)) + ": " + entry.reason;
    }
    throw Error(ErrorKind::kFailed, {.what = "no candidate can run (" + reasons + ")",
                                     .action = "change --slots, --strategy, --vram-limit or --host-memory"});
  }

  const SearchInput& input_;
  Predictor predictor_;
  ReplayBudget budget_;
  int size_ = 0;
  std::vector<size_t> measured_;  // models that may be used
  SearchResult result_;
};

}  // namespace

int complexity(Strategy strategy) {
  switch (strategy) {
    case Strategy::kResident:
      return 0;
    case Strategy::kOffload:
      return 1;
    case Strategy::kCpu:
      return 2;
    case Strategy::kHybrid:
      return 3;
  }
  return 3;
}

int complexity(const EngineConfig& config) {
  const int ahead = config.look_ahead != LookAhead::kOff ? 4 : 0;
  const int copier = config.fetch_mechanism == FetchMechanism::kCopyEngine ? 2 : 0;
  const int promotes = config.promote_bytes_per_layer > 0 ? 1 : 0;
  return 8 * complexity(config.strategy) + ahead + copier + promotes;
}

bool is_tie(const CandidatePrediction& a, const CandidatePrediction& b) {
  const double ratio = a.score / b.score;
  if (std::abs(ratio - 1) < kTieFraction) return true;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.score_draws.size(), b.score_draws.size()); ++i) {
    ratios.push_back(a.score_draws[i] / b.score_draws[i]);
  }
  if (ratios.empty()) return false;
  const double tail = (1 - kFitConfidence) / 2;
  return quantile(ratios, tail) <= 1 && quantile(ratios, 1 - tail) >= 1;
}

SearchResult search(const SearchInput& input) { return Search(input).run(); }

}  // namespace ft
