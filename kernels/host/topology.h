// What the machine is (hwloc) and what of it this process may use (affinity, cgroup quota). Plain structs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ft {

struct NumaNode {
  int os_index = 0;
  int64_t memory_bytes = 0;
  std::vector<int> cpus;  // PU OS indexes
};

struct HostTopology {
  std::string cpu_model;
  std::string isa;  // isa_name(detect_isa())
  int packages = 0;
  int cores = 0;                       // physical cores of the machine
  int cpus = 0;                        // hardware threads
  int64_t last_level_cache_bytes = 0;  // one instance, the largest level
  int64_t memory_bytes = 0;
  std::vector<NumaNode> numa_nodes;
  std::vector<std::vector<int>> core_cpus;  // per physical core its hardware threads' OS indexes
};

// Reads the whole machine through hwloc, parts that this process may not use included; `synthetic` is an hwloc
// synthetic description for tests ("numa:2 core:8 pu:2"). Throws Error(kFailed) when hwloc cannot.
HostTopology detect_topology(const char* synthetic = nullptr);

struct CpuBudget {
  int affinity_cpus = 0;              // hardware threads in the affinity mask
  int affinity_cores = 0;             // distinct physical cores among them
  std::optional<double> quota_cores;  // cgroup v1 or v2 CPU quota, in cores, when there is one
  int usable_cores = 0;               // min(affinity_cores, floor(quota)), at least 1
  std::vector<int> pinning;           // OS index per pool thread, one per physical core first, then siblings
};
CpuBudget detect_cpu_budget(const HostTopology& topology);

// The rule behind it, pure. `affinity` holds OS indexes; those that the topology does not know count as cores of their
// own.
CpuBudget make_cpu_budget(const HostTopology& topology, std::span<const int> affinity,
                          std::optional<double> quota_cores);

// OS indexes of the calling thread's affinity mask, in increasing order.
std::vector<int> affinity_cpus();

struct MemoryBudget {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // MemAvailable, capped by the cgroup's limit minus its use
  std::optional<int64_t> cgroup_limit_bytes;
  std::optional<int64_t> lockable_bytes;  // RLIMIT_MEMLOCK, none when unlimited
};
// `root` stands before the paths that are read (/proc/meminfo, control groups): tests give recorded trees.
MemoryBudget detect_memory_budget(const std::string& root = {});

// Where likwid stands: used for topology and counters where it works; otherwise why not, in one sentence.
struct LikwidStatus {
  bool built = false;
  bool topology = false;
  bool counters = false;
  std::string reason;  // empty when all of it works
};
LikwidStatus likwid_status();

}  // namespace ft
