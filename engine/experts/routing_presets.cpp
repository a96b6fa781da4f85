#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "engine/engine_config.h"
#include "engine/experts/routing_trace.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

// Parameters fitted by simulation to published measurements of the models' real routers: overlap of neighbouring tokens
// and hit rates of a least-recently-used cache per layer. `uniform` is what a benchmark must not use silently.
constexpr RoutingPreset kPresets[] = {
    {"qwen3-30b", 0.6, 1.7, 0.98, 128, 8},      // Qwen3-30B-A3B, three prompts of 512 tokens
    {"gemma4-26b", 1.3, 1.3, 0.95, 128, 8},     // Gemma-4-26B-A4B
    {"q38-diverse", 0.4, 0.8, 0.85, 512, 10},   // Qwen3.8-Flash-Next, 300 tokens of diverse prose
    {"q38-mixed", 0.2, 1.1, 0.99, 512, 10},     // same model, code, maths, prose, several languages
    {"q38-agentic", 0.4, 2.2, 0.997, 512, 10},  // same model, one long agent session
    {"diverse", 0.4, 0.8, 0.85, 512, 10},  // the same three under the names of their workloads, for any geometry
    {"mixed", 0.2, 1.1, 0.99, 512, 10},
    {"agentic", 0.4, 2.2, 0.997, 512, 10},
    {"q38-agentic-mild", 0.2, 1.6, 0.995, 512, 10},
    {"glm-4.7-flash", 0.6, 1.0, 0.95, 64, 4},  // GLM-4.7-Flash, 96 greedy steps
    {"dsv4-flat", 0.8, 0.0, 0.0, 256, 6},      // DeepSeek-V4-Flash, long text: skewed, nearly no locality in time
    {"qwen3.5-35b", 0.4, 1.2, 0.97, 256, 8},   // no published target: between its neighbours
    {"uniform", 0.0, 0.0, 0.0, 128, 8},
};

// Streams that must not share random numbers.
constexpr uint64_t kSkewStream = 1, kDriftStream = 2, kPredictionStream = 3;

void check_geometry(int layers, int experts, int top_k, int64_t tokens) {
  const auto require = [](const char* name, int64_t value, int64_t high) {
    if (value >= 1 && value <= high) return;
    throw Error(ErrorKind::kUsage, {.what = std::string("routing cannot be generated: ") + name,
                                    .value = std::to_string(value),
                                    .allowed = "1 to " + std::to_string(high)});
  };
  require("layers", layers, kMaxLayers);
  require("experts", experts, kMaxExperts);
  require("top_k", top_k, std::min<int64_t>(kMaxTopK, experts));
  require("tokens", tokens, kMaxTraceTokens);
  require("tokens * layers * top_k", tokens * layers * top_k, kMaxTracePicks);
}

// One layer's picks, written to their places in the trace.
void generate_layer(const RoutingPreset& preset, int layer, uint64_t seed, uint64_t sequence, RoutingTrace& trace) {
  const auto experts = static_cast<size_t>(trace.experts);
  const uint64_t layer_seed = mix64(seed ^ mix64(static_cast<uint64_t>(layer)));
  Random skew_random(mix64(layer_seed + kSkewStream));
  Random random(mix64(mix64(layer_seed + kDriftStream) ^ mix64(sequence)));
  std::vector<double> skew(experts), drift(experts), logit(experts);
  for (double& a : skew) a = preset.s * skew_random.normal();
  for (double& u : drift) u = random.normal();
  std::vector<int16_t> order(experts);
  const double fresh = std::sqrt(1 - preset.phi * preset.phi);
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (size_t e = 0; e < experts; ++e) {
      if (preset.m > 0 && token > 0) drift[e] = preset.phi * drift[e] + fresh * random.normal();
      logit[e] = skew[e] + preset.m * drift[e] + random.normal();
    }
    std::iota(order.begin(), order.end(), int16_t{0});
    std::partial_sort(order.begin(), order.begin() + trace.top_k, order.end(), [&](int16_t a, int16_t b) {
      const double la = logit[static_cast<size_t>(a)], lb = logit[static_cast<size_t>(b)];
      return la != lb ? la > lb : a < b;
    });
    std::copy_n(order.begin(), trace.top_k, trace.ids.begin() + (token * trace.layers + layer) * trace.top_k);
  }
}

}  // namespace

std::string routing_preset_names() {
  std::string names;
  for (const RoutingPreset& preset : kPresets) {
    if (!names.empty()) names += ", ";
    names += preset.name;
  }
  return names;
}

std::span<const RoutingPreset> routing_presets() { return kPresets; }

const RoutingPreset* find_routing_preset(std::string_view name) {
  for (const RoutingPreset& preset : kPresets) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

RoutingTrace generate_trace(std::string_view preset, int layers, int experts, int top_k, int64_t tokens, uint64_t seed,
                            uint64_t sequence) {
  const RoutingPreset* found = find_routing_preset(preset);
  if (found == nullptr) {
    throw Error(ErrorKind::kUsage, {.what = "no such routing preset",
                                    .value = std::string(preset),
                                    .allowed = routing_preset_names(),
                                    .action = "name one of these, or the file of a recorded trace"});
  }
  check_geometry(layers, experts, top_k, tokens);
  RoutingTrace trace;
  trace.source = "preset " + std::string(preset);
  trace.layers = layers;
  trace.experts = experts;
  trace.top_k = top_k;
  trace.tokens = tokens;
  trace.ids.resize(static_cast<size_t>(tokens * layers * top_k));
  for (int layer = 0; layer < layers; ++layer) generate_layer(*found, layer, seed, sequence, trace);
  return trace;
}

namespace {

struct PredictionRates {
  double precision = 0, recall = 0;
};

constexpr std::string_view kLookAheadSuffix = "+lookahead:";

[[noreturn]] void refuse_rates(const std::string& value) {
  throw Error(ErrorKind::kUsage, {.what = "rates of routing predictions out of range",
                                  .value = value,
                                  .allowed = "PRECISION/RECALL, both above 0 and at most 1",
                                  .action = "write for example mixed+lookahead:0.8/0.7"});
}

// "mixed+lookahead:0.8/0.7" -> "mixed" and the rates. No suffix: none.
std::optional<PredictionRates> take_rates(std::string& preset) {
  const size_t at = preset.find(kLookAheadSuffix);
  if (at == std::string::npos) return std::nullopt;
  const std::string text = preset.substr(at + kLookAheadSuffix.size());
  preset.resize(at);
  PredictionRates rates;
  const char *begin = text.data(), *end = begin + text.size();
  const auto precision = std::from_chars(begin, end, rates.precision);
  if (precision.ec != std::errc{} || precision.ptr == end || *precision.ptr != '/') refuse_rates(text);
  const auto recall = std::from_chars(precision.ptr + 1, end, rates.recall);
  if (recall.ec != std::errc{} || recall.ptr != end) refuse_rates(text);
  return rates;
}

// Distinct experts that the token did not choose go to the end of `drawn`.
void draw_wrong(std::span<const int16_t> chosen, int experts, int64_t count, Random& random,
                std::vector<int16_t>& drawn) {
  const auto has = [](std::span<const int16_t> ids, int16_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  while (count > 0) {
    const auto id = static_cast<int16_t>(random.below(static_cast<uint64_t>(experts)));
    if (has(chosen, id) || has(drawn, id)) continue;
    drawn.push_back(id);
    --count;
  }
}

}  // namespace

void draw_predictions(RoutingTrace& trace, double precision, double recall, uint64_t seed) {
  if (!(precision > 0 && precision <= 1 && recall > 0 && recall <= 1)) {
    refuse_rates(std::to_string(precision) + "/" + std::to_string(recall));
  }
  const double wrong = trace.top_k * recall * (1 - precision) / precision;  // per token and layer, on average
  const auto most = static_cast<int64_t>(trace.top_k) + static_cast<int64_t>(std::ceil(wrong));
  const int64_t bound = std::min<int64_t>(kMaxTracePredictions, trace.experts);
  if (most > bound) {
    throw Error(ErrorKind::kUsage, {.what = "so many experts cannot be predicted for a token and layer",
                                    .value = std::to_string(most),
                                    .allowed = "up to " + std::to_string(bound),
                                    .action = "raise the precision"});
  }
  trace.predictions = static_cast<int>(most);
  trace.predicted.assign(static_cast<size_t>(trace.tokens * trace.layers * most), int16_t{-1});
  Random random(mix64(seed + kPredictionStream));
  std::vector<int16_t> drawn;
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (int layer = 1; layer < trace.layers; ++layer) {
      drawn.clear();
      for (const int16_t id : trace.at(token, layer)) {
        if (random.uniform() < recall) drawn.push_back(id);
      }
      const double floor = std::floor(wrong);
      draw_wrong(trace.at(token, layer), trace.experts,
                 static_cast<int64_t>(floor) + (random.uniform() < wrong - floor ? 1 : 0), random, drawn);
      for (size_t i = drawn.size(); i > 1; --i) std::swap(drawn[i - 1], drawn[random.below(i)]);
      std::copy(drawn.begin(), drawn.end(), trace.predicted.begin() + (token * trace.layers + layer) * most);
    }
  }
}

RoutingTrace synthetic_routing(const std::string& preset_or_path, int layers, int experts, int top_k, int64_t tokens,
                               uint64_t seed) {
  std::error_code ignored;
  const bool is_file =
      find_routing_preset(preset_or_path) == nullptr && std::filesystem::exists(preset_or_path, ignored);
  if (!is_file) {  // neither: the generator's error lists the presets
    std::string preset = preset_or_path;
    const std::optional<PredictionRates> rates = take_rates(preset);
    const int64_t per_layer = top_k + (rates ? kMaxTracePredictions : 0);
    const int64_t most = kMaxTracePicks / std::max<int64_t>(1, layers * per_layer);
    RoutingTrace trace = generate_trace(preset, layers, experts, top_k, std::min(tokens, most), seed);
    if (rates) {
      draw_predictions(trace, rates->precision, rates->recall, seed);
      trace.source = "preset " + preset_or_path;
    }
    return trace;
  }
  RoutingTrace trace = read_routing_trace(preset_or_path);
  if (trace.layers != layers || trace.experts != experts || trace.top_k != top_k) {
    const auto shape = [](int l, int e, int k) {
      return std::to_string(l) + " MoE layers, " + std::to_string(e) + " experts, top " + std::to_string(k);
    };
    throw Error(ErrorKind::kUsage, {.what = "the routing trace is of another model",
                                    .value = shape(trace.layers, trace.experts, trace.top_k),
                                    .allowed = shape(layers, experts, top_k),
                                    .action = "record a trace with this model, or name a preset",
                                    .path = preset_or_path});
  }
  return trace;
}

}  // namespace ft
