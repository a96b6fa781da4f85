#include "kernels/host/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int kMaxNodes = 1024;  // Linux's MAX_NUMNODES at most

// The CPUs of `pinning` per node of the topology, order kept.
std::vector<std::vector<int>> cpus_of_nodes(const HostTopology& topology, std::span<const int> pinning) {
  std::vector<std::vector<int>> cpus(topology.numa_nodes.size());
  for (const int cpu : pinning) {
    size_t home = 0;
    for (size_t node = 0; node < topology.numa_nodes.size(); ++node) {
      const std::vector<int>& own = topology.numa_nodes[node].cpus;
      if (std::find(own.begin(), own.end(), cpu) != own.end()) home = node;
    }
    cpus[home].push_back(cpu);
  }
  return cpus;
}

int64_t nearest_huge_page(int64_t offset) { return (offset + kHugePageBytes / 2) / kHugePageBytes * kHugePageBytes; }

}  // namespace

NumaPlan make_numa_plan(const HostTopology& topology, std::span<const int> pinning, int threads) {
  FT_CHECK(threads >= 1);
  if (topology.numa_nodes.size() <= 1 || pinning.empty()) {
    const int os_index = topology.numa_nodes.empty() ? 0 : topology.numa_nodes[0].os_index;
    return {{{os_index, {0, threads}}}, {pinning.begin(), pinning.end()}};
  }
  NumaPlan plan;
  const std::vector<std::vector<int>> cpus = cpus_of_nodes(topology, pinning);
  const auto total = static_cast<int64_t>(pinning.size());
  int64_t before = 0;
  for (size_t node = 0; node < cpus.size(); ++node) {
    const auto own = static_cast<int64_t>(cpus[node].size());
    if (own == 0) continue;
    const Range workers{threads * before / total, threads * (before + own) / total};
    before += own;
    if (workers.begin == workers.end) continue;
    plan.nodes.push_back({topology.numa_nodes[node].os_index, workers});
    for (int64_t i = 0; i < workers.end - workers.begin; ++i) {
      plan.pinning.push_back(cpus[node][static_cast<size_t>(i % own)]);
    }
  }
  return plan;
}

Range experts_of_node(const NumaPlan& plan, size_t node, int experts) {
  const int64_t workers = plan.nodes.back().workers.end;
  const Range own = plan.nodes[node].workers;
  return {experts * own.begin / workers, experts * own.end / workers};
}

std::vector<BankPart> bank_parts(const NumaPlan& plan, std::span<const int64_t> blob_bytes, int experts) {
  std::vector<BankPart> parts;
  int64_t bank_bytes = 0;
  for (const int64_t bytes : blob_bytes) bank_bytes += bytes * experts;
  int64_t layer_offset = 0, at = 0;
  for (const int64_t bytes : blob_bytes) {
    for (size_t node = 0; node < plan.nodes.size(); ++node) {
      const int64_t border = layer_offset + experts_of_node(plan, node, experts).end * bytes;
      const int64_t end = border == bank_bytes ? border : std::min(nearest_huge_page(border), bank_bytes);
      if (end <= at) continue;
      const int os_node = plan.nodes[node].os_index;
      if (!parts.empty() && parts.back().os_node == os_node) {
        parts.back().bytes += end - at;
      } else {
        parts.push_back({os_node, at, end - at});
      }
      at = end;
    }
    layer_offset += bytes * experts;
  }
  return parts;
}

bool prefer_node(std::span<const std::byte> memory, int os_node) {
  if (os_node < 0 || os_node >= kMaxNodes) return false;
  constexpr int kBits = static_cast<int>(8 * sizeof(unsigned long));
  std::array<unsigned long, kMaxNodes / kBits> mask{};
  mask[static_cast<size_t>(os_node / kBits)] = 1UL << (os_node % kBits);
  // The kernel reads one bit less than it is told of.
  return ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, mask.data(), kMaxNodes + 1UL,
                   MPOL_MF_MOVE) == 0;
}

}  // namespace ft
