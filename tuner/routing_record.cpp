#include "tuner/routing_record.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "tuner/optimum.h"

namespace ft {
std::vector<int64_t> routing_slot_counts(int64_t low, int64_t high) {
  FT_CHECK(low >= 1 && low <= high);
  std::vector<int64_t> counts;
  for (int i = 0; i < kRoutingSlotCounts; ++i) {
    const double share = static_cast<double>(i) / (kRoutingSlotCounts - 1);
    const double count =
        static_cast<double>(low) * std::pow(static_cast<double>(high) / static_cast<double>(low), share);
    counts.push_back(std::clamp<int64_t>(std::llround(count), low, high));
  }
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::optional<RoutingRecord> routing_record(const SearchInput& input) {
  EngineConfig config = input.base;
  config.strategy = Strategy::kOffload;
  const SlotBounds bounds = slot_bounds(input.geometry, input.formats, config, input.memory);
  if (bounds.max < bounds.min || bounds.min < 1) return std::nullopt;
  const int distinct = std::min(input.geometry.expert.experts, input.geometry.expert.top_k * input.base.max_batch);
  RoutingRecord record;
  record.cache_policy = cache_policy_name(input.base.cache_policy);
  const std::vector<int64_t> counts = routing_slot_counts(bounds.min, bounds.max);
  const auto points = static_cast<int64_t>(counts.size() * input.batches.size());
  ReplayOptions options;
  for (int m = 0; m <= distinct; ++m) options.fetch_of_misses.push_back(m);
  options.cache_policy = input.base.cache_policy;
  options.max_distinct = distinct;
  for (size_t b = 0; b < input.batches.size(); ++b) {
    const std::vector<TraceSequence> sequences = cut_sequences(input.sequences[b], kMaxRoutingUses / (2 * points));
    options.discard_steps = std::min(input.discard_steps, sequences.front().tokens / 2);
    for (const int64_t slots : counts) {
      options.slots = slots;
      const ReplayResult replayed = replay(sequences, options);
      const OptimumResult best = offline_optimum(sequences, slots, options.discard_steps);
      RoutingPoint point;
      point.slots = slots;
      point.batch = input.batches[b];
      point.hit_rate = replayed.hit_rate;
      point.optimum_hit_rate =
          best.experts == 0 ? 0 : 1 - static_cast<double>(best.misses) / static_cast<double>(best.experts);
      point.misses_histogram = replayed.misses_histogram;
      record.points.push_back(std::move(point));
    }
  }
  return record;
}

}  // namespace ft
