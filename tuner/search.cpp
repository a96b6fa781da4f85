#include "tuner/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int kMaxPromotions = 2;  // experts per layer and step: more would hold the link for the next layer
constexpr double kFetchedShares[] = {0.25, 0.5, 0.75};  // splits tried beside the model's own

// What a replay depends on. Thread counts share replays.
struct SlotUse {
  int64_t slots = 0;
  SplitTable fetch_of_misses;
  int max_promotions = 0;
  bool start_full = false;
  int max_prefetches = 0;
  auto operator<=>(const SlotUse&) const = default;
};

int max_distinct(const SearchInput& input) {
  return std::min(input.geometry.expert.experts, input.geometry.expert.top_k * input.base.max_batch);
}

SplitTable constant_share(int size, double share) {
  SplitTable table(static_cast<size_t>(size) + 1, 0);
  for (int m = 1; m <= size; ++m) table[static_cast<size_t>(m)] = static_cast<int>(std::ceil(share * m));
  return table;
}

class Search {
 public:
  explicit Search(const SearchInput& input) : input_(input), size_(max_distinct(input)) {
    FT_CHECK(!input.models.empty() && !input.contexts.empty() && !input.batches.empty());
    FT_CHECK(input.batches.size() == input.sequences.size());
    for (size_t b = 0; b < input.batches.size(); ++b) {
      FT_CHECK(static_cast<int64_t>(input.sequences[b].size()) == input.batches[b]);
    }
  }

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

  const std::vector<ReplayResult>& replays(const SlotUse& policy) {
    auto& found = replays_[policy];
    if (!found.empty()) return found;
    ReplayOptions options;
    options.slots = policy.slots;
    options.fetch_of_misses = policy.fetch_of_misses;
    options.max_promotions = policy.max_promotions;
    options.start_full = policy.start_full;
    options.discard_steps = input_.discard_steps;
    options.cache_policy = input_.base.cache_policy;
    options.max_distinct = size_;
    options.max_prefetches = policy.max_prefetches;
    for (const auto& sequences : input_.sequences) found.push_back(replay(sequences, options));
    return found;
  }

  std::vector<double> tokens_per_second(const CostParameters& cost, const DenseCost& dense,
                                        const std::vector<ReplayResult>& results) const {
    std::vector<double> rates;
    for (const int64_t context : input_.contexts) {
      for (size_t b = 0; b < input_.batches.size(); ++b) {
        const double seconds = step_seconds(cost, dense, input_.base.device, context, results[b]);
        rates.push_back(static_cast<double>(input_.batches[b]) / std::max(seconds, 1e-12));
      }
    }
    return rates;
  }

  CandidatePrediction predict(Strategy strategy, const ThreadModel& model, const SlotUse& policy) {
    const std::vector<ReplayResult>& results = replays(policy);
    CandidatePrediction candidate;
    candidate.config = input_.base;
    candidate.config.strategy = strategy;
    drop_unusable_look_ahead(candidate.config);
    candidate.config.threads = threads_of(strategy, model);
    candidate.config.slots = policy.slots;
    candidate.config.fetch_of_misses = policy.fetch_of_misses;
    candidate.config.promote_bytes_per_layer = policy.max_promotions * input_.formats.expert_bytes_max;
    candidate.split = strategy == Strategy::kResident ? "all resident"
                                                      : describe_split(policy.fetch_of_misses, policy.max_promotions);
    candidate.content = results[0].content;
    for (const ReplayResult& result : results) candidate.hit_rate.push_back(result.hit_rate);
    candidate.tok_s = tokens_per_second(model.cost.cost, model.dense.cost, results);
    candidate.score = geometric_mean(candidate.tok_s);
    const size_t draws = std::min(model.cost.draws.size(), model.dense.draws.size());
    std::vector<std::vector<double>> points(candidate.tok_s.size());
    for (size_t i = 0; i < draws; ++i) {
      const std::vector<double> rates = tokens_per_second(model.cost.draws[i], model.dense.draws[i], results);
      for (size_t p = 0; p < rates.size(); ++p) points[p].push_back(rates[p]);
      candidate.score_draws.push_back(geometric_mean(rates));
    }
    const double tail = (1 - kFitConfidence) / 2;
    for (size_t p = 0; p < points.size(); ++p) {
      const double centre = candidate.tok_s[p];
      candidate.low.push_back(draws == 0 ? centre : std::min(centre, quantile(points[p], tail)));
      candidate.high.push_back(draws == 0 ? centre : std::max(centre, quantile(points[p], 1 - tail)));
    }
    return candidate;
  }

  static double geometric_mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += std::log(value);
    return std::exp(sum / static_cast<double>(values.size()));
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
  int size_ = 0;
  std::map<SlotUse, std::vector<ReplayResult>> replays_;
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
