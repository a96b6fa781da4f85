#include "tuner/prediction.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr std::string_view kThreads = ".threads=";

[[noreturn]] void refuse(std::string what, std::string path, std::string value, std::string allowed) {
  throw Error(ErrorKind::kUsage, {.what = "profile refused, " + std::move(what),
                                  .value = std::move(value),
                                  .allowed = std::move(allowed),
                                  .path = std::move(path)});
}

// "s_c.threads=2" -> "s_c", 2; threads 0 for a name without.
struct Name {
  std::string_view term;
  int threads = 0;
};
Name split_name(std::string_view name) {
  const size_t at = name.find(kThreads);
  if (at == std::string_view::npos) return {name, 0};
  int threads = 0;
  for (const char c : name.substr(at + kThreads.size())) {
    if (c < '0' || c > '9' || threads > kMaxThreads) return {name, 0};
    threads = 10 * threads + (c - '0');
  }
  return {name.substr(0, at), threads > kMaxThreads ? 0 : threads};
}

std::string joined(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<int> model_threads(const CostModelRecord& record) {
  std::set<int> threads;
  for (const Parameter& parameter : record.parameters) {
    const Name name = split_name(parameter.name);
    if (name.threads > 0) threads.insert(name.threads);
  }
  return {threads.begin(), threads.end()};
}

ProfileModel model_of(const CostModelRecord& record, int threads) {
  const std::vector<int> known = model_threads(record);
  if (std::find(known.begin(), known.end(), threads) == known.end()) {
    refuse("no cost model for this thread count", "$.cost_model.parameters", std::to_string(threads), joined(known));
  }
  ProfileModel model;
  model.cost.threads = model.dense.threads = threads;
  for (const Parameter& parameter : record.parameters) {
    const Name name = split_name(parameter.name);
    if (name.threads != threads) continue;
    for (const CostTermInfo& term : cost_terms()) {
      if (name.term == term.name) model.cost[term.term] = parameter.value;
    }
    if (name.term == "dense_fixed") model.dense.fixed = parameter.value;
    if (name.term == "dense_per_token") model.dense.per_token = parameter.value;
    if (name.term == "dense_per_position") model.dense.per_position = parameter.value;
    if (name.term == "dense_per_further_position") model.dense.per_further_position = parameter.value;
  }
  return model;
}

int moe_layers_of(const CostModelRecord& record) {
  for (const Parameter& parameter : record.parameters) {
    if (parameter.name != kMoeLayersParameter) continue;
    const double layers = parameter.value;
    if (layers >= 1 && layers <= kMaxLayers && layers == std::floor(layers)) return static_cast<int>(layers);
    refuse("value refused", "$.cost_model.parameters", "moe_layers " + std::to_string(layers),
           "a whole number, 1 to " + std::to_string(kMaxLayers));
  }
  refuse("a cost model that cannot predict again", "$.cost_model.parameters", "no moe_layers",
         "profiles from version 1.4 on, as ft-tune writes them");
}

int model_threads_of(const CostModelRecord& record, Device device, Strategy strategy, int threads) {
  const bool pool_works = device == Device::kHost || strategy == Strategy::kCpu || strategy == Strategy::kHybrid;
  const std::vector<int> known = model_threads(record);
  return pool_works || known.empty() || std::find(known.begin(), known.end(), threads) != known.end() ? threads
                                                                                                      : known.front();
}

Device device_of(const Profile& profile) {
  for (const Device device : {Device::kHost, Device::kCuda}) {
    if (profile.conditions.device == device_name(device)) return device;
  }
  refuse("value refused", "$.conditions.device", profile.conditions.device, "host or cuda");
}

namespace {

ReplayResult replay_of(const CandidateReplay& record, int layers) {
  ReplayResult result;
  result.layers = layers;
  result.hit_rate = record.hit_rate;
  int64_t times = 0;
  for (const ReplayedCounts& entry : record.counts) {
    LayerCounts counts;
    counts.tokens = entry.tokens;
    counts.hits = entry.hits;
    counts.fetched = entry.fetched;
    counts.cpu = entry.cpu;
    counts.promoted = entry.promoted;
    counts.hit_picks = entry.hit_picks;
    counts.fetched_picks = entry.fetched_picks;
    counts.cpu_picks = entry.cpu_picks;
    counts.prefetched = entry.prefetched;
    result.distribution.push_back({counts, entry.times});
    times += entry.times;
    result.prefetched += entry.times * entry.prefetched;
  }
  result.steps = times / layers;
  if (result.steps == 0 || times % layers != 0) {
    refuse("value refused", "$.candidates[].replays[].counts", std::to_string(times) + " layers",
           "a multiple of " + std::to_string(layers) + ", the MoE layers of a step");
  }
  return result;
}

}  // namespace

CandidateModel candidate_model(const Profile& profile, const Candidate& candidate) {
  FT_CHECK(!candidate.replays.empty());
  const auto strategy = strategy_by_name(candidate.strategy);
  if (!strategy) refuse("value refused", "$.candidates[].strategy", candidate.strategy, "a strategy");
  const std::string mechanism_name = candidate.fetch_mechanism.empty() ? std::string("sm") : candidate.fetch_mechanism;
  const auto mechanism = fetch_mechanism_by_name(mechanism_name);
  if (!mechanism) refuse("value refused", "$.candidates[].fetch_mechanism", mechanism_name, "sm or copy_engine");
  CandidateModel model;
  model.device = device_of(profile);
  const int threads = model_threads_of(profile.cost_model, model.device, *strategy, candidate.threads);
  const ProfileModel fitted = model_of(profile.cost_model, threads);
  const bool looks_ahead = candidate.max_prefetches_per_layer.value_or(0) > 0;
  model.cost = engaged_cost(fitted.cost, *mechanism, looks_ahead ? LookAhead::kRouter : LookAhead::kOff);
  model.dense = fitted.dense;
  const int layers = moe_layers_of(profile.cost_model);
  const std::vector<int64_t>& batches = profile.conditions.batches;
  const bool same = candidate.replays.size() == batches.size() &&
                    std::equal(batches.begin(), batches.end(), candidate.replays.begin(),
                               [](int64_t batch, const CandidateReplay& replay) { return batch == replay.batch; });
  if (!same) {
    refuse("value refused", "$.candidates[].replays", std::to_string(candidate.replays.size()) + " replays",
           "one for each of conditions.batches, in their order");
  }
  for (const CandidateReplay& replay : candidate.replays) {
    for (const ReplayedCounts& counts : replay.counts) {
      if (counts.tokens == replay.batch) continue;
      refuse("value refused", "$.candidates[].replays[].counts[].tokens", std::to_string(counts.tokens),
             std::to_string(replay.batch) + ", the batch of the replay");
    }
    model.replays.push_back(replay_of(replay, layers));
  }
  return model;
}

std::vector<double> predicted_rates(const CandidateModel& model, const std::vector<int64_t>& contexts) {
  std::vector<double> rates;
  for (const int64_t context : contexts) {
    for (const ReplayResult& replay : model.replays) {
      const double seconds = step_seconds(model.cost, model.dense, model.device, context, replay);
      rates.push_back(replay.distribution[0].counts.tokens / std::max(seconds, kLeastStepSeconds));
    }
  }
  return rates;
}

CandidateReplay replay_record(const ReplayResult& replay, int64_t batch) {
  CandidateReplay record;
  record.batch = batch;
  record.hit_rate = replay.hit_rate;
  for (const WeightedCounts& entry : replay.distribution) {
    const LayerCounts& n = entry.counts;
    record.counts.push_back({entry.times, n.tokens, n.hits, n.fetched, n.cpu, n.promoted, n.hit_picks, n.fetched_picks,
                             n.cpu_picks, n.prefetched});
  }
  return record;
}

}  // namespace ft
