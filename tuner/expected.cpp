#include "tuner/expected.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

// Distinct experts of a step by its sequences.
struct PerToken {
  double fetched = 0, cpu = 0;
};

PerToken per_token(const ReplayResult& replay, int64_t batch) {
  PerToken sum;
  for (const WeightedCounts& entry : replay.distribution) {
    const auto times = static_cast<double>(entry.times);
    sum.fetched += times * entry.counts.fetched;
    sum.cpu += times * entry.counts.cpu;
  }
  const double tokens = static_cast<double>(replay.steps) * static_cast<double>(batch);
  return {sum.fetched / tokens, sum.cpu / tokens};
}

bool same_engine(const EngineConfig& a, const EngineConfig& b) {
  return a.threads == b.threads && a.slots == b.slots && a.look_ahead == b.look_ahead &&
         a.max_prefetches_per_layer == b.max_prefetches_per_layer && a.fetch_mechanism == b.fetch_mechanism &&
         a.cache_policy == b.cache_policy;
}

}  // namespace

std::vector<ExpectedPoint> expected_points(const ExpectedInput& input) {
  const CandidatePrediction& prediction = *input.prediction;
  std::vector<ExpectedPoint> points;
  if (prediction.replays == nullptr) return points;
  const size_t batches = input.batches.size(), count = input.contexts.size() * batches;
  FT_CHECK(prediction.tok_s.size() == count && prediction.replays->size() == batches);
  FT_CHECK(input.measured_there.empty() || input.measured_there.size() == count);
  const bool has_measured = input.candidate != nullptr && input.candidate->measured_tok_s.size() == count;
  for (size_t i = 0; i < count; ++i) {
    const size_t b = i % batches;
    ExpectedPoint point;
    point.context = input.contexts[i / batches];
    point.batch = input.batches[b];
    if (has_measured && (input.measured_there.empty() || input.measured_there[i])) {
      point.tok_s = input.candidate->measured_tok_s[i];
      point.low_tok_s = input.candidate->measured_low[i];
      point.high_tok_s = input.candidate->measured_high[i];
    } else {
      point.tok_s = prediction.tok_s[i];
      point.low_tok_s = std::min(prediction.low[i], point.tok_s);
      point.high_tok_s = std::max(prediction.high[i], point.tok_s);
    }
    const ReplayResult& replay = (*prediction.replays)[b];
    const PerToken experts = per_token(replay, point.batch);
    point.hit_rate = replay.hit_rate;
    point.fetched_per_token = experts.fetched;
    point.cpu_per_token = experts.cpu;
    const double total = prediction.parts.empty() ? 0 : prediction.parts[i].total();
    const double stretch = total > 0 ? static_cast<double>(point.batch) / point.tok_s / total : 0;
    for (int part = 0; part < kStepPartCount && stretch > 0; ++part) {
      const double seconds = stretch * prediction.parts[i].seconds[part];
      if (seconds > 0) point.parts.push_back({std::string(step_part_name(static_cast<StepPart>(part))), seconds});
    }
    points.push_back(std::move(point));
  }
  return points;
}

std::optional<Fallback> fallback_for(const CandidatePrediction& chosen, std::span<const CandidatePrediction> ranked,
                                     const std::vector<int64_t>& contexts, const std::vector<int64_t>& batches) {
  const EngineConfig& config = chosen.config;
  if (config.slots == 0 || config.strategy == Strategy::kResident || config.strategy == Strategy::kOffload) {
    return std::nullopt;
  }
  Fallback fallback;
  fallback.strategy = strategy_name(Strategy::kOffload);
  for (size_t misses = 0; misses < config.fetch_of_misses.size(); ++misses) {
    fallback.fetch_of_misses.push_back(static_cast<int>(misses));
  }
  for (const CandidatePrediction& other : ranked) {
    if (other.config.strategy != Strategy::kOffload || !same_engine(other.config, config)) continue;
    fallback.expected = expected_points({.prediction = &other, .contexts = contexts, .batches = batches});
    break;
  }
  return fallback;
}

}  // namespace ft
