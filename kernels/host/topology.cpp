#include "kernels/host/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>
#include <string>

#include "kernels/base/error.h"
#include "kernels/host/isa.h"

namespace ft {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using TopologyPtr = std::unique_ptr<hwloc_topology, DestroyTopology>;

[[noreturn]] void throw_hwloc(const char* what, const char* synthetic) {
  throw Error(ErrorKind::kFailed, {.what = std::string("hwloc ") + what,
                                   .value = synthetic == nullptr ? "" : synthetic,
                                   .allowed = synthetic == nullptr ? "" : "an hwloc synthetic description"});
}

TopologyPtr load(const char* synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw_hwloc("cannot start", nullptr);
  TopologyPtr topology(raw);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic) != 0) {
    throw_hwloc("refused a description", synthetic);
  }
  // What this process may use is CpuBudget's business; the topology is the machine.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(raw) != 0) throw_hwloc("cannot read the machine's topology", synthetic);
  return topology;
}

std::vector<int> cpus_of(hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_next(set, -1); cpu != -1; cpu = hwloc_bitmap_next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

// Level names count upwards from the core: the last level that exists is the largest.
int64_t last_level_cache_bytes(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE}) {
    const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    if (cache != nullptr && cache->attr->cache.size > 0) return static_cast<int64_t>(cache->attr->cache.size);
  }
  return 0;
}

std::string cpu_model(hwloc_topology_t topology) {
  for (const hwloc_obj_t object :
       {hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0), hwloc_get_root_obj(topology)}) {
    const char* name = object == nullptr ? nullptr : hwloc_obj_get_info_by_name(object, "CPUModel");
    if (name != nullptr) return name;
  }
  return "unknown";
}

}  // namespace

HostTopology detect_topology(const char* synthetic) {
  const TopologyPtr owner = load(synthetic);
  hwloc_topology_t topology = owner.get();
  HostTopology out;
  out.cpu_model = cpu_model(topology);
  out.isa = isa_name(detect_isa());
  out.packages = std::max(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE), 1);
  out.cpus = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
  out.last_level_cache_bytes = last_level_cache_bytes(topology);
  // Some virtual machines show no cores: then each hardware thread is one.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t core_type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, core_type, core)) != nullptr;) {
    out.core_cpus.push_back(cpus_of(core->cpuset));
  }
  out.cores = static_cast<int>(out.core_cpus.size());
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    const auto bytes = static_cast<int64_t>(node->attr->numanode.local_memory);
    out.numa_nodes.push_back({static_cast<int>(node->os_index), bytes, cpus_of(node->cpuset)});
    out.memory_bytes += bytes;
  }
  // Memory that was added while running is missing in the nodes of some virtual machines.
  if (synthetic == nullptr) out.memory_bytes = std::max(out.memory_bytes, detect_memory_budget().total_bytes);
  return out;
}

}  // namespace ft
