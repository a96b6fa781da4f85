// cpufreq, topology, huge pages, swap, NUMA: what stays as it is while a program runs.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "kernels/host/conditions.h"
#include "kernels/host/proc_text.h"
#include "kernels/host/topology.h"

namespace ft {
namespace {

constexpr double kLowestGhz = 0.1, kHighestGhz = 20;  // outside: no clock of a CPU

std::string cpu_folder(const std::string& root, int cpu) {
  return root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
}

// core_cpus_list since Linux 5.3, thread_siblings_list before.
std::vector<int> siblings_of(const std::string& root, int cpu) {
  for (const char* name : {"/topology/core_cpus_list", "/topology/thread_siblings_list"}) {
    const std::string text = read_proc_line(cpu_folder(root, cpu) + name);
    if (text.empty()) continue;
    std::vector<int> cpus = parse_cpu_list(text).value_or(std::vector<int>{});
    if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) return cpus;
  }
  return {};
}

int node_of(const std::vector<std::vector<int>>& node_cpus, const std::vector<int>& nodes, int cpu) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (std::find(node_cpus[i].begin(), node_cpus[i].end(), cpu) != node_cpus[i].end()) return nodes[i];
  }
  return -1;
}

void read_numa(const std::string& root, HostSettings& settings) {
  constexpr size_t kMaxNodes = 1024;  // Linux's MAX_NUMNODES at most
  const std::string folder = root + "/sys/devices/system/node/";
  settings.nodes = parse_cpu_list(read_proc_line(folder + "online")).value_or(std::vector<int>{});
  if (settings.nodes.size() > kMaxNodes) settings.nodes.clear();
  std::vector<std::vector<int>> node_cpus;
  for (const int node : settings.nodes) {
    const std::string text = read_proc_line(folder + "node" + std::to_string(node) + "/cpulist");
    node_cpus.push_back(parse_cpu_list(text).value_or(std::vector<int>{}));
  }
  for (const int cpu : settings.cpus) settings.cpu_nodes.push_back(node_of(node_cpus, settings.nodes, cpu));
  settings.numa_balancing = read_proc_number(root + "/proc/sys/kernel/numa_balancing");
}

std::optional<int64_t> kib_field(std::string_view text, std::string_view key) {
  constexpr int64_t kMostKib = int64_t{1} << 50;
  const std::optional<int64_t> kib = find_proc_number(text, key);
  if (!kib || *kib < 0 || *kib > kMostKib) return std::nullopt;
  return *kib * 1024;
}

void read_memory(const std::string& root, HostSettings& settings) {
  settings.huge_page_mode =
      plain_word(chosen_word(read_proc_line(root + "/sys/kernel/mm/transparent_hugepage/enabled")));
  const std::string meminfo = read_proc_text(root + "/proc/meminfo");
  settings.huge_pages = find_proc_number(meminfo, "HugePages_Total");
  settings.free_huge_pages = find_proc_number(meminfo, "HugePages_Free");
  settings.huge_page_bytes = kib_field(meminfo, "Hugepagesize");
  settings.swap_total_bytes = kib_field(meminfo, "SwapTotal");
  const std::string status = read_proc_text(root + "/proc/self/status");
  settings.own_swapped_bytes = kib_field(status, "VmSwap");
  settings.memory_nodes =
      parse_cpu_list(find_proc_field(status, "Mems_allowed_list").value_or("")).value_or(std::vector<int>{});
  const MemoryBudget budget = detect_memory_budget(root);
  settings.lockable_bytes = budget.lockable_bytes;
  settings.available_bytes = budget.available_bytes;
}

bool has_hypervisor_flag(std::string_view cpuinfo) {
  const std::string flags = " " + find_proc_field(cpuinfo, "flags").value_or("") + " ";
  return flags.find(" hypervisor ") != std::string::npos;
}

}  // namespace

CpuFrequency read_cpu_frequency(int cpu, const std::string& root) {
  const std::string folder = cpu_folder(root, cpu) + "/cpufreq/";
  CpuFrequency frequency;
  frequency.driver = plain_word(read_proc_line(folder + "scaling_driver"));
  if (frequency.driver.empty()) return frequency;
  frequency.governor = plain_word(read_proc_line(folder + "scaling_governor"));
  frequency.preference = plain_word(read_proc_line(folder + "energy_performance_preference"));
  const auto khz = [&](const char* name) -> std::optional<int64_t> {
    const std::optional<int64_t> value = read_proc_number(folder + name);
    if (!value || static_cast<double>(*value) < kLowestGhz * 1e6 || static_cast<double>(*value) > kHighestGhz * 1e6) {
      return std::nullopt;
    }
    return value;
  };
  frequency.base_khz = khz("base_frequency");
  frequency.hardware_max_khz = khz("cpuinfo_max_freq");
  frequency.limit_khz = khz("scaling_max_freq");
  return frequency;
}

// intel_pstate says whether it is off, the others whether it is on.
std::optional<bool> read_turbo(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/cpu/";
  const std::optional<int64_t> off = read_proc_number(folder + "intel_pstate/no_turbo");
  if (off == 0 || off == 1) return *off == 0;
  const std::optional<int64_t> on = read_proc_number(folder + "cpufreq/boost");
  if (on == 0 || on == 1) return *on == 1;
  return std::nullopt;
}

std::optional<double> parse_model_ghz(const std::string& cpuinfo) {
  const std::string name = find_proc_field(cpuinfo, "model name").value_or("");
  const size_t at = name.rfind('@');
  if (at == std::string::npos || !name.ends_with("GHz")) return std::nullopt;
  const double ghz = std::strtod(name.c_str() + at + 1, nullptr);
  if (!(ghz >= kLowestGhz && ghz <= kHighestGhz)) return std::nullopt;
  return ghz;
}

HostSettings read_host_settings(std::span<const int> cpus, const std::string& root) {
  HostSettings settings;
  settings.cpus.assign(cpus.begin(), cpus.end());
  for (const int cpu : cpus) {
    settings.siblings.push_back(siblings_of(root, cpu));
    settings.frequencies.push_back(read_cpu_frequency(cpu, root));
  }
  settings.turbo = read_turbo(root);
  const std::string cpuinfo = read_proc_text(root + "/proc/cpuinfo");
  settings.virtual_machine = has_hypervisor_flag(cpuinfo);
  settings.model_ghz = parse_model_ghz(cpuinfo);
  settings.quota_cores = cgroup_quota_cores(root);
  read_memory(root, settings);
  read_numa(root, settings);
  return settings;
}

}  // namespace ft
