#include "tuner/replay.h"

#include <algorithm>
#include <map>
#include <string>

#include "engine/experts/predicted_experts.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// Distinct experts of one layer over the batch, ascending, and how many tokens use each.
struct Merged {
  std::vector<int> experts;
  std::vector<int> picks;  // [expert id]
};

// Copies ahead what the sequences' traces predict for the layer.
class Prefetcher {
 public:
  Prefetcher(const std::vector<TraceSequence>& sequences, const ReplayOptions& options)
      : sequences_(sequences), max_prefetches_(options.max_prefetches), predicted_(sequences[0].trace->experts) {
    for (const TraceSequence& sequence : sequences) ranks_ = std::max(ranks_, sequence.trace->predictions);
    copies_.reserve(static_cast<size_t>(max_prefetches_));
  }

  void run(int64_t step, int layer, SlotTable& table) {
    copies_.clear();
    count_ = 0;
    if (max_prefetches_ == 0 || ranks_ == 0 || layer >= sequences_[0].trace->layers) return;
    const auto at = [&](int64_t token, int rank) {
      const TraceSequence& sequence = sequences_[static_cast<size_t>(token)];
      if (rank >= sequence.trace->predictions) return -1;
      return static_cast<int>(sequence.trace->predicted_at(sequence.begin + step, layer)[static_cast<size_t>(rank)]);
    };
    const std::span<const int> ids = predicted_.merge(static_cast<int64_t>(sequences_.size()), ranks_, at);
    count_ = static_cast<int64_t>(ids.size());
    if (!ids.empty()) table.prefetch(layer, ids, max_prefetches_, copies_);
  }

  int64_t predicted() const { return count_; }
  int copied() const { return static_cast<int>(copies_.size()); }

 private:
  const std::vector<TraceSequence>& sequences_;
  int max_prefetches_ = 0, ranks_ = 0;
  PredictedExperts predicted_;
  std::vector<ExpertSlot> copies_;
  int64_t count_ = 0;
};

void merge_layer(const std::vector<TraceSequence>& sequences, int64_t step, int layer, Merged& merged) {
  for (const int expert : merged.experts) merged.picks[static_cast<size_t>(expert)] = 0;
  merged.experts.clear();
  for (const TraceSequence& sequence : sequences) {
    for (const int16_t id : sequence.trace->at(sequence.begin + step, layer)) {
      if (merged.picks[static_cast<size_t>(id)]++ == 0) merged.experts.push_back(id);
    }
  }
  std::sort(merged.experts.begin(), merged.experts.end());
}

LayerCounts count(const LayerPlan& plan, const Merged& merged, int tokens) {
  LayerCounts counts;
  counts.tokens = tokens;
  counts.hits = static_cast<int>(plan.hits.size() + plan.arriving.size());
  counts.fetched = static_cast<int>(plan.fetches.size());
  counts.cpu = static_cast<int>(plan.cpu.size());
  counts.promoted = static_cast<int>(plan.promotions.size());
  for (const auto* hits : {&plan.hits, &plan.arriving}) {
    for (const ExpertSlot& hit : *hits) counts.hit_picks += merged.picks[static_cast<size_t>(hit.expert)];
  }
  for (const ExpertSlot& fetch : plan.fetches) counts.fetched_picks += merged.picks[static_cast<size_t>(fetch.expert)];
  for (const int expert : plan.cpu) counts.cpu_picks += merged.picks[static_cast<size_t>(expert)];
  return counts;
}

SlotTable table_for(const RoutingTrace& shape, const ReplayOptions& options, int max_distinct) {
  const int distinct = std::max(max_distinct, options.max_distinct);
  SlotTable table(shape.layers, shape.experts, options.slots,
                  make_slot_policy(options.cache_policy, shape.layers, options.slots, distinct));
  if (options.start_full) table.fill_in_order();
  return table;
}

int64_t free_slots(const SlotTable& table) {
  const SlotTable::Content content = table.content();
  return std::count_if(content.key_of_slot.begin(), content.key_of_slot.end(), [](auto key) { return key < 0; });
}

int64_t steps_of(const std::vector<TraceSequence>& sequences, const ReplayOptions& options) {
  FT_CHECK(!sequences.empty());
  const RoutingTrace& first = *sequences[0].trace;
  int64_t steps = sequences[0].tokens;
  for (const TraceSequence& sequence : sequences) {
    const RoutingTrace& trace = *sequence.trace;
    FT_CHECK(sequence.begin >= 0 && sequence.tokens >= 0 && sequence.begin + sequence.tokens <= trace.tokens);
    if (trace.layers != first.layers || trace.experts != first.experts || trace.top_k != first.top_k) {
      throw Error(ErrorKind::kFailed, {.what = "routing traces of one batch differ in layers, experts or top_k",
                                       .value = trace.source,
                                       .allowed = "the shape of " + first.source});
    }
    steps = std::min(steps, sequence.tokens);
  }
  if (steps <= options.discard_steps) {
    throw Error(ErrorKind::kFailed,
                {.what = "routing trace too short for a replay",
                 .value = std::to_string(steps) + " steps",
                 .allowed = "more than the " + std::to_string(options.discard_steps) + " that warm the cache",
                 .action = "record a longer trace or take a smaller batch"});
  }
  return steps;
}

}  // namespace

std::vector<TraceSequence> split_trace(const RoutingTrace& trace, int batch) {
  FT_CHECK(batch >= 1 && batch <= trace.tokens);
  const int64_t part = trace.tokens / batch;
  std::vector<TraceSequence> sequences;
  sequences.reserve(static_cast<size_t>(batch));
  for (int i = 0; i < batch; ++i) sequences.push_back({&trace, i * part, part});
  return sequences;
}

std::vector<TraceSequence> cut_sequences(std::vector<TraceSequence> sequences, int64_t uses) {
  FT_CHECK(!sequences.empty());
  const RoutingTrace& trace = *sequences.front().trace;
  const int64_t of_step = static_cast<int64_t>(sequences.size()) * trace.layers * trace.top_k;
  const int64_t steps = std::max(kLeastSteps, uses / of_step);
  for (TraceSequence& sequence : sequences) sequence.tokens = std::min(sequence.tokens, steps);
  return sequences;
}

LayerCounts full_counts(int tokens, int hits, int fetched, int cpu, int promoted) {
  return {tokens, hits, fetched, cpu, promoted, hits * tokens, fetched * tokens, cpu * tokens, 0};
}

ReplayResult replay(const std::vector<TraceSequence>& sequences, const ReplayOptions& options) {
  const int64_t steps = steps_of(sequences, options);
  const RoutingTrace& shape = *sequences[0].trace;
  const int tokens = static_cast<int>(sequences.size());
  const int max_distinct = std::min(shape.experts, shape.top_k * tokens);
  SlotTable table = table_for(shape, options, max_distinct);
  LayerPlan plan;
  plan.reserve(max_distinct);
  Prefetcher prefetcher(sequences, options);
  Merged merged;
  merged.picks.assign(static_cast<size_t>(shape.experts), 0);

  ReplayResult result;
  result.layers = shape.layers;
  result.content_step = options.content_of_middle ? std::max(options.discard_steps, steps / 2) : steps;
  result.misses_histogram.assign(static_cast<size_t>(max_distinct) + 1, 0);
  std::map<LayerCounts, int64_t> distribution;
  int64_t hits[2] = {0, 0}, experts[2] = {0, 0};
  PromotionRate promotions = options.promotions;
  const auto run = [&](int64_t begin, int64_t end, bool counted) {
    if (counted) result.steps = end - begin;
    for (int64_t step = begin; step < end; ++step) {
      if (counted && step == result.content_step) result.content = table.content();
      const int half = (step - begin) * 2 < end - begin ? 0 : 1;
      for (int layer = 0; layer < shape.layers; ++layer) {
        merge_layer(sequences, step, layer, merged);
        table.plan(layer, merged.experts, options.fetch_of_misses, promotions, plan);
        prefetcher.run(step, layer + 1, table);
        if (!counted) continue;
        LayerCounts counts = count(plan, merged, tokens);
        counts.prefetched = prefetcher.copied();
        result.predicted += prefetcher.predicted();
        result.prefetched += prefetcher.copied();
        result.prefetch_useful += plan.first_uses;
        ++distribution[counts];
        ++result.misses_histogram[static_cast<size_t>(counts.misses())];
        hits[half] += counts.hits;
        experts[half] += counts.hits + counts.misses();
      }
    }
  };
  int64_t first = options.discard_steps;
  run(0, first, false);
  int64_t free = options.fill_first ? free_slots(table) : 0;
  if (free > 0) {
    const int64_t half = steps / 2;
    if (promotions.any()) promotions = std::max(promotions, PromotionRate(1));
    for (int pass = 0; free > 0 && pass < kMaxFillPasses; ++pass) {
      run(0, half, false);
      const int64_t left = free_slots(table);
      if (left == free) break;
      free = left;
    }
    promotions = options.promotions;
    run(0, half, false);
    first = half;
  }
  run(first, steps, true);
  for (const auto& [counts, times] : distribution) result.distribution.push_back({counts, times});
  for (const int half : {0, 1}) {
    if (experts[half] > 0) {
      result.hit_rate_halves[half] = static_cast<double>(hits[half]) / static_cast<double>(experts[half]);
    }
  }
  result.hit_rate = static_cast<double>(hits[0] + hits[1]) / static_cast<double>(experts[0] + experts[1]);
  if (result.content_step == steps) result.content = table.content();
  return result;
}

}  // namespace ft
