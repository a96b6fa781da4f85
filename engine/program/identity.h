// Collects the identity of this host, this build and a model folder, for ft-engine's check and ft-tune's profile.
#pragma once

#include <optional>

#include "engine/engine_config.h"
#include "engine/model/family.h"
#include "kernels/cuda/device.h"
#include "kernels/host/topology.h"
#include "profiles/identity.h"

namespace ft {

// gpu: of the device that serves; none on the host device, whatever GPUs the machine has.
HostIdentity collect_host_identity(const HostTopology& topology, const CpuBudget& cpus,
                                   const std::optional<cuda::DeviceFacts>& gpu);
BuildIdentity collect_build_identity();
// Reads config.json, the tensor headers and samples of the weights. Throws Error when the folder is not a checkpoint.
ModelIdentity collect_model_identity(const Family& family, const WeightSource& source);

}  // namespace ft
