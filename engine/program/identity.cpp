#include "engine/program/identity.h"

#include "engine/model/checkpoint.h"
#include "engine/runtime/device.h"
#include "kernels/host/isa.h"
#include "profiles/build_info.h"

namespace ft {

HostIdentity collect_host_identity(const HostTopology& topology, const CpuBudget& cpus,
                                   const std::optional<cuda::DeviceFacts>& gpu) {
  HostIdentity host;
  host.cpu_model = topology.cpu_model;
  host.isa = isa_name(detect_isa());  // as CPUID reports it: the FT_ISA test override is not identity
  host.cores = topology.cores;
  host.affinity_cores = cpus.affinity_cores;
  host.quota_cores = cpus.quota_cores;
  host.numa_nodes = static_cast<int>(topology.numa_nodes.size());
  host.memory_bytes = topology.memory_bytes;
  if (!gpu) return host;
  host.gpu_uuid = gpu->uuid;
  host.gpu_name = gpu->name;
  host.gpu_driver = gpu->driver;
  host.gpu_link = link_text(gpu->link_generation_max, gpu->link_width_max);
  return host;
}

BuildIdentity collect_build_identity() {
  const BuildInfo info = build_info();
  return {std::string(info.version), std::string(info.compiler), std::string(info.code_hash)};
}

ModelIdentity collect_model_identity(const Family& family, const WeightSource& source) {
  const ModelFormats formats = inspect_formats(family, source);
  ModelIdentity model;
  model.config_hash = model_config_hash(source.model_path);
  if (!source.synthetic) {
    const auto checkpoint = Checkpoint::open(source.model_path);
    model.index_hash = checkpoint->index_hash();
    model.data_sample_hash = checkpoint->data_sample_hash();
  }
  model.family = family.geometry().family;
  model.formats = "experts " + formats.experts + ", dense " + formats.dense;
  model.weights = source.synthetic ? "synthetic:" + std::to_string(source.synthetic_seed) : "checkpoint";
  return model;
}

}  // namespace ft
