#include "tuner/search_space.h"

#include <algorithm>
#include <cmath>

namespace ft {
namespace {

bool fetches(Strategy strategy) { return strategy == Strategy::kOffload || strategy == Strategy::kHybrid; }

int usable_cores(const SearchInput& input) {
  if (input.cores > 0) return input.cores;
  int most = 1;
  for (const ThreadModel& model : input.models) most = std::max(most, model.cost.cost.threads);
  return most;
}

bool trace_predicts(const SearchInput& input) {
  for (const auto& sequences : input.sequences) {
    for (const TraceSequence& sequence : sequences) {
      if (sequence.trace->predictions > 0) return true;
    }
  }
  return false;
}

}  // namespace

SplitTable constant_share(int size, double share) {
  SplitTable table(static_cast<size_t>(size) + 1, 0);
  for (int m = 1; m <= size; ++m) table[static_cast<size_t>(m)] = static_cast<int>(std::ceil(share * m));
  return table;
}

SplitTable capped(int size, int cap) {
  SplitTable table(static_cast<size_t>(size) + 1, 0);
  for (int m = 1; m <= size; ++m) table[static_cast<size_t>(m)] = std::min(m, cap);
  return table;
}

SplitTable raised(SplitTable split, int floor) {
  for (int m = 0; m < static_cast<int>(split.size()); ++m) {
    int& fetched = split[static_cast<size_t>(m)];
    fetched = std::max(fetched, std::min(m, floor));
  }
  return split;
}

SplitTable model_split(const SearchInput& input, const CostParameters& engaged, int size) {
  const auto [small, large] = std::minmax_element(input.batches.begin(), input.batches.end());
  const auto table_for = [&](int64_t batch) {
    const int tokens = static_cast<int>(batch);
    const int picks = tokens * input.geometry.expert.top_k;
    const int distinct = std::min({picks, input.geometry.expert.experts, size});
    return best_split(engaged, input.base.device, tokens, std::max(picks, distinct), distinct, size);
  };
  const SplitTable low = table_for(*small);
  SplitTable table = table_for(*large);
  const int64_t bound = std::min<int64_t>(size, *small * input.geometry.expert.top_k);
  std::copy(low.begin(), low.begin() + bound + 1, table.begin());
  return table;
}

std::set<SplitTable> hybrid_splits(const SearchInput& input, const ThreadModel& model, int size) {
  std::set<SplitTable> tables;
  for (const FetchMechanism mechanism : mechanisms(input, Strategy::kHybrid, model)) {
    const SplitTable own = model_split(input, engaged_cost(model.cost.cost, mechanism, LookAhead::kOff), size);
    tables.insert(own);
    for (const int floor : kFetchFloors) tables.insert(raised(own, floor));
  }
  for (const double share : kFetchedShares) tables.insert(constant_share(size, share));
  for (const int cap : kFetchCaps) tables.insert(capped(size, cap));
  tables.erase(constant_share(size, 0));
  tables.erase(constant_share(size, 1));
  return tables;
}

bool pool_works(const SearchInput& input, Strategy strategy) {
  return input.base.device == Device::kHost || strategy == Strategy::kCpu || strategy == Strategy::kHybrid;
}

int engine_threads(const SearchInput& input, Strategy strategy, const ThreadModel& model) {
  return pool_works(input, strategy) ? model.cost.cost.threads : input.threads.value_or(1);
}

std::vector<FetchMechanism> mechanisms(const SearchInput& input, Strategy strategy, const ThreadModel& model) {
  std::vector<FetchMechanism> result = {FetchMechanism::kSm};
  const bool known = model.cost.cost[CostTerm::kCopyEnginePerExpert] > 0;
  if (input.base.device != Device::kCuda || !fetches(strategy) || !known || input.base.link_slowdown != 1)
    return result;
  const int proxy = 1;
  if (engine_threads(input, strategy, model) + proxy <= usable_cores(input)) {
    result.push_back(FetchMechanism::kCopyEngine);
  }
  return result;
}

std::vector<int> prefetch_counts(const SearchInput& input, Strategy strategy, int64_t slots, int size) {
  if (!fetches(strategy)) return {0};
  if (input.base.max_prefetches_per_layer > 0) return {input.base.max_prefetches_per_layer};
  std::vector<int> counts = {0};
  const bool engine_predicts = input.base.device == Device::kHost || input.base.weights.synthetic;
  if (!engine_predicts || !trace_predicts(input) || slots <= size) return counts;
  counts.insert(counts.end(), std::begin(kPrefetchCounts), std::end(kPrefetchCounts));
  return counts;
}

SlotBounds bounds_of(const SearchInput& input, Strategy strategy) {
  EngineConfig config = input.base;
  config.strategy = strategy;
  drop_unusable_look_ahead(config);
  return slot_bounds(input.geometry, input.formats, config, input.memory);
}

}  // namespace ft
