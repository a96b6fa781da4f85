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
//
// A join with one side missing leaves the other as it is, to the sign of a zero, and takes no branch: a missing part is
// -0 and both weights are 1, so that fma(-0, 1, a * 1) is a and fma(b, 1, -0 * 1) is b.
struct SlotRange {
  int first = 0, last = 0;
  __device__ __forceinline__ bool any(int slot, int count) const { return slot <= last && slot + count - 1 >= first; }
};
inline constexpr float kMissing = -0.0f;

// Maximum and sum of a part.
struct Softmax {
  float m = -std::numeric_limits<float>::infinity();
  float sum = kMissing;
};

template <int kHeads>
struct JoinWeights {
  alignas(16) float tree[kTreeLevels][kHeads][kSlots];  // a slot's own weight when it joins at a level
  // For groups in order, by the group's first slot: weights of what was joined before and of the group; its sum.
  alignas(16) float before[kHeads][kSlots], group[kHeads][kSlots], sum[kHeads][kSlots];
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
    const int own = slot & ~(width - 1);
    const bool both = range.any(own, width) && range.any(own ^ width, width);
    const float larger = f32::max(part.m, other_m);
    const float w = both ? f32::exp(f32::sub(part.m, larger)) : 1.0f;
    const float other_w = __shfl_xor_sync(kFullWarp, w, width);
    const bool right = (slot & width) != 0;
    weights.tree[level][head][slot] = w;
    const float left_sum = right ? other_sum : part.sum, right_sum = right ? part.sum : other_sum;
    const float left_w = right ? other_w : w, right_w = right ? w : other_w;
    part.sum = f32::fma(right_sum, right_w, f32::mul(left_sum, left_w));
    part.m = larger;  // a missing one's is -inf
  }
}

// After weigh_trees: the groups of these slots in order, after those that gave the maximum `before`, if there are any.
// Returns the maximum of all, in every lane.
template <int kHeads>
__device__ __forceinline__ float weigh_groups(JoinWeights<kHeads>& weights, int head, int lane, int leaves,
                                              SlotRange range, const Softmax& part, bool any_before, float before) {
  const int slot = lane % kSlots;
  float m = part.m;  // of this group and those before it
#pragma unroll
  for (int width = 1; width < kSlots; width *= 2) {
    const float earlier = __shfl_up_sync(kFullWarp, m, width, kSlots);
    if (slot >= width) m = f32::max(m, earlier);
  }
  m = f32::max(m, before);
  const int first = slot & ~(leaves - 1);
  float earlier = __shfl_sync(kFullWarp, m, first == 0 ? 0 : first - 1, kSlots);
  if (first == 0) earlier = before;
  const bool both = (any_before || range.first < first) && range.any(first, leaves);
  weights.before[head][slot] = both ? f32::exp(f32::sub(earlier, m)) : 1.0f;
  weights.group[head][slot] = both ? f32::exp(f32::sub(part.m, m)) : 1.0f;
  weights.sum[head][slot] = part.sum;
  return __shfl_sync(kFullWarp, m, kSlots - 1, kSlots);
}

__device__ __forceinline__ float2 join(float2 a, float wa, float2 b, float wb) {
  return {f32::fma(b.x, wb, f32::mul(a.x, wa)), f32::fma(b.y, wb, f32::mul(a.y, wa))};
}

// Two outputs of a head: slots to the first slot of each tree. Missing slots are kMissing.
template <int kHeads>
__device__ __forceinline__ void join_trees(const JoinWeights<kHeads>& weights, int head, int leaves,
                                           float2 (&values)[kSlots]) {
#pragma unroll
  for (int level = 0; level < kTreeLevels; ++level) {
    const int width = 1 << level;
    if (width >= leaves) break;
    const float* w = weights.tree[level][head];
#pragma unroll
    for (int slot = 0; slot < kSlots; slot += 2 * width) {
      values[slot] = join(values[slot], w[slot], values[slot + width], w[slot + width]);
    }
  }
}

// Groups joined so far, two outputs of a head.
struct Joined {
  float2 out = {kMissing, kMissing};
  float sum = kMissing;

  template <int kHeads>
  __device__ __forceinline__ void take(const JoinWeights<kHeads>& weights, int head, int leaves,
                                       const float2 (&values)[kSlots]) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if ((slot & (leaves - 1)) != 0) continue;
      const float before = weights.before[head][slot], group = weights.group[head][slot];
      out = join(out, before, values[slot], group);
      sum = f32::fma(weights.sum[head][slot], group, f32::mul(sum, before));
    }
  }
};

}  // namespace ft::cuda
