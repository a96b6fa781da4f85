// What of the machine this process may use (kernels/host/topology.h).
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/json.h"
#include "kernels/host/cgroup.h"
#include "kernels/host/topology.h"

namespace ft {
namespace {

constexpr size_t kMaxProcFileBytes = 1u << 20;
constexpr size_t kMaxCpus = 1u << 20;  // far above what Linux supports; ends the search for a mask that is large enough

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

// The text after "KEY:" in a /proc file.
std::optional<std::string> read_field(const std::string& path, std::string_view key) {
  std::string text = "\n";  // so that every key follows a line end
  try {
    text += read_text_file(path, kMaxProcFileBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  const size_t at = text.find(std::string("\n").append(key).append(":"));
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = text.find_first_not_of(" \t", at + key.size() + 2);
  if (begin == std::string::npos) return std::nullopt;
  return text.substr(begin, text.find('\n', begin) - begin);
}

int64_t meminfo_bytes(const std::string& root, std::string_view key) {
  const std::string text = read_field(root + "/proc/meminfo", key).value_or("");
  int64_t kib = 0;
  std::from_chars(text.data(), text.data() + text.size(), kib);
  return kib * 1024;
}

// CAP_IPC_LOCK lifts RLIMIT_MEMLOCK.
bool may_lock_any(const std::string& root) {
  constexpr int kCapIpcLock = 14;
  const std::string text = read_field(root + "/proc/self/status", "CapEff").value_or("");
  uint64_t bits = 0;
  std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  return ((bits >> kCapIpcLock) & 1u) != 0;
}

}  // namespace

std::vector<int> affinity_cpus() {
  for (size_t cpus = 1024; cpus <= kMaxCpus; cpus *= 2) {
    const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(cpus));
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    if (::sched_getaffinity(0, bytes, set.get()) == 0) {
      std::vector<int> out;
      for (size_t cpu = 0; cpu < cpus; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set.get())) out.push_back(static_cast<int>(cpu));
      }
      return out;
    }
    if (errno != EINVAL) break;  // EINVAL: the kernel's mask is longer than ours
  }
  throw Error(ErrorKind::kFailed, {.what = std::string("cannot read the CPU affinity (") + std::strerror(errno) + ")"});
}

CpuBudget make_cpu_budget(const HostTopology& topology, std::span<const int> affinity,
                          std::optional<double> quota_cores) {
  CpuBudget budget;
  budget.quota_cores = quota_cores;
  budget.affinity_cpus = static_cast<int>(affinity.size());
  std::vector<int> rest(affinity.begin(), affinity.end());
  std::vector<std::vector<int>> cores;  // usable hardware threads per core with any
  for (const std::vector<int>& core : topology.core_cpus) {
    std::vector<int> usable;
    for (const int cpu : core) {
      const auto at = std::find(rest.begin(), rest.end(), cpu);
      if (at == rest.end()) continue;
      usable.push_back(cpu);
      rest.erase(at);
    }
    if (!usable.empty()) cores.push_back(std::move(usable));
  }
  for (const int cpu : rest) cores.push_back({cpu});
  budget.affinity_cores = static_cast<int>(cores.size());
  size_t most_siblings = 0;
  for (const std::vector<int>& core : cores) most_siblings = std::max(most_siblings, core.size());
  for (size_t sibling = 0; sibling < most_siblings; ++sibling) {
    for (const std::vector<int>& core : cores) {
      if (sibling < core.size()) budget.pinning.push_back(core[sibling]);
    }
  }
  budget.usable_cores = budget.affinity_cores;
  if (quota_cores.has_value() && *quota_cores < budget.usable_cores) {
    budget.usable_cores = static_cast<int>(std::floor(*quota_cores));
  }
  budget.usable_cores = std::max(budget.usable_cores, 1);
  return budget;
}

CpuBudget detect_cpu_budget(const HostTopology& topology) {
  return make_cpu_budget(topology, affinity_cpus(), cgroup_quota_cores());
}

MemoryBudget detect_memory_budget(const std::string& root) {
  MemoryBudget budget;
  budget.total_bytes = meminfo_bytes(root, "MemTotal");
  budget.available_bytes = meminfo_bytes(root, "MemAvailable");
  const CgroupMemory group = cgroup_memory(root);
  budget.cgroup_limit_bytes = group.limit_bytes;
  if (group.available_bytes.has_value()) {
    budget.available_bytes = std::min(budget.available_bytes, *group.available_bytes);
  }
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && !may_lock_any(root)) {
    budget.lockable_bytes = static_cast<int64_t>(limit.rlim_cur);
  }
  return budget;
}

}  // namespace ft
