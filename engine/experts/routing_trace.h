// Which experts a sequence of decode tokens chose, per MoE layer: recorded from the real router, or generated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ft {

struct RoutingTrace {
  std::string source;  // "recorded: prompts v1", "preset qwen3-30b", "file PATH"
  int layers = 0;      // MoE layers
  int experts = 0;
  int top_k = 0;
  int64_t tokens = 0;        // consecutive decode tokens of one sequence
  std::vector<int16_t> ids;  // (tokens, layers, top_k), best first

  std::span<const int16_t> at(int64_t token, int layer) const {
    return {ids.data() + (token * layers + layer) * top_k, static_cast<size_t>(top_k)};
  }
};

struct TraceStatistics {
  double next_token_overlap = 0;  // mean share of a token's picks that the token before made
  double within_8 = 0;            // picks that one of the 8 tokens before made
};
TraceStatistics trace_statistics(const RoutingTrace& trace);

// JSON files of schemas/routing_trace.schema.json. Throws Error with the JSON path.
RoutingTrace read_routing_trace(const std::string& path);
void write_routing_trace(const std::string& path, const RoutingTrace& trace);

// Calibrated generator: per layer logit_e(t) = s a_e + m u_e(t) + n_e(t); a, n ~ N(0,1), u AR(1) with phi; pick top-k.
struct RoutingPreset {
  std::string_view name;  // "qwen3-30b", "gemma4-26b", "q38-diverse", ...
  double s = 0, m = 0, phi = 0;
};
std::span<const RoutingPreset> routing_presets();
// Throws Error listing the presets. Geometry comes from the caller; `sequence` varies u, keeping a (batches).
RoutingTrace generate_trace(std::string_view preset, int layers, int experts, int top_k, int64_t tokens, uint64_t seed,
                            uint64_t sequence = 0);

}  // namespace ft
