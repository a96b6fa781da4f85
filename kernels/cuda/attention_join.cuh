// Joining parts of a context as kernels/ops/attention.h says, up to 16 at a time: neighbours of a tree in slots, and
// groups in order. Weights are made once per part and head by a warp a head, values are joined by all threads.
#pragma once

#include <limits>

#include "kernels/cuda/math.cuh"

namespace ft::cuda {

inline constexpr int kSlots = 16;
inline constexpr int kTreeLevels = 4;
static_assert(1 << kTreeLevels == kSlots);

// Slots that hold something visible: [first, last].
struct SlotRange {
  int first = 0, last = 0;
  __device__ __forceinline__ bool any(int slot, int count) const { return slot <= last && slot + count - 1 >= first; }
};

// Maximum and sum of a part.
struct Softmax {
  float m = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

template <int kHeads>
struct JoinWeights {
  float tree[kTreeLevels][kSlots][kHeads];  // a slot's own weight when it joins at a level
  // For groups in order, by the group's first slot: weights of what was joined before and of the group; its sum.
  float before[kSlots][kHeads], group[kSlots][kHeads], sum[kSlots][kHeads];
};

// One warp, one head; lane l and l + 16 hold slot l. Trees of `leaves` (a power of two) slots each; afterwards every
// lane has its tree's result.
template <int kHeads>
__device__ __forceinline__ void weigh_trees(JoinWeights<kHeads>& weights, int head, int lane, int leaves,
                                            SlotRange range, Softmax& part) {
  const int slot = lane % kSlots;
#pragma unroll
  for (int level = 0; level < kTreeLevels; ++level) {
    const int width = 1 << level;
    if (width >= leaves) break;
    const float other_m = __shfl_xor_sync(kFullWarp, part.m, width);
    const float other_sum = __shfl_xor_sync(kFullWarp, part.sum, width);
    const float larger = f32::max(part.m, other_m);
    const float w = f32::exp(f32::sub(part.m, larger));
    const float other_w = __shfl_xor_sync(kFullWarp, w, width);
    const bool right = (slot & width) != 0;
    const int pair = slot & ~(2 * width - 1);
    const bool has_left = range.any(pair, width), has_right = range.any(pair + width, width);
    if (has_left && has_right) {
      weights.tree[level][slot][head] = w;
      const float left_part = right ? f32::mul(other_sum, other_w) : f32::mul(part.sum, w);
      part.sum = right ? f32::fma(part.sum, w, left_part) : f32::fma(other_sum, other_w, left_part);
      part.m = larger;
    } else if (right ? has_left : has_right) {  // the other side is the result
      part.m = other_m;
      part.sum = other_sum;
    }
  }
}

// After weigh_trees: the groups of these slots in order, after those that gave the maximum `before` (-inf: none).
// Returns the maximum of all, in every lane.
template <int kHeads>
__device__ __forceinline__ float weigh_groups(JoinWeights<kHeads>& weights, int head, int lane, int leaves,
                                              const Softmax& part, float before) {
  const int slot = lane % kSlots;
  float m = part.m;  // of this group and those before it
#pragma unroll
  for (int width = 1; width < kSlots; width *= 2) {
    const float earlier = __shfl_up_sync(kFullWarp, m, width, kSlots);
    if (slot >= width) m = f32::max(m, earlier);
  }
  m = f32::max(m, before);
  const int first = slot / leaves * leaves;
  float earlier = __shfl_sync(kFullWarp, m, first == 0 ? 0 : first - 1, kSlots);
  if (first == 0) earlier = before;
  weights.before[slot][head] = f32::exp(f32::sub(earlier, m));
  weights.group[slot][head] = f32::exp(f32::sub(part.m, m));
  weights.sum[slot][head] = part.sum;
  return __shfl_sync(kFullWarp, m, kSlots - 1, kSlots);
}

__device__ __forceinline__ float2 join(float2 a, float wa, float2 b, float wb) {
  return {f32::fma(b.x, wb, f32::mul(a.x, wa)), f32::fma(b.y, wb, f32::mul(a.y, wa))};
}

// Two outputs of a head: slots to the first slot of each tree.
template <int kHeads>
__device__ __forceinline__ void join_trees(const JoinWeights<kHeads>& weights, int head, int leaves, SlotRange range,
                                           float2 (&values)[kSlots]) {
#pragma unroll
  for (int level = 0; level < kTreeLevels; ++level) {
    const int width = 1 << level;
    if (width >= leaves) break;
#pragma unroll
    for (int slot = 0; slot < kSlots; slot += 2 * width) {
      if (!range.any(slot + width, width)) continue;
      if (range.any(slot, width)) {
        values[slot] = join(values[slot], weights.tree[level][slot][head], values[slot + width],
                            weights.tree[level][slot + width][head]);
      } else {
        values[slot] = values[slot + width];
      }
    }
  }
}

// Groups joined so far, two outputs of a head.
struct Joined {
  bool any = false;
  float2 out = {0.0f, 0.0f};
  float sum = 0.0f;

  template <int kHeads>
  __device__ __forceinline__ void take(const JoinWeights<kHeads>& weights, int head, int leaves, SlotRange range,
                                       const float2 (&values)[kSlots]) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (slot % leaves != 0 || !range.any(slot, leaves)) continue;
      const float group_sum = weights.sum[slot][head];
      if (any) {
        const float before = weights.before[slot][head], group = weights.group[slot][head];
        out = join(out, before, values[slot], group);
        sum = f32::fma(group_sum, group, f32::mul(sum, before));
      } else {
        out = values[slot];
        sum = group_sum;
        any = true;
      }
    }
  }
};

}  // namespace ft::cuda
