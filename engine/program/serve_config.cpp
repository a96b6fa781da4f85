#include "engine/program/serve_config.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

Strategy required_strategy(const Serve& serve) {
  const auto strategy = strategy_by_name(serve.strategy);
  if (!strategy) {
    throw Error(ErrorKind::kUsage, {"profile refused", serve.strategy, "resident, offload, cpu or hybrid",
                                    "tune again with this version", "/serve/strategy"});
  }
  return *strategy;
}

}  // namespace

EngineConfig engine_config_from_serve(const Serve& serve, const std::string& model_path) {
  if (serve.device != device_name(Device::kHost)) {
    throw Error(ErrorKind::kUsage, {"profile refused", serve.device, "host: this build has no other device",
                                    "tune with --device host", "/serve/device"});
  }
  EngineConfig config;
  config.weights.model_path = model_path.empty() ? serve.model_path : model_path;
  if (config.weights.model_path.empty()) {
    throw Error(ErrorKind::kUsage,
                {"the profile names no model folder", "", "", "name it with --model DIR", "/serve/model_path"});
  }
  config.weights.synthetic = serve.synthetic_seed.has_value();
  config.weights.synthetic_seed = serve.synthetic_seed.value_or(0);
  config.weights.routing_preset = serve.routing_preset.value_or("");
  config.device = Device::kHost;
  config.strategy = required_strategy(serve);
  config.threads = serve.threads;
  config.slots = serve.slots;
  config.fetch_of_misses = serve.fetch_of_misses;
  config.promote_bytes_per_layer = serve.promote_bytes_per_layer;
  config.max_batch = serve.max_batch;
  config.max_context = serve.max_context;
  config.prefill_chunk = serve.prefill_chunk;
  config.device_memory_limit_bytes = serve.device_memory_limit_bytes;
  config.pinning = serve.pinning;
  return config;
}

MemoryInputs memory_inputs(const EngineConfig& config, const MemoryBudget& budget) {
  MemoryInputs inputs;
  inputs.device = config.device;
  inputs.host_memory_bytes =
      std::min(budget.available_bytes, config.host_memory_limit_bytes.value_or(budget.available_bytes));
  inputs.device_memory_bytes =
      std::min(inputs.host_memory_bytes, config.device_memory_limit_bytes.value_or(inputs.host_memory_bytes));
  return inputs;
}

RoutingTrace routing_for(const std::string& preset_or_path, const ModelGeometry& geometry, uint64_t seed) {
  const int layers = static_cast<int>(geometry.moe_layers.size());
  for (const RoutingPreset& preset : routing_presets()) {
    if (preset.name == preset_or_path) {
      return generate_trace(preset.name, layers, geometry.expert.experts, geometry.expert.top_k, kSyntheticTraceTokens,
                            seed);
    }
  }
  if (preset_or_path.find('/') == std::string::npos && preset_or_path.find('.') == std::string::npos) {
    // Not a path: the generator's error lists the presets.
    return generate_trace(preset_or_path, layers, geometry.expert.experts, geometry.expert.top_k, 1, seed);
  }
  RoutingTrace trace = read_routing_trace(preset_or_path);
  if (trace.layers != layers || trace.experts != geometry.expert.experts || trace.top_k != geometry.expert.top_k) {
    const auto shape = [](int l, int e, int k) {
      return std::to_string(l) + " MoE layers, " + std::to_string(e) + " experts, top " + std::to_string(k);
    };
    throw Error(ErrorKind::kUsage,
                {"the routing trace is of another model", shape(trace.layers, trace.experts, trace.top_k),
                 shape(layers, geometry.expert.experts, geometry.expert.top_k), "", preset_or_path});
  }
  return trace;
}

}  // namespace ft
