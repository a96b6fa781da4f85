#include "tuner/analysis.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "tuner/decide.h"
#include "tuner/expected.h"
#include "tuner/measurements.h"
#include "tuner/routing_record.h"

namespace ft {
namespace {

constexpr uint64_t kFitSeed = 7;
// Expert uses of one replay; longer traces are cut to their first tokens. 512 tokens of 48 layers with 8 experts each.
// A use takes about 0.15 us (one core at 3.7 GHz), so that kMaxReplays replays of two batches take at most 10 s.
constexpr int64_t kMaxReplayUses = 200'000;
constexpr double kWarmSteps = 0.25;  // of a trace: they fill the replayed cache and are not counted

int moe_layers(const AnalysisInput& input) { return static_cast<int>(input.geometry.moe_layers.size()); }

Serve serve_section(const AnalysisInput& input, const CandidatePrediction& chosen) {
  Serve serve;
  const EngineConfig& config = chosen.config;
  serve.device = device_name(config.device);
  serve.strategy = strategy_name(config.strategy);
  serve.model_path = config.weights.model_path;
  if (config.weights.synthetic) {
    serve.synthetic_seed = config.weights.synthetic_seed;
    serve.routing_preset = config.weights.routing_preset;
  }
  serve.threads = config.threads;
  serve.pinning = config.pinning;
  serve.pinning.resize(std::min(serve.pinning.size(), static_cast<size_t>(config.threads)));
  serve.slots = config.slots;
  if (config.strategy != Strategy::kResident) serve.fetch_of_misses = config.fetch_of_misses;
  serve.promote_bytes_per_layer = config.promote_bytes_per_layer;
  serve.cache_policy = cache_policy_name(config.cache_policy);
  if (config.look_ahead != LookAhead::kOff) {
    serve.look_ahead = look_ahead_name(config.look_ahead);
    serve.max_prefetches_per_layer = config.max_prefetches_per_layer;
  }
  serve.max_batch = config.max_batch;
  serve.max_context = config.max_context;
  serve.prefill_chunk = config.prefill_chunk;
  serve.device_memory_limit_bytes = config.device_memory_limit_bytes;
  // Stats compare steps with one sequence, so a rate of a batch would be no prediction of theirs.
  serve.predicted_tok_s = input.batches[0] == 1 ? chosen.tok_s[0] : 0;
  if (config.fetch_mechanism != FetchMechanism::kSm) {
    serve.fetch_mechanism = fetch_mechanism_name(config.fetch_mechanism);
  }
  if (config.link_slowdown != 1) serve.link_slowdown = config.link_slowdown;
  serve.ceiling_gbps = ceiling_gbps(input.measurements, config);
  return serve;
}

// What the engine watches in service.
void add_expectations(const AnalysisInput& input, const Analysis& analysis, const Candidate& candidate, size_t chosen,
                      Serve& serve) {
  const std::vector<CandidatePrediction>& ranked = analysis.search.ranked;
  ExpectedInput expected{
      .prediction = &ranked[chosen], .candidate = &candidate, .contexts = input.contexts, .batches = input.batches};
  const auto confirmed = std::find(analysis.confirmed.begin(), analysis.confirmed.end(), chosen);
  for (const int64_t context : input.contexts) {
    for (const int64_t batch : input.batches) {
      const auto index = static_cast<size_t>(confirmed - analysis.confirmed.begin());
      const Measurement* series = decode_series(input.measurements, index, context, batch);
      expected.measured_there.push_back(series != nullptr && is_filled(*series));
    }
  }
  serve.expected = expected_points(expected);
  serve.fallback = fallback_for(ranked[chosen], ranked, input.contexts, input.batches);
}

}  // namespace

SearchInput search_input(const AnalysisInput& from, const std::vector<ThreadModel>& models) {
  FT_CHECK(from.trace != nullptr && !from.contexts.empty() && !from.batches.empty());
  SearchInput input;
  input.geometry = from.geometry;
  input.formats = from.formats;
  input.base = from.base;
  input.memory = from.memory;
  input.models = models;
  input.contexts = from.contexts;
  input.batches = from.batches;
  for (const int64_t batch : input.batches) {
    if (from.trace->tokens < batch) {
      throw Error(ErrorKind::kFailed, {.what = "routing trace too short for the batch",
                                       .value = std::to_string(from.trace->tokens) + " tokens",
                                       .allowed = "at least " + std::to_string(batch),
                                       .action = "give a larger --budget or a smaller --batch"});
    }
    input.sequences.push_back(cut_sequences(split_trace(*from.trace, static_cast<int>(batch)), kMaxReplayUses));
  }
  int64_t shortest = from.trace->tokens;
  for (const auto& sequences : input.sequences) shortest = std::min(shortest, sequences.front().tokens);
  input.discard_steps = static_cast<int64_t>(kWarmSteps * static_cast<double>(shortest));
  input.strategy = from.strategy;
  input.slots = from.slots;
  input.slots_asked = from.slots_asked;
  input.threads = from.threads;
  input.cores = from.cores;
  return input;
}

Analysis analyze(const AnalysisInput& input) {
  Analysis analysis;
  analysis.models = fit_models(input.measurements, input.base.device, moe_layers(input), kFitSeed);
  const SearchInput question = search_input(input, analysis.models);
  analysis.search = search(question);
  analysis.routing = routing_record(question);
  analysis.confirmed = candidates_to_confirm(analysis.search);
  return analysis;
}

DecodeCandidate decode_candidate(std::string name, const CandidatePrediction& candidate, const SearchInput& input) {
  DecodeCandidate decode{std::move(name), candidate.config, {}};
  if (candidate.replays == nullptr) return decode;
  for (size_t b = 0; b < input.batches.size(); ++b) {
    const ReplayResult& replayed = (*candidate.replays)[b];
    DecodeStart start{replayed.content, {}};
    for (const TraceSequence& sequence : input.sequences[b]) {
      start.trace_tokens.push_back(sequence.begin + replayed.content_step);
    }
    decode.starts.push_back(std::move(start));
  }
  return decode;
}

std::vector<DecodeCandidate> decode_candidates(const AnalysisInput& input, const Analysis& analysis) {
  const SearchInput question = search_input(input, analysis.models);
  std::vector<DecodeCandidate> candidates;
  for (const size_t index : analysis.confirmed) {
    const CandidatePrediction& candidate = analysis.search.ranked[index];
    std::string name = fmt::format("{}.slots={}.threads={}", strategy_name(candidate.config.strategy),
                                   candidate.config.slots, candidate.config.threads);
    if (candidate.config.fetch_mechanism == FetchMechanism::kCopyEngine) name += ".copy_engine";
    if (candidate.config.look_ahead != LookAhead::kOff) {
      name += fmt::format(".look_ahead={}", candidate.config.max_prefetches_per_layer);
    }
    candidates.push_back(decode_candidate(std::move(name), candidate, question));
  }
  return candidates;
}

Conclusion conclude(const AnalysisInput& input, const Analysis& analysis) {
  DecideInput question;
  question.search = &analysis.search;
  question.measured = analysis.confirmed;
  question.measurements = input.measurements;
  question.contexts = input.contexts;
  question.batches = input.batches;
  question.moe_layers = moe_layers(input);
  question.forced = input.forced;
  Decided decided = decide(question);
  Conclusion conclusion;
  conclusion.cost_model = cost_model_record(analysis.models, moe_layers(input));
  conclusion.candidates = std::move(decided.candidates);
  conclusion.routing = analysis.routing;
  conclusion.decision = std::move(decided.decision);
  conclusion.serve = serve_section(input, analysis.search.ranked[decided.chosen]);
  add_expectations(input, analysis, conclusion.candidates[0], decided.chosen, conclusion.serve);
  return conclusion;
}

}  // namespace ft
