// Checked against: trees of files written by hand in the forms that Linux documents (cgroups v1 and v2, proc(5)) and
// that Docker, Kubernetes and systemd produce.
#include "kernels/host/cgroup.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "kernels/host/topology.h"
#include "tests/host/recorded_tree.h"

namespace {

constexpr int64_t kMib = int64_t{1} << 20;

class Tree : public RecordedTree {
 public:
  std::optional<double> quota() const { return ft::cgroup_quota_cores(root()); }
  ft::CgroupMemory memory() const { return ft::cgroup_memory(root()); }
  ft::CgroupThrottling throttling() const { return ft::cgroup_throttling(root()); }
};

constexpr const char* kV2Mount =
    "25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
    "29 25 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kV1Mounts =
    "32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 25 0:29 / /sys/fs/cgroup/memory rw shared:12 - cgroup cgroup rw,memory\n"
    "34 25 0:30 / /sys/fs/cgroup/cpuset rw shared:13 - cgroup cgroup rw,cpuset\n";

}  // namespace

TEST_CASE("no control groups, or files that are not there: no limit") {
  const Tree tree;
  CHECK_FALSE(tree.quota().has_value());
  CHECK_FALSE(tree.memory().limit_bytes.has_value());
  CHECK_FALSE(tree.memory().available_bytes.has_value());
}

TEST_CASE("version 2: a quota on the process's own group") {
  Tree tree;
  tree.add("/proc/self/cgroup", "0::/\n").add("/proc/self/mountinfo", kV2Mount);
  CHECK_FALSE(tree.quota().has_value());
  tree.add("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  CHECK(tree.quota() == 2.5);
  tree.add("/sys/fs/cgroup/cpu.max", "max 100000\n");
  CHECK_FALSE(tree.quota().has_value());
  for (const char* broken : {"", "max", "250000", "x y\n", "0 100000\n", "100000 0\n", "-1 100000\n"}) {
    CAPTURE(broken);
    tree.add("/sys/fs/cgroup/cpu.max", broken);
    CHECK_FALSE(tree.quota().has_value());
  }
}

TEST_CASE("version 2: the smallest quota between the group and the mount holds") {
  Tree tree;
  tree.add("/proc/self/cgroup", "0::/user.slice/user-0.slice/run.scope\n").add("/proc/self/mountinfo", kV2Mount);
  tree.add("/sys/fs/cgroup/user.slice/user-0.slice/run.scope/cpu.max", "max 100000\n");
  tree.add("/sys/fs/cgroup/user.slice/user-0.slice/cpu.max", "150000 50000\n");
  tree.add("/sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n");
  CHECK(tree.quota() == 3.0);
  tree.add("/sys/fs/cgroup/user.slice/user-0.slice/run.scope/cpu.max", "100000 100000\n");
  CHECK(tree.quota() == 1.0);
}

TEST_CASE("version 1: quota and period in two files, -1 for none") {
  Tree tree;
  tree.add("/proc/self/cgroup", "4:cpuset:/other\n2:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/\n");
  tree.add("/proc/self/mountinfo", kV1Mounts);
  tree.add("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  tree.add("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(tree.quota().has_value());
  tree.add("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "400000\n");
  CHECK(tree.quota() == 4.0);
  tree.add("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
  tree.add("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(tree.quota() == 1.0);
}

TEST_CASE("a container without its own namespace: the mount's root is cut off the group") {
  Tree tree;
  tree.add("/proc/self/cgroup", "0::/docker/abc/inner\n");
  tree.add("/proc/self/mountinfo", "29 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  tree.add("/sys/fs/cgroup/inner/cpu.max", "200000 100000\n");
  CHECK(tree.quota() == 2.0);
}

TEST_CASE("a group outside of the mount leaves the mount point") {
  Tree tree;
  tree.add("/proc/self/cgroup", "0::/../../elsewhere\n").add("/proc/self/mountinfo", kV2Mount);
  tree.add("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  CHECK(tree.quota() == 3.0);
}

TEST_CASE("mount points with escaped spaces, group names with colons") {
  Tree tree;
  tree.add("/proc/self/cgroup", "0::/a:b\n");
  tree.add("/proc/self/mountinfo", "29 25 0:26 / /mnt/c\\040g rw - cgroup2 cgroup2 rw\n");
  tree.add("/mnt/c g/a:b/cpu.max", "100000 100000\n");
  CHECK(tree.quota() == 1.0);
}

TEST_CASE("both versions at once: the smaller quota holds") {
  Tree tree;
  tree.add("/proc/self/cgroup", "2:cpu,cpuacct:/\n0::/\n");
  tree.add("/proc/self/mountinfo", std::string(kV1Mounts) + kV2Mount);
  tree.add("/sys/fs/cgroup/cpu.max", "500000 100000\n");
  tree.add("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  tree.add("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(tree.quota() == 2.0);
}

TEST_CASE("a path that climbs for ever ends at the bound") {
  Tree tree;
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "/d";
  tree.add("/proc/self/cgroup", "0::" + deep + "\n").add("/proc/self/mountinfo", kV2Mount);
  CHECK_FALSE(tree.quota().has_value());
}

TEST_CASE("throttling, version 2: the group and the ones above it are added") {
  Tree tree;
  CHECK_FALSE(tree.throttling().throttled_usec.has_value());
  tree.add("/proc/self/cgroup", "0::/system.slice/box.service\n").add("/proc/self/mountinfo", kV2Mount);
  CHECK_FALSE(tree.throttling().throttled_usec.has_value());
  tree.add("/sys/fs/cgroup/system.slice/box.service/cpu.stat",
           "usage_usec 88132950\nuser_usec 71\nsystem_usec 2\nnr_periods 910\nnr_throttled 14\n"
           "throttled_usec 1203004\nnr_bursts 0\nburst_usec 0\n");
  CHECK(tree.throttling().throttled_usec == 1203004);
  CHECK(tree.throttling().throttled_periods == 14);
  CHECK(tree.throttling().periods == 910);
  tree.add("/sys/fs/cgroup/system.slice/cpu.stat", "nr_periods 10\nnr_throttled 2\nthrottled_usec 7000\n");
  // The root group has no quota: its file lacks these keys.
  tree.add("/sys/fs/cgroup/cpu.stat", "usage_usec 99\nuser_usec 71\nsystem_usec 28\n");
  CHECK(tree.throttling().throttled_usec == 1210004);
  CHECK(tree.throttling().throttled_periods == 16);
}

TEST_CASE("throttling, version 1: nanoseconds, and files that hold something else") {
  Tree tree;
  tree.add("/proc/self/cgroup", "2:cpu,cpuacct:/docker/abc\n").add("/proc/self/mountinfo", kV1Mounts);
  const std::string file = "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.stat";
  tree.add(file, "nr_periods 50\nnr_throttled 3\nthrottled_time 25999999\nnr_bursts 0\nburst_time 0\n");
  CHECK(tree.throttling().throttled_usec == 25999);
  CHECK(tree.throttling().throttled_periods == 3);
  for (const char* broken : {"", "throttled_time\n", "throttled_time x\n", "throttled_time -5\n",
                             "throttled_timeout 5\n", "throttled_time 99999999999999999999999\n"}) {
    CAPTURE(broken);
    tree.add(file, broken);
    CHECK_FALSE(tree.throttling().throttled_usec.has_value());
  }
  // Sums end at 2^56 us, so that a counter gone mad cannot overflow them.
  tree.add(file, "throttled_usec 9223372036854775807\n");
  tree.add("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.stat", "throttled_usec 9223372036854775807\n");
  CHECK(tree.throttling().throttled_usec == int64_t{1} << 56);
}

TEST_CASE("memory stalls: of the group where it tells, total= of the line some") {
  Tree tree;
  CHECK_FALSE(ft::cgroup_memory_stall_usec(tree.root()).has_value());
  tree.add("/proc/self/cgroup", "0::/box\n").add("/proc/self/mountinfo", kV2Mount);
  tree.add("/sys/fs/cgroup/box/memory.pressure",
           "some avg10=0.00 avg60=0.12 avg300=0.05 total=361212\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n");
  CHECK(ft::cgroup_memory_stall_usec(tree.root()) == 361212);
  for (const char* broken : {"", "some", "some avg10=0", "some total=", "some total=x", "full total=4\n"}) {
    CAPTURE(broken);
    CHECK_FALSE(ft::parse_stall_usec(broken).has_value());
  }
}

TEST_CASE("version 2 memory: limit, use without file cache, and the high mark") {
  Tree tree;
  tree.add("/proc/self/cgroup", "0::/box\n").add("/proc/self/mountinfo", kV2Mount);
  tree.add("/sys/fs/cgroup/box/memory.max", "max\n");
  CHECK_FALSE(tree.memory().limit_bytes.has_value());
  tree.add("/sys/fs/cgroup/box/memory.max", std::to_string(1000 * kMib) + "\n");
  tree.add("/sys/fs/cgroup/box/memory.current", std::to_string(700 * kMib) + "\n");
  CHECK(tree.memory().limit_bytes == 1000 * kMib);
  CHECK(tree.memory().available_bytes == 300 * kMib);
  tree.add("/sys/fs/cgroup/box/memory.stat", "anon 5\ninactive_file " + std::to_string(400 * kMib) + "\nactive_file " +
                                                 std::to_string(100 * kMib) + "\n");
  CHECK(tree.memory().available_bytes == 800 * kMib);
  tree.add("/sys/fs/cgroup/box/memory.high", std::to_string(500 * kMib) + "\n");
  CHECK(tree.memory().limit_bytes == 500 * kMib);
  CHECK(tree.memory().available_bytes == 300 * kMib);
  tree.add("/sys/fs/cgroup/box/memory.current", std::to_string(2000 * kMib) + "\n");
  CHECK(tree.memory().available_bytes == 0);
}

TEST_CASE("version 1 memory: the huge number that means none, and a parent's limit") {
  Tree tree;
  tree.add("/proc/self/cgroup", "3:memory:/a/b\n").add("/proc/self/mountinfo", kV1Mounts);
  tree.add("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(tree.memory().limit_bytes.has_value());
  tree.add("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(64 * kMib) + "\n");
  tree.add("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(60 * kMib) + "\n");
  tree.add("/sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file " + std::to_string(16 * kMib) + "\n");
  CHECK(tree.memory().limit_bytes == 64 * kMib);
  CHECK(tree.memory().available_bytes == 20 * kMib);
}

TEST_CASE("the memory budget is what is available, capped by the group") {
  Tree tree;
  tree.add("/proc/meminfo", "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n");
  tree.add("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
  ft::MemoryBudget budget = ft::detect_memory_budget(tree.root());
  CHECK(budget.total_bytes == 16 * kMib);
  CHECK(budget.available_bytes == 8 * kMib);
  CHECK_FALSE(budget.cgroup_limit_bytes.has_value());
  tree.add("/proc/self/cgroup", "0::/\n").add("/proc/self/mountinfo", kV2Mount);
  tree.add("/sys/fs/cgroup/memory.max", std::to_string(5 * kMib) + "\n");
  tree.add("/sys/fs/cgroup/memory.current", std::to_string(1 * kMib) + "\n");
  budget = ft::detect_memory_budget(tree.root());
  CHECK(budget.cgroup_limit_bytes == 5 * kMib);
  CHECK(budget.available_bytes == 4 * kMib);
  // With CAP_IPC_LOCK (bit 14) nothing limits locked memory.
  tree.add("/proc/self/status", "CapEff:\t0000000000004000\n");
  CHECK_FALSE(ft::detect_memory_budget(tree.root()).lockable_bytes.has_value());
}

TEST_CASE("this machine has memory, and some of it is available") {
  const ft::MemoryBudget budget = ft::detect_memory_budget();
  CHECK(budget.total_bytes > 64 * kMib);
  CHECK(budget.available_bytes > 0);
  CHECK(budget.available_bytes <= budget.total_bytes);
}
