#include "tuner/predictor.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "tuner/split_words.h"
#include "tuner/step_parts.h"

namespace ft {
namespace {

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

LookAhead look_ahead_of(const SlotUse& use) { return use.max_prefetches > 0 ? LookAhead::kRouter : LookAhead::kOff; }

}  // namespace

Predictor::Predictor(const SearchInput& input)
    : input_(input),
      max_distinct_(std::min(input.geometry.expert.experts, input.geometry.expert.top_k * input.base.max_batch)) {
  FT_CHECK(!input.models.empty() && !input.contexts.empty() && !input.batches.empty());
  FT_CHECK(input.batches.size() == input.sequences.size());
  for (size_t b = 0; b < input.batches.size(); ++b) {
    FT_CHECK(static_cast<int64_t>(input.sequences[b].size()) == input.batches[b]);
  }
}

const Predictor::Replays& Predictor::replays_of(const SlotUse& use) {
  Replays& found = replays_[use];
  if (found != nullptr) return found;
  ReplayOptions options;
  options.slots = use.slots;
  options.fetch_of_misses = use.fetch_of_misses;
  options.promotions = use.promotions;
  options.start_full = use.start_full;
  options.discard_steps = input_.discard_steps;
  options.cache_policy = input_.base.cache_policy;
  options.max_distinct = max_distinct_;
  options.max_prefetches = use.max_prefetches;
  options.fill_first = true;
  options.content_of_middle = true;
  std::vector<ReplayResult> results;
  for (const auto& sequences : input_.sequences) results.push_back(replay(sequences, options));
  found = std::make_shared<const std::vector<ReplayResult>>(std::move(results));
  return found;
}

const std::vector<ReplayResult>& Predictor::replays(const SlotUse& use) { return *replays_of(use); }

CostParameters Predictor::cost_of(const CandidateSpec& spec, const CostParameters& fitted) const {
  return engaged_cost(fitted, spec.mechanism, look_ahead_of(spec.use));
}

std::vector<double> Predictor::rates(const CostParameters& cost, const DenseCost& dense,
                                     const std::vector<ReplayResult>& replays) const {
  std::vector<double> rates;
  for (const int64_t context : input_.contexts) {
    for (size_t b = 0; b < input_.batches.size(); ++b) {
      const double seconds = step_seconds(cost, dense, input_.base.device, context, replays[b]);
      rates.push_back(static_cast<double>(input_.batches[b]) / std::max(seconds, kLeastStepSeconds));
    }
  }
  return rates;
}

double Predictor::score(const CandidateSpec& spec) {
  const ThreadModel& model = input_.models[spec.model];
  return geometric_mean(rates(cost_of(spec, model.cost.cost), model.dense.cost, replays(spec.use)));
}

CandidatePrediction Predictor::predict(const CandidateSpec& spec) {
  const ThreadModel& model = input_.models[spec.model];
  CandidatePrediction candidate;
  candidate.replays = replays_of(spec.use);
  const std::vector<ReplayResult>& results = *candidate.replays;
  candidate.config = input_.base;
  candidate.config.strategy = spec.strategy;
  candidate.config.threads = spec.threads;
  candidate.config.slots = spec.use.slots;
  candidate.config.fetch_of_misses = spec.use.fetch_of_misses;
  candidate.config.promote_bytes_per_layer = spec.use.promotions.bytes(input_.formats.expert_bytes_max);
  candidate.config.look_ahead = look_ahead_of(spec.use);
  candidate.config.max_prefetches_per_layer = spec.use.max_prefetches;
  candidate.config.fetch_mechanism = spec.mechanism;
  candidate.split = spec.strategy == Strategy::kResident
                        ? "all resident"
                        : describe_split(spec.use.fetch_of_misses, spec.use.promotions);
  if (spec.use.max_prefetches > 0) candidate.split += "; prefetch " + std::to_string(spec.use.max_prefetches);
  if (spec.mechanism == FetchMechanism::kCopyEngine) candidate.split += "; copy engine";
  for (const ReplayResult& result : results) candidate.hit_rate.push_back(result.hit_rate);
  const CostParameters cost = cost_of(spec, model.cost.cost);
  candidate.tok_s = rates(cost, model.dense.cost, results);
  candidate.score = geometric_mean(candidate.tok_s);
  for (const int64_t context : input_.contexts) {
    for (const ReplayResult& result : results) {
      candidate.parts.push_back(step_parts(cost, model.dense.cost, input_.base.device, context, result));
    }
  }
  const size_t draws = std::min(model.cost.draws.size(), model.dense.draws.size());
  std::vector<std::vector<double>> points(candidate.tok_s.size());
  for (size_t i = 0; i < draws; ++i) {
    const std::vector<double> drawn = rates(cost_of(spec, model.cost.draws[i]), model.dense.draws[i], results);
    for (size_t p = 0; p < drawn.size(); ++p) points[p].push_back(drawn[p]);
    candidate.score_draws.push_back(geometric_mean(drawn));
  }
  const double tail = (1 - kFitConfidence) / 2;
  for (size_t p = 0; p < points.size(); ++p) {
    const double centre = candidate.tok_s[p];
    candidate.low.push_back(draws == 0 ? centre : std::min(centre, quantile(points[p], tail)));
    candidate.high.push_back(draws == 0 ? centre : std::max(centre, quantile(points[p], 1 - tail)));
  }
  return candidate;
}

}  // namespace ft
