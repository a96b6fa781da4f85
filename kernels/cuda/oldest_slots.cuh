// The k slots with the lowest stamps (kernels/base/use_priority.h): a radix select, eight bits a pass. For one block.
//
// A block-wide minimum per victim would cost a quarter of a microsecond each, and a cold cache at batch 8 has 64 of
// them; here the cost does not depend on k: a pass for every eight bits that the stamps span, fewer when a bin's end
// happens to be the bound: three to four for 12,288 slots whose priorities span a hundred steps of 48 layers.
#pragma once

#include <cstdint>

#include "kernels/base/use_priority.h"

namespace ft::cuda {

inline constexpr int kPlanThreads = 512;
inline constexpr int kPlanWarps = kPlanThreads / 32;
inline constexpr int kDigitBits = 8;
inline constexpr int kBins = 1 << kDigitBits;

// Stamps of all slots, the first kCached * kPlanThreads of them in registers: 4096 slots are read once, not once a
// pass.
struct Stamps {
  static constexpr int kCached = 8;

  __device__ Stamps(const uint64_t* stamps, int slots) : all(stamps), count(slots) {
#pragma unroll
    for (int i = 0; i < kCached; ++i) {
      const int slot = static_cast<int>(threadIdx.x) + i * kPlanThreads;
      cached[i] = slot < slots ? stamps[slot] : 0;
    }
  }
  // f(slot, stamp), each slot by one thread.
  template <class F>
  __device__ void for_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kCached; ++i) {
      const int slot = static_cast<int>(threadIdx.x) + i * kPlanThreads;
      if (slot < count) f(slot, cached[i]);
    }
    for (int slot = static_cast<int>(threadIdx.x) + kCached * kPlanThreads; slot < count; slot += kPlanThreads) {
      f(slot, all[slot]);
    }
  }

  const uint64_t* all;
  int count;
  uint64_t cached[kCached];
};

struct SelectState {  // shared memory
  uint64_t warp_minimum[kPlanWarps], warp_maximum[kPlanWarps];
  uint32_t bins[kBins];
  uint32_t bin, below, inside;  // where the k-th smallest is; how many lie below its bin, and in it
  int collected;
};

// Of all threads' values.
__device__ inline void range_in_block(uint64_t& low, uint64_t& high, SelectState& state) {
  for (int offset = 16; offset > 0; offset /= 2) {
    low = min(low, __shfl_xor_sync(~0u, low, offset));
    high = max(high, __shfl_xor_sync(~0u, high, offset));
  }
  if (threadIdx.x % 32 == 0) {
    state.warp_minimum[threadIdx.x / 32] = low;
    state.warp_maximum[threadIdx.x / 32] = high;
  }
  __syncthreads();
  for (const uint64_t other : state.warp_minimum) low = min(low, other);
  for (const uint64_t other : state.warp_maximum) high = max(high, other);
}

// Warp 0: the bin in which the running sum of counts reaches `wanted` (>= 1, at most the sum).
__device__ inline void find_bin(uint32_t wanted, SelectState& state) {
  constexpr int kBinsPerLane = kBins / 32;
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t sum = 0;
  for (int i = 0; i < kBinsPerLane; ++i) sum += state.bins[lane * kBinsPerLane + i];
  uint32_t through = sum;  // counts up to and with this lane's bins
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, through, offset);
    if (lane >= offset) through += other;
  }
  uint32_t below = through - sum;
  if (below >= wanted || through < wanted) return;
  for (int i = 0; i < kBinsPerLane; ++i) {
    const uint32_t inside = state.bins[lane * kBinsPerLane + i];
    if (below + inside >= wanted) {
      state.bin = static_cast<uint32_t>(lane * kBinsPerLane + i);
      state.below = below;
      state.inside = inside;
      return;
    }
    below += inside;
  }
}

// The k smallest stamps below kHeldStamp, in no order, to stamps[k] and slots[k]. REQUIRES 1 <= k <= the number of such
// stamps, all different. Every thread of the block calls it; ends with a barrier.
__device__ inline void select_oldest(const Stamps& all, int k, SelectState& state, uint64_t* stamps, int* slots) {
  uint64_t oldest = kHeldStamp, newest = 0;
  all.for_each([&](int, uint64_t stamp) {
    oldest = min(oldest, stamp);
    if (stamp != kHeldStamp) newest = max(newest, stamp);
  });
  if (threadIdx.x == 0) state.collected = 0;
  range_in_block(oldest, newest, state);
  uint64_t base = 0;  // the k-th smallest, less `oldest`, is in [base, base + 2^shift)
  int shift = 64 - __clzll(static_cast<long long>(newest - oldest));
  auto wanted = static_cast<uint32_t>(k);
  while (shift > 0) {
    const int digit_bits = min(kDigitBits, shift);
    const int next_shift = shift - digit_bits;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kPlanThreads) state.bins[i] = 0;
    __syncthreads();
    const uint64_t end = base + (uint64_t{1} << shift);
    all.for_each([&](int, uint64_t stamp) {
      const uint64_t age = stamp - oldest;
      if (stamp <= newest && age >= base && age < end) atomicAdd(&state.bins[(age - base) >> next_shift], 1u);
    });
    __syncthreads();
    if (threadIdx.x < 32) find_bin(wanted, state);
    __syncthreads();
    base += static_cast<uint64_t>(state.bin) << next_shift;
    wanted -= state.below;
    shift = next_shift;
    if (state.inside == wanted) break;
  }
  const uint64_t bound = base + (uint64_t{1} << shift);
  all.for_each([&](int slot, uint64_t stamp) {
    if (stamp > newest || stamp - oldest >= bound) return;
    const int at = atomicAdd(&state.collected, 1);
    if (at < k) {  // equal stamps, which the table's owner must not make, would find more
      stamps[at] = stamp;
      slots[at] = slot;
    }
  });
  __syncthreads();
}

}  // namespace ft::cuda
