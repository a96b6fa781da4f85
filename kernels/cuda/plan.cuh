// The plan of one layer, by one block of kPlanThreads: what plan_layer and route_and_plan run. See moe.h.
#pragma once

#include "kernels/cuda/plan_lists.cuh"
#include "kernels/cuda/plan_table.cuh"

namespace ft::cuda {

__device__ inline void place_all_hits(const PlanArgs& a, const PlanLists& lists, int distinct, PlanState& state) {
  for (int d = static_cast<int>(threadIdx.x); d < distinct; d += kPlanThreads) {
    const int expert = lists.expert(d);
    const std::byte* blob = a.bank + expert * a.blob_bytes;
    if (a.table.slots > 0) blob = a.slots + (a.layer * a.table.experts + expert) % a.table.slots * a.slot_bytes;
    a.work.items[d] = item_of(lists, d, blob);
  }
  hand_over(a, lists, 0, state);
  write_counts(a, distinct, 0);
}

// d of the expert, or -1.
__device__ inline int find_expert(const PlanLists& lists, int distinct, int expert) {
  int low = 0, high = distinct;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (lists.expert(middle) < expert) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < distinct && lists.expert(low) == expert ? low : -1;
}

__device__ inline void place_given(const PlanArgs& a, const PlanLists& lists, int distinct, PlanState& state) {
  const int hits = a.given.counts[0], fetches = a.given.counts[1], cpu = a.given.counts[2];
  const int promotions = a.given.counts[3];
  for (int i = static_cast<int>(threadIdx.x); i < hits + fetches + cpu; i += kPlanThreads) {
    const int expert = a.given.expert[i], d = find_expert(lists, distinct, expert);
    const std::byte* source = a.bank + expert * a.blob_bytes;
    if (i >= hits + fetches) {
      if (d >= 0) give_to_host(lists, d, a.top_k, state);
      const int promoted = i - hits - fetches;
      if (promoted < promotions) {
        queue_end(a.queue, kPromotion)[promoted] = copy_to_slot(a, a.given.promoted[promoted], source, a.units);
      }
      continue;
    }
    const int slot = a.given.slot[i];
    const std::byte* blob = a.slots + slot * a.slot_bytes;
    a.work.items[i] = item_of(lists, d, blob, i < hits ? -1 : slot);
    if (i >= hits) a.work.fetches[i - hits] = copy_to_slot(a, slot, source, a.units);
  }
  hand_over(a, lists, cpu, state);
  if (threadIdx.x == 0) append_queued(a.queue, kPromotion, promotions);
  write_counts(a, hits, fetches);
}

// Checks what both launchers require; the largest number of distinct experts.
int check_plan(const PlanArgs& args);

// Plans the layer; every thread of the block calls it. `memory`: PlanLists::bytes of shared memory, in which nothing of
// `input` lies.
__device__ inline void plan_in_block(const PlanArgs& a, const PlanInput& input, int most_distinct,
                                     unsigned char* memory, PlanState& state) {
  const PlanLists lists(memory, PlanLists::sizes_of(a, most_distinct));
  const int distinct = group_pairs(a, input.ids, lists, state);
  switch (a.placement) {
    case Placement::kTable:
      place_by_table(a, input, lists, distinct, state);
      break;
    case Placement::kAllHits:
      place_all_hits(a, lists, distinct, state);
      break;
    case Placement::kGiven:
      place_given(a, lists, distinct, state);
      break;
  }
}

}  // namespace ft::cuda
