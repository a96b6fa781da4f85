// The plan of a layer for one token whose experts are all in slots, by one warp: place_by_table's writes
// (plan_table.cuh) with nothing left to read. A decode step that runs from slots makes this plan in every layer, and
// what a plan reads of the table one after the other costs more than all its arithmetic.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/plan_table.cuh"

namespace ft::cuda {

// What place_hits needs of the table, read ahead: arrays in shared memory, by expert of the layer.
struct HitTable {
  const int32_t* slot;         // or -1
  const uint64_t* priority;    // of its key
  const uint64_t* prefetched;  // prefetched_in of its slot
};

// A token's predictions for the next layer: lane i of the first warp has the i-th, or -1, and its slot, or -1.
struct Predicted {
  int32_t id = -1, slot = -1;
};

// The lane's prediction, where the layer looks ahead; of more than a warp of them, which no plan of hits takes, one of
// those behind in two lanes.
__device__ __forceinline__ int32_t prediction_of_lane(const PlanArgs& a) {
  if (a.max_prefetches == 0 || a.table.slots == 0 || a.layer + 1 >= a.table.layers) return -1;
  const auto lane = static_cast<int>(threadIdx.x);
  const int32_t own = lane < a.predicted_ranks ? a.predicted[lane] : -1;
  const int32_t behind = a.predicted_ranks > kWarp ? a.predicted[kWarp] : -1;
  return behind >= 0 ? behind : own;
}

// Lane s < k of the first warp has the s-th expert; the other lanes have any id. Whole warp. False, and nothing is
// written, where the plan is more than hits.
__device__ inline bool place_hits(const PlanArgs& a, const PlanInput& input, const HitTable& hits, int32_t id,
                                  const Predicted& predicted) {
  const SlotTableView& table = a.table;
  const int lane = static_cast<int>(threadIdx.x), k = a.top_k;
  if (a.placement != Placement::kTable || table.slots == 0) return false;
  // With no miss and every prediction in a slot nothing is prefetched. One that is named twice is left to the full
  // plan.
  const unsigned names = __ballot_sync(kFullWarp, predicted.id >= 0);
  if (names != 0 && (__any_sync(kFullWarp, predicted.id >= 0 && predicted.slot < 0) ||
                     __any_sync(kFullWarp, predicted.id >= 0 && __popc(__match_any_sync(names, predicted.id)) > 1))) {
    return false;
  }
  const PlanTime time = time_of(a, input);
  if (time.new_step && input.aside > 0) return false;  // something is held from the step before
  const bool has = lane < k, named = has && id >= 0;
  const int slot = named ? hits.slot[id] : -1;
  const uint64_t prefetched = slot >= 0 ? hits.prefetched[id] : 0;
  const bool hit = slot >= 0 && prefetched != time.step;
  int d = 0, same = 0;  // place among the experts; how often it is named
#pragma unroll 4
  for (int other = 0; other < k; ++other) {
    const int32_t other_id = __shfl_sync(kFullWarp, id, other);
    d += other_id < id;
    same += other_id == id;
  }
  if (__any_sync(kFullWarp, has && (!hit || same != 1))) return false;
  const int useful = __popc(__ballot_sync(kFullWarp, has && prefetched != 0));
  if (has) {
    ExpertItem item{};
    item.blob = a.slots + slot * a.slot_bytes;
    item.pair_begin = d;
    item.pair_count = 1;
    a.work.items[d] = item;
    a.work.pairs[d] = lane;
    a.work.from_host[lane] = 0;
    const int32_t key = a.layer * table.experts + id;
    const uint64_t priority =
        priority_after_use(hits.priority[id], use_time(time.plan, d), table.half_life_log2, kUseBonus);
    table.priority_of_key[key] = priority;
    table.stamp[slot] = victim_stamp(priority, slot, table.slot_bits);
    if (prefetched != 0) table.prefetched_in[slot] = 0;
  }
  write_counts(a, k, 0);
  if (lane != 0) return true;
  *a.work.ticket = 0;
  const auto count = [](uint64_t& counter, int by) {
    if (by > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), static_cast<unsigned long long>(by));
  };
  count(a.counters->hits, k);
  count(a.counters->useful, useful);
  count(a.counters->predicted, __popc(names));
  count(a.counters->misses_histogram[0], 1);
  table.clock[kPlanNumber] = time.plan;
  table.clock[kStepNumber] = time.step;
  table.clock[kLastLayerPlusOne] = static_cast<uint64_t>(a.layer + 1);
  table.clock[kAside] = static_cast<uint64_t>(time.aside);
  return true;
}

}  // namespace ft::cuda
