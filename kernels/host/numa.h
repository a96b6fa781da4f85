// Which workers and which part of every expert bank belong to which NUMA node. Plans are pure; one node changes
// nothing.
//
// One pool spans the nodes and its workers stand node by node. A layer's experts are cut into one contiguous range per
// node, and its work is a line of experts in ascending order that is cut into contiguous parts, one per worker: so most
// of what a worker reads lies on its own node, and where a layer's experts fall unevenly the parts at the border read
// across instead of waiting. Unmeasured: no machine with two nodes has run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/host/topology.h"
#include "kernels/host/worker_pool.h"

namespace ft {

struct NumaPlan {
  struct Node {
    int os_index = 0;
    Range workers;
  };
  std::vector<Node> nodes;   // with workers, in the topology's order; at least one
  std::vector<int> pinning;  // OS index per worker, for WorkerPoolOptions::cpus; one node: as given
};

// `threads` workers on the CPUs of `pinning` (CpuBudget::pinning): every node gets its share of them, and uses its CPUs
// in the order given, starting over when they are too few. CPUs of no node count for the first one. A machine with one
// node, or no pinning: one node, and `pinning` stays as it is.
NumaPlan make_numa_plan(const HostTopology& topology, std::span<const int> pinning, int threads);

// The experts of one layer whose weights lie on plan.nodes[node]: in proportion to its workers.
Range experts_of_node(const NumaPlan& plan, size_t node, int experts);

// Where the bytes of a bank [layer][expert] lie, in order and without gaps. Borders are moved to the nearest multiple
// of 2 MiB, so that huge pages stay whole. blob_bytes: of one expert, per layer.
struct BankPart {
  int os_node = 0;
  int64_t offset = 0, bytes = 0;
};
std::vector<BankPart> bank_parts(const NumaPlan& plan, std::span<const int64_t> blob_bytes, int experts);

// Has the kernel keep the pages of `memory` (page aligned) on a node, those that are there already too. False when it
// refuses, as container policies do: then they stay where they were touched first.
bool prefer_node(std::span<const std::byte> memory, int os_node);

}  // namespace ft
