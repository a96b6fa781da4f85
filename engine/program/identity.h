// Collects the identity of this host, this build and a model folder, for ft-engine's check and ft-tune's profile.
#pragma once

#include "engine/engine_config.h"
#include "engine/model/family.h"
#include "kernels/host/topology.h"
#include "profiles/identity.h"

namespace ft {

HostIdentity collect_host_identity(const HostTopology& topology, const CpuBudget& cpus);
BuildIdentity collect_build_identity();
// Reads config.json, the tensor headers and samples of the weights. Throws Error when the folder is not a checkpoint.
ModelIdentity collect_model_identity(const Family& family, const WeightSource& source);

}  // namespace ft
