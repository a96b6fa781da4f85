// This host and a model folder as a start of the engine compares them with a profile: what ft-engine refuses by and
// ft-tune check shows.
#pragma once

#include <memory>
#include <optional>

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "engine/model/family.h"
#include "kernels/cuda/device.h"
#include "kernels/host/topology.h"
#include "profiles/profile.h"

namespace ft {

struct ServedHost {
  CpuBudget cpus;
  MemoryInputs memory;  // what it offers, capped by the limits of the configuration
  HostIdentity identity;
};
// gpu: of start_served_device. Throws Error(kFailed) when the topology cannot be read, kUsage for an FT_ISA that the
// engine would refuse.
ServedHost inspect_host(const EngineConfig& config, const std::optional<cuda::DeviceFacts>& gpu);

struct ServedModel {
  std::shared_ptr<const Family> family;
  ModelFormats formats;
  ModelIdentity identity;
};
// Reads config.json, the tensor headers and samples of the weights. Throws Error when the folder is no model of ours.
ServedModel inspect_model(const WeightSource& source);

// A profile remembers where the model was; when it is no longer there, the user can say where it is. Throws
// Error(kFailed) unless `model_path` (--model) is given, the profile names no folder or the folder is there.
void require_recorded_folder(const Serve& serve, const std::optional<std::string>& model_path);

}  // namespace ft
