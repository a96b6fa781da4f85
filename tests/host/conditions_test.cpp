// Checked against: trees of files. The one of the virtual machine is what Linux 6.18 printed on one (two cores, control
// groups version 1); the others are written in the forms that Linux documents (proc(5), Documentation/ABI, numa(7)) for
// a server with two nodes, an AMD desktop and a container. Damaged texts: by mutation, for what no text may do.
#include "kernels/host/conditions.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/base/random.h"
#include "tests/host/recorded_tree.h"

namespace {

constexpr const char* kVmStat =
    "cpu  4125406 3071070 655077 2125685 11454 0 5235 23275 0 0\n"
    "cpu0 2065991 1523660 305919 1097257 3942 0 221 11610 0 0\n"
    "cpu1 2059414 1547410 349157 1028427 7511 0 5013 11665 0 0\n"
    "intr 32175982 0 0 0 1 1 14 0\nctxt 179324707\nbtime 1764430000\nprocesses 22198\n";
constexpr const char* kSelfStat =
    "22197 (odd) R name)) R 22106 22106 20605 0 -1 4194304 98 0 0 0 31 11 0 0 20 0 1 0 5194069 3133440 383\n";

// As a privileged program in a virtual machine sees it.
void add_virtual_machine(RecordedTree& tree) {
  tree.add("/proc/stat", kVmStat).add("/proc/self/stat", kSelfStat);
  tree.add("/proc/self/cgroup", "4:memory:/process_api/9bca\n2:cpuacct:/\n1:cpu:/\n0::/\n");
  tree.add("/proc/self/mountinfo",
           "33 25 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
           "38 25 0:34 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  tree.add("/sys/fs/cgroup/cpu/cpu.stat",
           "nr_periods 0\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0\n");
  tree.add("/proc/vmstat", "pswpin 0\npswpout 0\nnuma_pages_migrated 0\nthp_fault_alloc 565030\n");
  tree.add("/proc/pressure/memory",
           "some avg10=0.00 avg60=0.00 avg300=0.00 total=71\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
  tree.add("/proc/cpuinfo",
           "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu avx2 "
           "hypervisor lahf_lm\n");
  for (const char* cpu : {"0", "1"}) {
    tree.add("/sys/devices/system/cpu/cpu" + std::string(cpu) + "/topology/core_cpus_list", std::string(cpu) + "\n");
  }
  tree.add("/sys/devices/system/node/online", "0\n").add("/sys/devices/system/node/node0/cpulist", "0-1\n");
  tree.add("/proc/sys/kernel/numa_balancing", "0\n");
  tree.add("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  tree.add("/proc/meminfo",
           "MemTotal:       24684084 kB\nMemAvailable:   24065888 kB\nSwapTotal:             0 kB\n"
           "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n");
  tree.add("/proc/self/status", "CapEff:\t000001fffeffffff\nVmSwap:\t       0 kB\nMems_allowed_list:\t0\n");
}

// Two sockets, two hardware threads per core, bare metal, in a container that may use both nodes' CPUs.
void add_server(RecordedTree& tree) {
  const auto cpu_file = [&](int cpu, const std::string& name, const std::string& text) {
    tree.add("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/" + name, text + "\n");
  };
  for (const int cpu : {0, 1, 2, 3, 4, 5, 6, 7}) {
    cpu_file(cpu, "topology/thread_siblings_list", std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
    cpu_file(cpu, "cpufreq/scaling_driver", "intel_pstate");
    cpu_file(cpu, "cpufreq/scaling_governor", "powersave");
    cpu_file(cpu, "cpufreq/energy_performance_preference", "balance_performance");
    cpu_file(cpu, "cpufreq/base_frequency", "2100000");
    cpu_file(cpu, "cpufreq/cpuinfo_max_freq", "3700000");
    cpu_file(cpu, "cpufreq/scaling_max_freq", cpu == 1 ? "2500000" : "3700000");
    cpu_file(cpu, "thermal_throttle/core_throttle_count", std::to_string(10 + cpu));
    cpu_file(cpu, "thermal_throttle/package_throttle_count", "100");
    cpu_file(cpu, "thermal_throttle/core_throttle_total_time_ms", "3");
  }
  tree.add("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
  tree.add("/sys/devices/system/node/online", "0-1\n");
  tree.add("/sys/devices/system/node/node0/cpulist", "0,2,4,6\n")
      .add("/sys/devices/system/node/node1/cpulist", "1,3,5,7\n");
  tree.add("/proc/sys/kernel/numa_balancing", "1\n");
  tree.add("/proc/cpuinfo", "model name\t: Intel(R) Xeon(R) Gold 6252 CPU @ 2.10GHz\nflags\t\t: fpu avx2\n");
  tree.add("/proc/self/status", "CapEff:\t00000000a80425fb\nVmSwap:\t    2048 kB\nMems_allowed_list:\t0\n");
  tree.add("/proc/meminfo",
           "MemAvailable: 8192 kB\nHugePages_Total:      16\nHugePages_Free: 9\nHugepagesize:  1048576 kB\n");
  tree.add("/proc/self/cgroup", "0::/\n");
  tree.add("/proc/self/mountinfo", "29 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.add("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  tree.add("/sys/fs/cgroup/cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 320000\n");
  tree.add("/sys/fs/cgroup/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=55\n");
  tree.add("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7777\n");
}

}  // namespace

TEST_CASE("counters of a virtual machine") {
  RecordedTree tree;
  add_virtual_machine(tree);
  const std::vector<int> cpus = {0, 1};
  const ft::HostCounters counters = ft::read_host_counters(cpus, tree.root());
  REQUIRE(counters.cpus.size() == 2);
  CHECK(counters.cpus.at(0).busy == 2065991 + 1523660 + 305919 + 0 + 221);
  CHECK(counters.cpus.at(0).idle == 1097257 + 3942);
  CHECK(counters.cpus.at(0).steal == 11610);
  CHECK(counters.own_ticks == 42);
  CHECK(counters.throttling.throttled_usec == 0);
  CHECK(counters.swapped_pages == 0);
  CHECK(counters.migrated_pages == 0);
  CHECK(counters.memory_stall_usec == 71);
  CHECK_FALSE(counters.thermal_events.has_value());
  CHECK(counters.at_seconds > 0);
}

TEST_CASE("settings of a virtual machine") {
  RecordedTree tree;
  add_virtual_machine(tree);
  const std::vector<int> cpus = {0, 1};
  const ft::HostSettings settings = ft::read_host_settings(cpus, tree.root());
  CHECK(settings.cpus == cpus);
  CHECK(settings.siblings == std::vector<std::vector<int>>{{0}, {1}});
  CHECK(settings.frequencies.at(0).driver.empty());
  CHECK_FALSE(settings.turbo.has_value());
  CHECK(settings.virtual_machine);
  CHECK_FALSE(settings.model_ghz.has_value());
  CHECK_FALSE(settings.quota_cores.has_value());
  CHECK(settings.huge_page_mode == "madvise");
  CHECK(settings.huge_pages == 0);
  CHECK(settings.huge_page_bytes == 2 << 20);
  CHECK(settings.swap_total_bytes == 0);
  CHECK(settings.own_swapped_bytes == 0);
  CHECK_FALSE(settings.lockable_bytes.has_value());  // CAP_IPC_LOCK
  CHECK(settings.available_bytes == int64_t{24065888} * 1024);
  CHECK(settings.numa_balancing == 0);
  CHECK(settings.nodes == std::vector<int>{0});
  CHECK(settings.memory_nodes == std::vector<int>{0});
  CHECK(settings.cpu_nodes == std::vector<int>{0, 0});
}

TEST_CASE("a container on a server with two nodes and siblings") {
  RecordedTree tree;
  add_server(tree);
  const std::vector<int> cpus = {0, 1, 4};
  const ft::HostSettings settings = ft::read_host_settings(cpus, tree.root());
  CHECK(settings.siblings == std::vector<std::vector<int>>{{0, 4}, {1, 5}, {0, 4}});
  CHECK(settings.frequencies.at(1).driver == "intel_pstate");
  CHECK(settings.frequencies.at(1).governor == "powersave");
  CHECK(settings.frequencies.at(1).preference == "balance_performance");
  CHECK(settings.frequencies.at(1).base_khz == 2100000);
  CHECK(settings.frequencies.at(1).hardware_max_khz == 3700000);
  CHECK(settings.frequencies.at(1).limit_khz == 2500000);
  CHECK(settings.turbo == false);
  CHECK_FALSE(settings.virtual_machine);
  CHECK(settings.model_ghz == 2.1);
  CHECK(settings.quota_cores == 2.5);
  CHECK(settings.huge_page_mode.empty());
  CHECK(settings.huge_pages == 16);
  CHECK(settings.free_huge_pages == 9);
  CHECK(settings.huge_page_bytes == 1 << 30);
  CHECK(settings.own_swapped_bytes == 2 << 20);
  CHECK(settings.numa_balancing == 1);
  CHECK(settings.nodes == std::vector<int>{0, 1});
  CHECK(settings.memory_nodes == std::vector<int>{0});
  CHECK(settings.cpu_nodes == std::vector<int>{0, 1, 0});

  const ft::HostCounters counters = ft::read_host_counters(cpus, tree.root());
  CHECK(counters.cpus.empty());  // no /proc/stat in this tree
  CHECK(counters.throttling.throttled_usec == 320000);
  CHECK(counters.thermal_events == 110 + 111 + 114);
  CHECK(counters.thermal_ms == 9);
  CHECK(counters.memory_stall_usec == 55);  // the group's, not the machine's
}

TEST_CASE("turbo of other drivers, frequencies outside of what clocks can be") {
  RecordedTree tree;
  tree.add("/sys/devices/system/cpu/cpufreq/boost", "1\n");
  CHECK(ft::read_turbo(tree.root()) == true);
  tree.add("/sys/devices/system/cpu/cpufreq/boost", "2\n");
  CHECK_FALSE(ft::read_turbo(tree.root()).has_value());
  tree.add("/sys/devices/system/cpu/intel_pstate/no_turbo", "0\n");
  CHECK(ft::read_turbo(tree.root()) == true);
  const std::string folder = "/sys/devices/system/cpu/cpu3/cpufreq/";
  tree.add(folder + "scaling_driver", "acpi-cpufreq\n").add(folder + "scaling_governor", "bad \x1b[31m\n");
  struct Case {
    const char* text;
    std::optional<int64_t> khz;
  };
  for (const Case& one : {Case{"100000", 100000}, Case{"99999", {}}, Case{"20000000", 20000000}, Case{"20000001", {}},
                          Case{"", {}}, Case{"fast", {}}}) {
    CAPTURE(one.text);
    tree.add(folder + "cpuinfo_max_freq", one.text);
    CHECK(ft::read_cpu_frequency(3, tree.root()).hardware_max_khz == one.khz);
  }
  CHECK(ft::read_cpu_frequency(3, tree.root()).governor.empty());
  CHECK(ft::read_cpu_frequency(2, tree.root()).driver.empty());
}

TEST_CASE("the base clock in a CPU's name") {
  const auto ghz = [](const std::string& name) { return ft::parse_model_ghz("model name\t: " + name + "\n"); };
  CHECK(ghz("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz") == 3.7);
  for (const char* none :
       {"AMD EPYC 7302 16-Core Processor", "X @ GHz", "X @ 0.01GHz", "X @ 21GHz", "X @ nanGHz", "@", ""}) {
    CAPTURE(none);
    CHECK_FALSE(ghz(none).has_value());
  }
}

TEST_CASE("lines of /proc/stat and /proc/self/stat that are no such lines") {
  const auto ticks = [](const std::string& text) { return ft::parse_cpu_ticks(text); };
  CHECK(ticks("cpu7 1 2 3 4 5 6 7 8 9 10\n").at(7).steal == 8);
  CHECK(ticks("cpu7 1 2 3 4 5 6 7\n").at(7).steal == 0);  // before steal was counted
  CHECK(ticks("cpu7 1 2 3 4 5 6 7\n").at(7).busy == 1 + 2 + 3 + 6 + 7);
  CHECK(ticks("cpu7 0 0 0 9007199254740992 0 0 0 0\n").at(7).idle == int64_t{1} << 53);
  for (const char* broken : {"", "cpu\n", "cpu7\n", "cpu7 1 2 3\n", "cpu7 1 2 x 4 5 6 7 8\n", "cpux 1 2 3 4 5 6 7 8\n",
                             "cpu-1 1 2 3 4 5 6 7 8\n", "cpu1048576 1 2 3 4 5 6 7 8\n", "cpu7 -1 2 3 4 5 6 7 8\n",
                             "cpu7 0 0 0 9007199254740993 0 0 0 0\n", "cpu7 1 2 3 4 5 6 99999999999999999999 8\n"}) {
    CAPTURE(broken);
    CHECK(ticks(broken).empty());
  }
  for (const char* broken : {"", "1 (a) R 1 1 1", "1 a R 1 1 1 0 -1 4 98 0 0 0 31 11", ")",
                             "1 (a) R 1 1 1 0 -1 4 98 0 0 0 x 11 0", "1 (a) R 1 1 1 0 -1 4 98 0 0 0 -3 11 0"}) {
    CAPTURE(broken);
    CHECK_FALSE(ft::parse_own_ticks(broken).has_value());
  }
}

TEST_CASE("pages per node") {
  const std::string maps =
      "55f1770f4000 default file=/usr/bin/head mapped=2 N0=2 kernelpagesize_kB=4\n"
      "7f0000000000 prefer:0 anon=1024 dirty=1024 active=0 N0=1000 N1=24 kernelpagesize_kB=4\n"
      "7f0000400000 prefer:1 anon=512 dirty=512 N1=512 kernelpagesize_kB=4\n"
      "7f0000800000 default huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048\n"
      "7f0001000000 default stack anon=5 N0=5 kernelpagesize_kB=4\n";
  using Bytes = std::map<int, int64_t>;
  CHECK(ft::parse_page_nodes(maps, 0x7f0000000000, 0x7f0000400000) == Bytes{{0, 1000 * 4096}, {1, 24 * 4096}});
  CHECK(ft::parse_page_nodes(maps, 0x7f0000000000, 0x7f0000400001) == Bytes{{0, 1000 * 4096}, {1, 536 * 4096}});
  CHECK(ft::parse_page_nodes(maps, 0x7f0000500000, 0x7f0000900000) == Bytes{{1, 512 * 4096 + 3 * 2097152}});
  CHECK(ft::parse_page_nodes(maps, 0x100, 0x200).empty());
  for (const char* broken :
       {"", "x N0=1\n", "7f0000000000 default N0=\n", "7f0000000000 default Nx=4\n", "7f0000000000 default N1024=4\n",
        "7f0000000000 default N0=-4\n", "7f0000000000 default N0=1099511627777\n",
        "7f0000000000 d N0=1 kernelpagesize_kB=0\n", "7f0000000000 d N0=1 kernelpagesize_kB=2097153\n"}) {
    CAPTURE(broken);
    CHECK(ft::parse_page_nodes(broken, 0x7f0000000000, 0x7f0000400000).empty());
  }
  CHECK(ft::parse_page_nodes("7f0000000000 d N1023=1099511627776 kernelpagesize_kB=4\n", 0x7f0000000000,
                             0x7f0000000001) == Bytes{{1023, int64_t{1} << 52}});
}

TEST_CASE("a PCI device and the port above it") {
  RecordedTree tree;
  const std::string port = "/sys/devices/pci0000:64/0000:64:00.0/";
  const std::string card = port + "0000:65:00.0/";
  tree.add(card + "current_link_speed", "2.5 GT/s PCIe\n").add(card + "max_link_speed", "32.0 GT/s PCIe\n");
  tree.add(card + "current_link_width", "8\n").add(card + "max_link_width", "16\n");
  tree.add(port + "max_link_speed", "16.0 GT/s PCIe\n").add(port + "max_link_width", "8\n");
  tree.link("/sys/bus/pci/devices/0000:65:00.0", "../../../devices/pci0000:64/0000:64:00.0/0000:65:00.0");
  const ft::PciLink link = ft::read_pci_link("0000:65:00.0", tree.root());
  CHECK(link.speed_gts == 2.5);
  CHECK(link.max_speed_gts == 32);
  CHECK(link.width == 8);
  CHECK(link.max_width == 16);
  CHECK(link.port_max_speed_gts == 16);
  CHECK(link.port_max_width == 8);
  tree.add(card + "current_link_width", "255\n").add(card + "current_link_speed", "Unknown\n");
  CHECK(ft::read_pci_link("0000:65:00.0", tree.root()).width == 0);
  CHECK(ft::read_pci_link("0000:65:00.0", tree.root()).speed_gts == 0);
  tree.add(card + "current_link_width", "32\n").add(card + "current_link_speed", "1024 GT/s\n");
  CHECK(ft::read_pci_link("0000:65:00.0", tree.root()).width == 32);
  CHECK(ft::read_pci_link("0000:65:00.0", tree.root()).speed_gts == 1024);
  tree.add(card + "current_link_width", "33\n").add(card + "current_link_speed", "1024.5 GT/s\n");
  CHECK(ft::read_pci_link("0000:65:00.0", tree.root()).width == 0);
  CHECK(ft::read_pci_link("0000:65:00.0", tree.root()).speed_gts == 0);
  for (const char* odd :
       {"", "0000:66:00.0", "../../../devices", "..", "/etc", "0000:65:00.0/..", "0000:65:00.00000"}) {
    CAPTURE(odd);
    CHECK(ft::read_pci_link(odd, tree.root()).max_width == 0);
  }
}

TEST_CASE("this machine: its counters grow, and this process is in them") {
  const std::vector<int> cpus = {0};
  const ft::HostCounters before = ft::read_host_counters(cpus);
  double ghz = 0;
  for (int i = 0; i < 400; ++i) ghz = std::max(ghz, ft::measure_core_ghz());  // 0.1 s of this process's time or more
  const ft::HostCounters after = ft::read_host_counters(cpus);
  CHECK(!before.cpus.empty());
  CHECK(after.at_seconds > before.at_seconds);
  CHECK(after.own_ticks.value() >= before.own_ticks.value() + 5);
#if defined(__x86_64__)
  CHECK(ghz > 0.5);
  CHECK(ghz < 8);
#endif
}

TEST_CASE("this machine: pages of a buffer lie on some node") {
  std::vector<std::byte> buffer(1 << 20, std::byte{1});
  int64_t bytes = 0;
  for (const auto& [node, more] : ft::read_page_nodes(buffer)) bytes += more;
  if (bytes == 0) {
    MESSAGE("skipped: no /proc/self/numa_maps here");
    return;
  }
  CHECK(bytes >= static_cast<int64_t>(buffer.size()));
}

TEST_CASE("damaged texts: nothing negative, nothing out of range, no crash") {
  const std::string texts[] = {kVmStat,
                               kSelfStat,
                               "0-3,8,10-11\n",
                               "7f0000000000 default N0=1000 N1=24 kernelpagesize_kB=4\n",
                               "some avg10=0.00 total=361212\n",
                               "model name\t: X @ 2.10GHz\n"};
  ft::Random random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string text = texts[random.below(std::size(texts))];
    for (uint64_t edits = 1 + random.below(6); edits > 0; --edits) {
      const size_t at = random.below(text.size() + 1);
      const uint64_t kind = random.below(3);
      if (kind == 0) text.insert(at, 1, static_cast<char>(random.below(256)));
      if (kind == 1 && at < text.size()) text.erase(at, 1 + random.below(8));
      if (kind == 2) text.insert(at, text.substr(random.below(text.size() + 1), random.below(24)));
    }
    for (const auto& [cpu, ticks] : ft::parse_cpu_ticks(text)) {
      CHECK(cpu >= 0);
      CHECK((ticks.busy >= 0 && ticks.idle >= 0 && ticks.steal >= 0 && ticks.total() >= ticks.busy));
    }
    CHECK(ft::parse_own_ticks(text).value_or(0) >= 0);
    for (const auto& [node, bytes] : ft::parse_page_nodes(text, 0x7f0000000000, 0x7fffffffffff)) {
      CHECK((node >= 0 && node < 1024 && bytes >= 0));
    }
    const double ghz = ft::parse_model_ghz(text).value_or(1);
    CHECK((ghz >= 0.1 && ghz <= 20));
    ft::parse_stall_usec(text);
  }
}
