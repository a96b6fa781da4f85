// From a profile's `serve` section to the engine's configuration: the only place that knows both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "engine/model/geometry.h"
#include "kernels/base/error.h"
#include "kernels/cuda/device.h"
#include "kernels/host/topology.h"
#include "profiles/profile.h"

namespace ft {

// model_path: --model, or empty for the profile's own. Throws Error(kUsage) with the JSON path when neither is there or
// a value means nothing to this build.
EngineConfig engine_config_from_serve(const Serve& serve, const std::string& model_path);

// Makes a cuda profile's device the one that this process uses, and gives its facts; nothing with a host profile.
// Throws Error(kUsage) with the JSON path when there is no device, kFailed when it cannot be used.
std::optional<cuda::DeviceFacts> start_served_device(const EngineConfig& config);

// Values of `serve` that this host or this model cannot have: threads, CPUs to pin to, lengths, slots, the split table.
struct ServeCheck {
  std::vector<Error> refusals;     // kUsage with the JSON path, kFailed when the memory does not suffice
  std::optional<MemoryPlan> plan;  // absent when lengths, slots, split or memory are refused
};
// Threads and CPUs to pin to only: they need no model.
std::vector<Error> check_serve_cpus(const EngineConfig& config, const CpuBudget& cpus);
ServeCheck check_serve(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& memory, const CpuBudget& cpus);
// The plan, or throws the first refusal.
MemoryPlan check_serve_fits(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                            const MemoryInputs& memory, const CpuBudget& cpus);

// What the machine offers, capped by the limits the config carries. gpu: of start_served_device.
MemoryInputs memory_inputs(const EngineConfig& config, const MemoryBudget& budget,
                           const std::optional<cuda::DeviceFacts>& gpu);

}  // namespace ft
