// The search of victims.h. Each warp keeps the lowest stamps of its share of the slots, the block that comes last
// merges the warps' lists.
#pragma once

#include "kernels/base/use_priority.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/victims.h"

namespace ft::cuda {

inline constexpr int kStampsPerLane = 4;
inline constexpr int kStampsPerPass = kStampsPerLane * kWarp;

__device__ __forceinline__ uint64_t lowest_in_warp(uint64_t value) {
  const auto high = static_cast<uint32_t>(value >> 32), low = static_cast<uint32_t>(value);
  const uint32_t lowest = __reduce_min_sync(kFullWarp, high);
  return uint64_t{lowest} << 32 | __reduce_min_sync(kFullWarp, high == lowest ? low : ~0u);
}

// A slot's stamp; where the step ends with this layer, that of a held one as it is from now on.
__device__ __forceinline__ uint64_t released_stamp(const VictimSearch& search, int slot, uint64_t stamp) {
  if (stamp != kHeldStamp || search.priority_of_key == nullptr) return stamp;
  const int32_t key = __ldcg(search.key_of_slot + slot);
  stamp = victim_stamp(key < 0 ? 0 : __ldcg(search.priority_of_key + key), slot, search.slot_bits);
  search.stamp[slot] = stamp;
  return stamp;
}

// The `count` lowest of stamps [first, end) of `from`, every `step`-th pass of them: the i-th in lane i; kHeldStamp
// where there are none. All that are not held are different. stamp_of(place, what is there) is each one's stamp.
template <class StampOf>
__device__ __forceinline__ uint64_t lowest_stamps(const uint64_t* from, int first, int end, int step, int count,
                                                  StampOf&& stamp_of) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  uint64_t best = kHeldStamp;
#pragma unroll 1
  for (int base = first; base < end; base += step) {
    uint64_t own[kStampsPerLane + 1];
#pragma unroll
    for (int j = 0; j < kStampsPerLane; ++j) {
      const int at = base + j * kWarp + lane;
      own[j] = at < end ? __ldcg(from + at) : kHeldStamp;
    }
#pragma unroll
    for (int j = 0; j < kStampsPerLane; ++j) {
      const int at = base + j * kWarp + lane;
      if (at < end) own[j] = stamp_of(at, own[j]);
    }
    own[kStampsPerLane] = best;
    best = kHeldStamp;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      uint64_t lowest = own[0];
#pragma unroll
      for (int j = 1; j <= kStampsPerLane; ++j) lowest = min(lowest, own[j]);
      lowest = lowest_in_warp(lowest);
      if (lane == i) best = lowest;
#pragma unroll
      for (int j = 0; j <= kStampsPerLane; ++j) own[j] = own[j] == lowest ? kHeldStamp : own[j];
    }
  }
  return best;
}

// The `count` lowest of all warps' lists, each in ascending order: the i-th in lane i. A lane has a list.
__device__ __forceinline__ uint64_t merge_lists(const uint64_t* found, int count) {
  static_assert(kSearchWarps == kWarp);
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint64_t* list = found + lane * count;
  uint64_t head = __ldcg(list), next = count > 1 ? __ldcg(list + 1) : kHeldStamp, best = kHeldStamp;
  int at = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const uint64_t lowest = lowest_in_warp(head);
    if (lane == i) best = lowest;
    if (head != lowest || lowest == kHeldStamp) continue;
    ++at;
    head = next;
    next = at + 1 < count ? __ldcg(list + at + 1) : kHeldStamp;
  }
  return best;
}

// By all threads of the kSearchBlocks blocks, (kWarp, 2) each, after the plan before has ended.
inline __device__ __noinline__ void search_victims_in_block(const VictimSearch& search, int block) {
  const auto lane = static_cast<int>(threadIdx.x), warp = block * 2 + static_cast<int>(threadIdx.y);
  const bool first_thread = threadIdx.x + threadIdx.y == 0;
  const uint64_t own =
      lowest_stamps(search.stamp, warp * kStampsPerPass, search.slots, kSearchWarps * kStampsPerPass, search.count,
                    [&](int slot, uint64_t stamp) { return released_stamp(search, slot, stamp); });
  if (lane < search.count) search.to->found[warp * search.count + lane] = own;
  __syncthreads();
  uint32_t before = 0;
  if (first_thread) {
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(&search.to->arrived) : "memory");
  }
  if (__syncthreads_or(first_thread && before == kSearchBlocks - 1) == 0 || threadIdx.y != 0) return;
  const uint64_t stamp = merge_lists(search.to->found, search.count);
  Victim victim{stamp, 0, -1, 0};
  if (stamp != kHeldStamp) {
    const auto slot = static_cast<int64_t>(stamp & ((uint64_t{1} << search.slot_bits) - 1));
    victim.key = __ldcg(search.key_of_slot + slot);
    victim.filled_in = __ldcg(search.filled_in + slot);
  }
  search.to->victim[lane] = victim;
  if (lane == 0) {
    const uint64_t plan_number = __ldcg(search.plan_number);
    search.to->plan_number = plan_number;
    search.to->released_after = search.priority_of_key == nullptr ? 0 : plan_number;
    search.to->arrived = 0;
  }
}

}  // namespace ft::cuda
