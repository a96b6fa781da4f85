// Which experts a sequence of decode tokens chose, per MoE layer: recorded from the real router, or generated. With
// what was predicted for each layer one layer before, if a look-ahead was on or asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/json.h"

namespace ft {

inline constexpr int64_t kMaxTraceTokens = 65536;
// Bound on tokens * layers * (top_k + predictions), so that a trace that is written can be read under
// kFileJsonLimits: 2.5 M picks are at most 7.5 M JSON values (ids and, with top_k 1, two arrays around each).
inline constexpr int64_t kMaxTracePicks = 2'500'000;

struct RoutingTrace {
  std::string source;  // "recorded: prompts v1", "preset qwen3-30b", "file PATH"
  int layers = 0;      // MoE layers
  int experts = 0;
  int top_k = 0;
  int64_t tokens = 0;              // consecutive decode tokens of one sequence
  std::vector<int16_t> ids;        // (tokens, layers, top_k), best first
  int predictions = 0;             // most experts predicted per token and layer; 0: none were
  std::vector<int16_t> predicted;  // (tokens, layers, predictions), best first; -1, trailing only: no prediction

  std::span<const int16_t> predicted_at(int64_t token, int layer) const {
    return {predicted.data() + (token * layers + layer) * predictions, static_cast<size_t>(predictions)};
  }

  std::span<const int16_t> at(int64_t token, int layer) const {
    return {ids.data() + (token * layers + layer) * top_k, static_cast<size_t>(top_k)};
  }
};

inline constexpr int kMaxTracePredictions = 64;  // per token and layer

// Throws Error(kUsage) that begins with `what` when counts are out of range, the number of ids or predicted ids does
// not match, an id is no expert, or a prediction names one expert twice. A pick may: where experts are chosen by token
// id, a row of the table can name one twice, and it then counts twice.
void check_routing_trace(const RoutingTrace& trace, const std::string& what);

struct TraceStatistics {
  double next_token_overlap = 0;  // mean share of a token's picks that the token before made
  double within_8 = 0;            // share of picks that one of the 8 tokens before made (fewer at the start)
};
TraceStatistics trace_statistics(const RoutingTrace& trace);

// How good predictions are, over all tokens and layers that have one.
struct PredictionStatistics {
  int64_t picks = 0, predicted = 0, right = 0;
  double precision() const { return predicted == 0 ? 0 : static_cast<double>(right) / static_cast<double>(predicted); }
  double recall() const { return picks == 0 ? 0 : static_cast<double>(right) / static_cast<double>(picks); }
};
PredictionStatistics prediction_statistics(const RoutingTrace& trace);

// JSON files of schemas/routing_trace.schema.json: {"version": "1.1.0", "source": text, "layers", "experts", "top_k",
// "tokens": integers, "ids": [token][layer][top_k], optionally "predicted": [token][layer][up to 64]}. Reading throws
// Error(kUsage) with file, JSON path, value and what is allowed; unknown keys and unknown major versions are refused.
// Writing is atomic.
RoutingTrace read_routing_trace(const std::string& path);
RoutingTrace parse_routing_trace(const Json& json, const std::string& source);
void write_routing_trace(const std::string& path, const RoutingTrace& trace);

// Calibrated generator: per layer logit_e(t) = s a_e + m u_e(t) + n_e(t); a, n ~ N(0,1), u AR(1) with phi; pick top-k.
// a is one draw per layer and seed (what the model and session prefer), u drifts (the topic), n is fresh every token.
// Fitted by simulation to published statistics of real models; tests/experts checks the fit.
struct RoutingPreset {
  std::string_view name;  // "qwen3-30b", "gemma4-26b", "q38-diverse", ...
  double s = 0, m = 0, phi = 0;
  int experts = 0, top_k = 0;  // of the model it was fitted to; other geometries may be generated
};
std::span<const RoutingPreset> routing_presets();
std::string routing_preset_names();                               // "qwen3-30b, gemma4-26b, ...": for help and errors
const RoutingPreset* find_routing_preset(std::string_view name);  // null when there is none
// Throws Error(kUsage) listing the presets, or naming the count that is out of range. Geometry comes from the caller;
// `sequence` varies u and n, keeping a (the sequences of a batch). Reproducible for a build: it uses libm.
RoutingTrace generate_trace(std::string_view preset, int layers, int experts, int top_k, int64_t tokens, uint64_t seed,
                            uint64_t sequence = 0);

// Predictions drawn at a stated precision and recall, for every layer but the first: each expert that the token chose
// is predicted with probability `recall`; wrong ones are drawn evenly from the other experts, as many as the precision
// leaves room for on average; in random order. A real router's wrong guesses are likelier to be cached already, so this
// is the harder case. Throws Error(kUsage) when a rate is out of (0, 1] or asks for more predictions than
// kMaxTracePredictions or experts.
void draw_predictions(RoutingTrace& trace, double precision, double recall, uint64_t seed);

// Expert choices for synthetic weights: a preset's name, possibly with "+lookahead:PRECISION/RECALL" behind it,
// generated with at most `tokens` tokens (fewer when the trace would be over kMaxTracePicks) and with predictions so
// drawn, or else the path of a recorded trace, which must fit the geometry. Throws Error(kUsage) listing the presets
// when it is neither, and naming both geometries when the trace is of another model.
RoutingTrace synthetic_routing(const std::string& preset_or_path, int layers, int experts, int top_k, int64_t tokens,
                               uint64_t seed);

}  // namespace ft
