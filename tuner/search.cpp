#include "tuner/search.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "kernels/base/error.h"
#include "tuner/predictor.h"

namespace ft {
namespace {

constexpr int kMaxPromotions = 2;  // experts per layer and step: more would hold the link for the next layer
constexpr double kFetchedShares[] = {0.25, 0.5, 0.75};  // splits tried beside the model's own

SplitTable constant_share(int size, double share) {
  SplitTable table(static_cast<size_t>(size) + 1, 0);
  for (int m = 1; m <= size; ++m) table[static_cast<size_t>(m)] = static_cast<int>(std::ceil(share * m));
  return table;
}

class Search {
 public:
  explicit Search(const SearchInput& input) : input_(input), predictor_(input), size_(predictor_.max_distinct()) {}

  SearchResult run() {
    bool measured = false;
    for (const ThreadModel& model : input_.models) {
      if (input_.threads && model.cost.cost.threads != *input_.threads) continue;
      const bool first = !measured;
      measured = true;
      if (first || pool_computes_slots()) {
        resident(model, bounds_of(Strategy::kResident));
        offload(model, bounds_of(Strategy::kOffload));
      }
      cpu(model, bounds_of(Strategy::kCpu));
      hybrid(model, bounds_of(Strategy::kHybrid));
    }
    if (!measured) refuse_threads();
    if (result_.ranked.empty()) refuse_nothing();
    rank();
    return std::move(result_);
  }

 private:
  // On the host device the pool computes what is in slots; on a GPU it has work only with a CPU arm. There resident and
  // offload are one row each, whatever thread counts were measured, and keep one thread: the one that feeds the GPU.
  bool pool_computes_slots() const { return input_.base.device == Device::kHost; }
  int threads_of(Strategy strategy, const ThreadModel& model) const {
    const bool pool_works = pool_computes_slots() || strategy == Strategy::kCpu || strategy == Strategy::kHybrid;
    return pool_works ? model.cost.cost.threads : input_.threads.value_or(1);
  }

  bool wanted(Strategy strategy) const { return !input_.strategy || *input_.strategy == strategy; }

  // Strategies differ in what they need beside slots (offload's staging buffers).
  SlotBounds bounds_of(Strategy strategy) const {
    EngineConfig config = input_.base;
    config.strategy = strategy;
    drop_unusable_look_ahead(config);
    return slot_bounds(input_.geometry, input_.formats, config, input_.memory);
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

  void resident(const ThreadModel& model, const SlotBounds& bounds) {
    if (!wanted(Strategy::kResident)) return;
    const int64_t all = input_.geometry.total_experts();
    if (bounds.max < all) {
      return reject(Strategy::kResident,
                    "needs " + std::to_string(all) + " slots, " + std::to_string(bounds.max) + " fit");
    }
    if (input_.slots && *input_.slots != all) {
      return reject(Strategy::kResident, "needs all " + std::to_string(all) + " slots, asked for are " + slots_asked());
    }
    result_.ranked.push_back(predict(Strategy::kResident, model, {all, {}, 0, true}));
  }

  void offload(const ThreadModel& model, const SlotBounds& bounds) {
    if (!wanted(Strategy::kOffload)) return;
    for (const int64_t slots : slot_counts(Strategy::kOffload, bounds)) {
      const SlotUse use{slots, constant_share(size_, 1), 0, false, input_.base.max_prefetches_per_layer};
      result_.ranked.push_back(predict(Strategy::kOffload, model, use));
    }
  }

  void cpu(const ThreadModel& model, const SlotBounds& bounds) {
    if (!wanted(Strategy::kCpu)) return;
    const SplitTable none = constant_share(size_, 0);
    if (!input_.slots || *input_.slots == 0) {
      result_.ranked.push_back(predict(Strategy::kCpu, model, {0, none, 0, false}));
    }
    if (input_.slots == 0) return;
    for (const int64_t slots : slot_counts(Strategy::kCpu, bounds)) {
      std::vector<SlotUse> policies;  // with slots but no promotion the cache would stay empty
      for (int promotions = 1; promotions <= kMaxPromotions; ++promotions) {
        policies.push_back({slots, none, promotions, false});
      }
      add_best(Strategy::kCpu, model, policies);
    }
  }

  void hybrid(const ThreadModel& model, const SlotBounds& bounds) {
    if (!wanted(Strategy::kHybrid)) return;
    std::set<SplitTable> tables = {model_split(model)};
    for (const double share : kFetchedShares) tables.insert(constant_share(size_, share));
    for (const int64_t slots : slot_counts(Strategy::kHybrid, bounds)) {
      std::vector<SlotUse> policies;
      for (const SplitTable& table : tables) {
        // A size of miss that fetches nothing would miss for ever without promotions.
        const bool freezes = std::find(table.begin() + 1, table.end(), 0) != table.end();
        for (int promotions = freezes ? 1 : 0; promotions <= kMaxPromotions; ++promotions) {
          const SlotUse policy{slots, table, promotions, false, input_.base.max_prefetches_per_layer};
          if (is_hybrid(policy)) policies.push_back(policy);
        }
      }
      if (policies.empty()) {
        reject(Strategy::kHybrid,
               "with " + std::to_string(slots) + " slots every split is offload's or cpu's at the misses that occur");
        continue;
      }
      add_best(Strategy::kHybrid, model, policies);
    }
  }

  // The model's best split: for misses that one sequence can have from the smallest batch, beyond from the largest.
  SplitTable model_split(const ThreadModel& model) const {
    const auto [small, large] = std::minmax_element(input_.batches.begin(), input_.batches.end());
    const auto table_for = [&](int64_t batch) {
      const int tokens = static_cast<int>(batch);
      const int picks = tokens * input_.geometry.expert.top_k;
      const int distinct = std::min({picks, input_.geometry.expert.experts, size_});
      return best_split(model.cost.cost, input_.base.device, tokens, std::max(picks, distinct), distinct, size_);
    };
    const SplitTable low = table_for(*small);
    SplitTable table = table_for(*large);
    const int64_t bound = std::min<int64_t>(size_, *small * input_.geometry.expert.top_k);
    std::copy(low.begin(), low.begin() + bound + 1, table.begin());
    return table;
  }

  // At some number of misses that occurs, the split shares them between link and CPU or treats sizes differently.
  bool is_hybrid(const SlotUse& policy) {
    bool fetches = false, computes = false;
    for (const ReplayResult& result : replays(policy)) {
      for (size_t m = 1; m < result.misses_histogram.size(); ++m) {
        if (result.misses_histogram[m] == 0) continue;
        fetches = fetches || policy.fetch_of_misses[m] > 0;
        computes = computes || policy.fetch_of_misses[m] < static_cast<int>(m);
      }
    }
    return fetches && computes;
  }

  void add_best(Strategy strategy, const ThreadModel& model, const std::vector<SlotUse>& policies) {
    std::optional<CandidatePrediction> best;
    for (const SlotUse& policy : policies) {
      CandidatePrediction candidate = predict(strategy, model, policy);
      if (!best || candidate.score > best->score) best = std::move(candidate);
    }
    if (best) result_.ranked.push_back(std::move(*best));
  }

  const std::vector<ReplayResult>& replays(const SlotUse& use) { return predictor_.replays(use); }

  CandidatePrediction predict(Strategy strategy, const ThreadModel& model, const SlotUse& use) {
    CandidateSpec spec;
    spec.strategy = strategy;
    spec.model = static_cast<size_t>(&model - input_.models.data());
    spec.threads = threads_of(strategy, model);
    spec.use = use;
    return predictor_.predict(spec);
  }

  void rank() {
    auto& ranked = result_.ranked;
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
    size_t chosen = 0;
    for (size_t i = 1; i < ranked.size(); ++i) {
      if (complexity(ranked[i].config.strategy) >= complexity(ranked[chosen].config.strategy)) continue;
      if (is_tie(ranked[i], ranked[0])) chosen = i;
    }
    result_.tie = chosen != 0;
    std::rotate(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(chosen),
                ranked.begin() + static_cast<std::ptrdiff_t>(chosen) + 1);
    for (size_t i = 1; i < ranked.size(); ++i) {
      const double percent = 100 * (ranked[0].score / ranked[i].score - 1);
      const std::string amount = std::to_string(std::llround(std::abs(percent))) + " %";
      ranked[i].verdict = is_tie(ranked[i], ranked[0]) ? "tie with the choice, which is not more complex"
                          : percent >= 0               ? "predicted " + amount + " slower"
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
  int size_ = 0;
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

std::string describe_split(const SplitTable& table, int max_promotions) {
  bool all = true, none = true;
  std::string parts;
  constexpr size_t kShown = 4;  // misses that one layer commonly has
  for (size_t m = 1; m < table.size(); ++m) {
    all = all && table[m] == static_cast<int>(m);
    none = none && table[m] == 0;
    if (m <= kShown) parts += (m > 1 ? ", " : "fetch ") + std::to_string(table[m]) + " of " + std::to_string(m);
  }
  if (table.size() > kShown + 1) parts += ", ..";
  std::string text = all ? "fetch all" : none ? "fetch none" : parts;
  if (max_promotions > 0) text += "; promote " + std::to_string(max_promotions);
  return text;
}

}  // namespace ft
