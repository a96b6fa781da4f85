// Checked against: hwloc's synthetic machines and plans worked out by hand; for banks every byte's node by the rule
// that an expert belongs to one node, 2 MiB at borders aside. What the kernel does with it on two nodes is not checked.
#include "kernels/host/numa.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/host/host_memory.h"

namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

struct Machine {
  ft::HostTopology topology;
  std::vector<int> pinning;
};

Machine machine(const char* synthetic) {
  Machine m{ft::detect_topology(synthetic), {}};
  std::vector<int> cpus;
  for (const auto& core : m.topology.core_cpus) cpus.insert(cpus.end(), core.begin(), core.end());
  m.pinning = ft::make_cpu_budget(m.topology, cpus, std::nullopt).pinning;
  return m;
}

ft::NumaPlan plan_of(const Machine& m, int threads) { return ft::make_numa_plan(m.topology, m.pinning, threads); }

// Two nodes of four cores of two threads: node 0 has CPUs 0-7, siblings are neighbours.
constexpr const char* kTwoNodes = "pack:2 [numa] core:4 pu:2";

}  // namespace

TEST_CASE("one node: all workers are its own and the pinning stays as it was") {
  const Machine m = machine("core:4 pu:2");
  for (const int threads : {1, 3, 4, 9}) {
    const ft::NumaPlan plan = plan_of(m, threads);
    REQUIRE(plan.nodes.size() == 1);
    CHECK(plan.nodes[0].workers.begin == 0);
    CHECK(plan.nodes[0].workers.end == threads);
    CHECK(plan.pinning == m.pinning);
    const ft::Range all = ft::experts_of_node(plan, 0, 128);
    CHECK(all.begin == 0);
    CHECK(all.end == 128);
    const int64_t blobs[] = {3 << 20, 5 << 20};
    const auto parts = ft::bank_parts(plan, blobs, 10);
    REQUIRE(parts.size() == 1);
    CHECK(parts[0].bytes == 80 << 20);
  }
}

TEST_CASE("two nodes: each gets its share of the workers, on its cores first and then on their siblings") {
  const Machine m = machine(kTwoNodes);
  const ft::NumaPlan four = plan_of(m, 4);
  REQUIRE(four.nodes.size() == 2);
  CHECK(four.nodes[1].os_index == 1);
  CHECK(four.nodes[1].workers.begin == 2);
  CHECK(four.nodes[1].workers.end == 4);
  CHECK(four.pinning == std::vector<int>{0, 2, 8, 10});
  CHECK(plan_of(m, 8).pinning == std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14});
  CHECK(plan_of(m, 10).pinning == std::vector<int>{0, 2, 4, 6, 1, 8, 10, 12, 14, 9});
  CHECK(plan_of(m, 5).pinning == std::vector<int>{0, 2, 8, 10, 12});
}

TEST_CASE("more workers than CPUs start over within their node; fewer than nodes leave nodes out") {
  const Machine m = machine("pack:2 [numa] core:1 pu:1");
  CHECK(plan_of(m, 5).pinning == std::vector<int>{0, 0, 1, 1, 1});
  const ft::NumaPlan one = plan_of(m, 1);
  REQUIRE(one.nodes.size() == 1);
  CHECK(one.nodes[0].os_index == 1);
  CHECK(one.pinning == std::vector<int>{1});
}

TEST_CASE("an affinity mask that leaves a node few CPUs leaves it few workers and few experts") {
  const Machine m = machine(kTwoNodes);
  const std::vector<int> pinning{0, 2, 4, 8};  // three on node 0, one on node 1
  const ft::NumaPlan plan = ft::make_numa_plan(m.topology, pinning, 4);
  REQUIRE(plan.nodes.size() == 2);
  CHECK(plan.nodes[0].workers.end == 3);
  CHECK(ft::experts_of_node(plan, 0, 128).end == 96);
  CHECK(ft::experts_of_node(plan, 1, 128).begin == 96);
  CHECK(ft::experts_of_node(plan, 1, 128).end == 128);
  const ft::NumaPlan unknown = ft::make_numa_plan(m.topology, std::vector<int>{99, 8}, 2);
  CHECK(unknown.pinning == std::vector<int>{99, 8});
}

TEST_CASE("workers of a node follow each other, and every worker and expert has one node, whatever the machine") {
  for (const char* synthetic : {"pack:2 [numa] core:8 pu:2", "pack:4 [numa] core:3 pu:1", "numa:3 core:5 pu:2"}) {
    const Machine m = machine(synthetic);
    for (int threads = 1; threads <= 2 * static_cast<int>(m.pinning.size()); ++threads) {
      INFO(std::string(synthetic), " threads ", threads);
      const ft::NumaPlan plan = plan_of(m, threads);
      int64_t worker = 0, expert = 0;
      for (size_t node = 0; node < plan.nodes.size(); ++node) {
        CHECK(plan.nodes[node].workers.begin == worker);
        CHECK(plan.nodes[node].workers.end > worker);
        worker = plan.nodes[node].workers.end;
        const ft::Range experts = ft::experts_of_node(plan, node, 61);
        CHECK(experts.begin == expert);
        expert = experts.end;
        if (plan.nodes.size() == 1) continue;
        for (int64_t i = plan.nodes[node].workers.begin; i < worker; ++i) {
          const auto& nodes = m.topology.numa_nodes;
          const auto home = std::find_if(nodes.begin(), nodes.end(),
                                         [&](const auto& n) { return n.os_index == plan.nodes[node].os_index; });
          const int cpu = plan.pinning[static_cast<size_t>(i)];
          CHECK(std::count(home->cpus.begin(), home->cpus.end(), cpu) == 1);
        }
      }
      CHECK(worker == threads);
      CHECK(expert == 61);
    }
  }
}

TEST_CASE("a bank's parts cover it without gaps, on whole huge pages, each byte within 1 MiB of its expert's node") {
  const Machine m = machine("pack:4 [numa] core:3 pu:1");
  for (const int threads : {2, 4, 5, 12}) {
    const ft::NumaPlan plan = plan_of(m, threads);
    const std::vector<int64_t> blobs{2'772'992, 14'159'872, 4096, 2'772'992};
    constexpr int kExperts = 37;
    const auto parts = ft::bank_parts(plan, blobs, kExperts);
    int64_t at = 0;
    for (const ft::BankPart& part : parts) {
      CHECK(part.offset == at);
      CHECK(part.bytes > 0);
      CHECK(part.offset % kHugePageBytes == 0);
      at += part.bytes;
    }
    CHECK(at == kExperts * std::accumulate(blobs.begin(), blobs.end(), int64_t{0}));
    int64_t begin = 0;
    for (const int64_t bytes : blobs) {
      for (size_t node = 0; node < plan.nodes.size(); ++node) {
        const ft::Range experts = ft::experts_of_node(plan, node, kExperts);
        const int64_t low = begin + experts.begin * bytes + kHugePageBytes / 2;
        const int64_t high = begin + experts.end * bytes - kHugePageBytes / 2;
        for (const ft::BankPart& part : parts) {
          const bool meets = low < high && part.offset < high && low < part.offset + part.bytes;
          if (meets) CHECK(part.os_node == plan.nodes[node].os_index);
        }
      }
      begin += bytes * kExperts;
    }
  }
}

TEST_CASE("this machine's first node can be preferred, one that does not exist cannot") {
  ft::HostBuffer memory(4 << 20);
  memory.data()[5] = std::byte{7};
  const std::span<std::byte> bytes(memory.data(), static_cast<size_t>(memory.bytes()));
  const int node = ft::detect_topology().numa_nodes.front().os_index;
  if (!ft::prefer_node(bytes, node)) {
    MESSAGE("skipped: the kernel refuses mbind here");
    return;
  }
  CHECK(memory.data()[5] == std::byte{7});
  CHECK_FALSE(ft::prefer_node(bytes, 1023));
  CHECK_FALSE(ft::prefer_node(bytes, 1024));
  CHECK_FALSE(ft::prefer_node(bytes, -1));
}
