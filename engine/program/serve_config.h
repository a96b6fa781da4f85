// From a profile's `serve` section to the engine's configuration: the only place that knows both.
#pragma once

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "engine/experts/routing_trace.h"
#include "engine/model/geometry.h"
#include "kernels/host/topology.h"
#include "profiles/profile.h"

namespace ft {

// model_path: --model, or empty for the profile's own. Throws Error(kUsage) with the JSON path when neither is there or
// a value means nothing to this build.
EngineConfig engine_config_from_serve(const Serve& serve, const std::string& model_path);

// What the machine offers, capped by the limits the config carries.
MemoryInputs memory_inputs(const EngineConfig& config, const MemoryBudget& budget);

// Expert choices for synthetic weights: a preset's name, or the path of a recorded trace, which must fit the geometry.
inline constexpr int64_t kSyntheticTraceTokens = 2048;  // then it repeats
RoutingTrace routing_for(const std::string& preset_or_path, const ModelGeometry& geometry, uint64_t seed);

}  // namespace ft
