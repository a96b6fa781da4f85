// router_top_k (kernels/ops/rows.h) of one token by one warp, without shared memory or barriers.
//
// Expert lane + 32 j is the lane's j-th. Each lane sorts its own experts, then the k largest are taken one by one: a
// reduction over the warp finds the best of what the lanes have left. Keys are the probabilities' bits + 1, which
// compare as the values do.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

struct Chosen {  // of slot s, in lane s < k
  int32_t id;
  float weight;
};

// Largest key first, of equal ones the lower expert: Batcher's odd-even merge sort (1968), whose comparisons of one
// step do not wait for each other. kCount a power of two.
template <int kCount>
__device__ __forceinline__ void sort_largest_first(uint32_t (&key)[kCount], int32_t (&expert)[kCount]) {
  static_assert((kCount & (kCount - 1)) == 0);
  const auto order = [&](int i, int j) {
    const bool swap = key[j] > key[i] || (key[j] == key[i] && expert[j] < expert[i]);
    const uint32_t low = swap ? key[i] : key[j];
    const int32_t low_expert = swap ? expert[i] : expert[j];
    key[i] = swap ? key[j] : key[i];
    expert[i] = swap ? expert[j] : expert[i];
    key[j] = low;
    expert[j] = low_expert;
  };
#pragma unroll
  for (int p = 1; p < kCount; p *= 2) {
#pragma unroll
    for (int k = p; k >= 1; k /= 2) {
#pragma unroll
      for (int j = k % p; j + k < kCount; j += 2 * k) {
#pragma unroll
        for (int i = 0; i < k; ++i) {
          if (i + j + k < kCount && (i + j) / (2 * p) == (i + j + k) / (2 * p)) order(i + j, i + j + k);
        }
      }
    }
  }
}

// logits: of the lane's experts; below kPerLane * 32 experts, k at most 32. expert_scale: (experts) or null. Whole
// warp.
template <int kPerLane>
__device__ __forceinline__ Chosen choose_token(const float (&logits)[kPerLane], int experts, int k, bool renormalize,
                                               const float* expert_scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float p[kPerLane], largest = -__builtin_huge_valf();
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    p[j] = lane + j * kWarp < experts ? logits[j] : -__builtin_huge_valf();
    largest = f32::max(p[j], largest);
  }
  const uint32_t bits = __float_as_uint(largest);
  const uint32_t ordered = __reduce_max_sync(kFullWarp, (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u);
  largest = __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
  float lane_sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) p[j] = f32::exp(f32::sub(p[j], largest));
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {  // lane l < 16 adds experts l, l + 16, ...
    const float upper = __shfl_down_sync(kFullWarp, p[j], kLanes);
    if (lane + j * kWarp < experts) lane_sum = f32::add(lane_sum, p[j]);
    if (lane + j * kWarp + kLanes < experts) lane_sum = f32::add(lane_sum, upper);
  }
  const float sum = __shfl_sync(kFullWarp, f32::tree_sum(lane_sum), 0);
  const bool is_nan = sum != sum;  // then every p is NaN, and the lowest ids are taken in order
  uint32_t key[kPerLane];
  int32_t expert[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    expert[j] = lane + j * kWarp;
    key[j] = expert[j] < experts ? (is_nan ? 1u : __float_as_uint(f32::div(p[j], sum)) + 1u) : 0u;
  }
  sort_largest_first(key, expert);
  Chosen chosen{0, 0.0f};
  float all = 0.0f;
  for (int s = 0; s < k; ++s) {
    const uint32_t best = __reduce_max_sync(kFullWarp, key[0]);
    const unsigned tied = __ballot_sync(kFullWarp, key[0] == best);
    int winner = __ffs(static_cast<int>(tied)) - 1;
    if ((tied & (tied - 1)) != 0) {
      const auto candidate = static_cast<unsigned>(key[0] == best ? expert[0] : kPerLane * kWarp);
      winner = static_cast<int>(__reduce_min_sync(kFullWarp, candidate)) % kWarp;
    }
    const int32_t id = __shfl_sync(kFullWarp, expert[0], winner);
    const float weight = is_nan ? sum : __uint_as_float(best - 1u);
    all = f32::add(all, weight);
    if (lane == s) chosen = {id, weight};
    const bool own = lane == winner;
#pragma unroll
    for (int j = 0; j + 1 < kPerLane; ++j) {
      key[j] = own ? key[j + 1] : key[j];
      expert[j] = own ? expert[j + 1] : expert[j];
    }
    key[kPerLane - 1] = own ? 0u : key[kPerLane - 1];
  }
  if (renormalize) chosen.weight = f32::div(chosen.weight, all);
  if (expert_scale != nullptr && lane < k) chosen.weight = f32::mul(chosen.weight, __ldg(expert_scale + chosen.id));
  return chosen;
}

}  // namespace ft::cuda
