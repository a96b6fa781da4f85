// What about this machine can spoil a measurement, as the kernel tells it without any privilege: settings, which are
// read once, and counters, of which two readings make an interval. Readings only; what they mean is judged elsewhere.
//
// `root` stands before every path ("" for the machine itself), so that tests give recorded trees. What is missing or
// has another form is not known: it differs by kernel, by container and by virtual machine. Nothing throws.
//
// Cost of read_host_counters on two cores of a Xeon VM, Linux 6.18: 0.12 ms; from a recorded tree with 128 CPUs, 64 of
// which compute, 0.54 ms.
//
// Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/host/cgroup.h"

namespace ft {

// Of one CPU since boot, in clock ticks (proc(5), /proc/stat). Time of guests counts as busy, waiting for I/O as idle.
struct CpuTicks {
  int64_t busy = 0, idle = 0;
  int64_t steal = 0;  // runnable, but the hypervisor ran something else
  int64_t total() const { return busy + idle + steal; }
};

struct HostCounters {
  double at_seconds = 0;                     // now_seconds() at the reading
  std::map<int, CpuTicks> cpus;              // all that /proc/stat lists
  std::optional<int64_t> own_ticks;          // CPU time of this process, all threads
  CgroupThrottling throttling;               // by a CPU quota
  std::optional<int64_t> thermal_events;     // of the cores asked for: times the clock was lowered for heat; Intel only
  std::optional<int64_t> thermal_ms;         // for how long, since Linux 5.8
  std::optional<int64_t> swapped_pages;      // in and out, whole machine
  std::optional<int64_t> migrated_pages;     // moved between nodes by automatic NUMA balancing
  std::optional<int64_t> memory_stall_usec;  // of the own cgroup (version 2), else of the machine; needs PSI
};
// `cpus`: whose thermal counters are added.
HostCounters read_host_counters(std::span<const int> cpus, const std::string& root = {});

struct CpuFrequency {
  std::string driver;      // "intel_pstate", "acpi-cpufreq", ..; empty: no cpufreq
  std::string governor;    // "performance", "powersave", ..
  std::string preference;  // energy_performance_preference; empty: the driver has none
  std::optional<int64_t> base_khz, hardware_max_khz;
  std::optional<int64_t> limit_khz;  // scaling_max_freq
};

struct HostSettings {
  std::vector<int> cpus;                   // the ones asked for
  std::vector<std::vector<int>> siblings;  // of cpus[i]: the hardware threads of its core, itself too; empty: not known
  std::vector<CpuFrequency> frequencies;   // of cpus[i]
  std::vector<int> cpu_nodes;              // of cpus[i]: NUMA node; -1: not known
  std::optional<bool> turbo;               // clocks above the base clock are allowed
  bool virtual_machine = false;            // the hypervisor says so
  std::optional<double> model_ghz;         // base clock in the CPU's name, "@ 2.30GHz"
  std::optional<double> quota_cores;
  std::string huge_page_mode;  // of transparent huge pages: "always", "madvise", "never"; empty: not known
  std::optional<int64_t> huge_pages, free_huge_pages, huge_page_bytes;  // explicit ones (hugetlb)
  std::optional<int64_t> swap_total_bytes, own_swapped_bytes;
  std::optional<int64_t> lockable_bytes;  // none: not limited
  int64_t available_bytes = 0;            // of memory, within the cgroup's limit
  std::optional<int64_t> numa_balancing;  // /proc/sys/kernel/numa_balancing; 0: off
  std::vector<int> nodes;                 // online; empty: not known
  std::vector<int> memory_nodes;          // on which this process may have memory
};
HostSettings read_host_settings(std::span<const int> cpus, const std::string& root = {});

// Parts of it, by source. The texts are untrusted.
std::map<int, CpuTicks> parse_cpu_ticks(const std::string& proc_stat);
std::optional<int64_t> parse_own_ticks(const std::string& proc_self_stat);
CpuFrequency read_cpu_frequency(int cpu, const std::string& root = {});
std::optional<bool> read_turbo(const std::string& root = {});
std::optional<double> parse_model_ghz(const std::string& cpuinfo);  // of the first CPU

// Bytes per NUMA node of the mappings that hold `memory`, from the text of /proc/self/numa_maps, which gives where a
// mapping begins: one that begins before `memory` counts as a whole when no other begins between. Empty: not known.
std::map<int, int64_t> parse_page_nodes(const std::string& numa_maps, uint64_t begin, uint64_t end);
// The kernel walks all page tables of the process for it: once, not around every probe.
std::map<int, int64_t> read_page_nodes(std::span<const std::byte> memory, const std::string& root = {});

// The link of a PCI device: of its own port, and what the port above it can do. 0: not known.
struct PciLink {
  double speed_gts = 0, max_speed_gts = 0, port_max_speed_gts = 0;  // "16.0 GT/s PCIe" is 16
  int width = 0, max_width = 0, port_max_width = 0;
};
// address: "0000:65:00.0", as /sys/bus/pci/devices names it; any other text finds nothing.
PciLink read_pci_link(const std::string& address, const std::string& root = {});

// Clock of the core that runs this thread, in GHz, from a chain of multiplications of known latency: needs no driver
// and no privilege, and so works in a virtual machine. The best of a few windows, so that an interruption of one does
// not count. Takes 0.26 ms at 3 GHz. 0: not known on this CPU.
double measure_core_ghz();

}  // namespace ft
