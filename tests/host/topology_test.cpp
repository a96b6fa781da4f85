// Checked against: hwloc's synthetic machines, whose every number is in the description, and the rule for budgets
// worked out by hand.
#include "kernels/host/topology.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/host/isa.h"

namespace {

constexpr int64_t kGib = int64_t{1} << 30;

std::vector<int> all_cpus(const ft::HostTopology& topology) {
  std::vector<int> cpus;
  for (const auto& core : topology.core_cpus) cpus.insert(cpus.end(), core.begin(), core.end());
  return cpus;
}

// Two sockets, each one node of 64 GiB, 32 MiB L3, four cores of two threads; sibling of cpu c is c + 1.
constexpr const char* kTwoSockets = "pack:2 [numa(memory=68719476736)] l3:1(size=33554432) core:4 pu:2";

}  // namespace

TEST_CASE("a machine with two nodes and two threads per core") {
  const ft::HostTopology t = ft::detect_topology(kTwoSockets);
  CHECK(t.packages == 2);
  CHECK(t.cores == 8);
  CHECK(t.cpus == 16);
  CHECK(t.last_level_cache_bytes == 32 << 20);
  CHECK(t.memory_bytes == 128 * kGib);
  REQUIRE(t.numa_nodes.size() == 2);
  CHECK(t.numa_nodes[1].os_index == 1);
  CHECK(t.numa_nodes[1].memory_bytes == 64 * kGib);
  CHECK(t.numa_nodes[1].cpus == std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15});
  REQUIRE(t.core_cpus.size() == 8);
  CHECK(t.core_cpus[3] == std::vector<int>{6, 7});
  CHECK(t.isa == ft::isa_name(ft::detect_isa()));
  CHECK(t.cpu_model == "unknown");
}

TEST_CASE("machines without packages, caches or cores in their description") {
  const ft::HostTopology flat = ft::detect_topology("core:3 pu:1");
  CHECK(flat.packages == 1);
  CHECK(flat.cores == 3);
  CHECK(flat.last_level_cache_bytes == 0);
  CHECK(flat.numa_nodes.size() == 1);
  const ft::HostTopology threads_only = ft::detect_topology("pu:4");
  CHECK(threads_only.cores == 4);
  CHECK(threads_only.cpus == 4);
  const ft::HostTopology l2 = ft::detect_topology("l2:2(size=1048576) core:1 pu:1");
  CHECK(l2.last_level_cache_bytes == 1 << 20);
}

TEST_CASE("a description that hwloc refuses is one clear error") {
  CHECK_THROWS_AS(ft::detect_topology("nonsense:x"), ft::Error);
}

TEST_CASE("the budget pins one thread per core first, then the siblings") {
  const ft::HostTopology t = ft::detect_topology(kTwoSockets);
  const ft::CpuBudget budget = ft::make_cpu_budget(t, all_cpus(t), std::nullopt);
  CHECK(budget.affinity_cpus == 16);
  CHECK(budget.affinity_cores == 8);
  CHECK(budget.usable_cores == 8);
  CHECK(budget.pinning == std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15});
}

TEST_CASE("only the affinity mask counts, and half a core is a core") {
  const ft::HostTopology t = ft::detect_topology(kTwoSockets);
  const ft::CpuBudget budget = ft::make_cpu_budget(t, std::vector<int>{3, 4, 5, 15}, std::nullopt);
  CHECK(budget.affinity_cpus == 4);
  CHECK(budget.affinity_cores == 3);
  CHECK(budget.usable_cores == 3);
  CHECK(budget.pinning == std::vector<int>{3, 4, 15, 5});
}

TEST_CASE("CPUs that the topology does not know are cores of their own") {
  const ft::HostTopology t = ft::detect_topology("core:2 pu:1");
  const ft::CpuBudget budget = ft::make_cpu_budget(t, std::vector<int>{1, 40, 41}, std::nullopt);
  CHECK(budget.affinity_cores == 3);
  CHECK(budget.pinning == std::vector<int>{1, 40, 41});
}

TEST_CASE("the quota is rounded down, never below one core, and never adds cores") {
  const ft::HostTopology t = ft::detect_topology(kTwoSockets);
  const auto usable = [&](double quota) { return ft::make_cpu_budget(t, all_cpus(t), quota).usable_cores; };
  CHECK(usable(0.5) == 1);
  CHECK(usable(1.0) == 1);
  CHECK(usable(1.99) == 1);
  CHECK(usable(7.5) == 7);
  CHECK(usable(8.0) == 8);
  CHECK(usable(64.0) == 8);
}

TEST_CASE("this machine: the parts fit together") {
  const ft::HostTopology t = ft::detect_topology();
  CHECK(t.cores >= 1);
  CHECK(t.cpus >= t.cores);
  CHECK(static_cast<int>(all_cpus(t).size()) == t.cpus);
  CHECK(t.memory_bytes > 0);
  CHECK(!t.numa_nodes.empty());
  const ft::CpuBudget budget = ft::detect_cpu_budget(t);
  CHECK(budget.usable_cores >= 1);
  CHECK(budget.usable_cores <= budget.affinity_cores);
  CHECK(budget.pinning.size() == static_cast<size_t>(budget.affinity_cpus));
}

TEST_CASE("the budget follows this thread's affinity mask") {
  const std::vector<int> cpus = ft::affinity_cpus();
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(cpus.back()), &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const ft::CpuBudget budget = ft::detect_cpu_budget(ft::detect_topology());
  ::sched_setaffinity(0, sizeof before, &before);
  CHECK(budget.pinning == std::vector<int>{cpus.back()});
  CHECK(budget.usable_cores == 1);
}

TEST_CASE("likwid: either all of it works or one sentence says why not") {
  const ft::LikwidStatus status = ft::likwid_status();
  const bool all = status.built && status.topology && status.counters;
  CHECK(all == status.reason.empty());
  CHECK((status.built || !status.topology));
  CHECK((status.topology || !status.counters));
  CHECK(std::count(status.reason.begin(), status.reason.end(), '\n') == 0);
  MESSAGE("likwid: " << (all ? std::string("works") : status.reason));
}
