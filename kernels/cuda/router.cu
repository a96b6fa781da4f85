// Routers: RouterTopKArgs of kernels/ops/rows.h and RouterScoresArgs of kernels/ops/compressed.h. A block is a token:
// its threads make the probabilities, half a warp adds them in the canonical order, one warp takes the k largest.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/compressed.h"
#include "kernels/ops/rows.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// The largest logit, for every thread; NaN does not count. Which of two equal zeros it is makes no difference: every p
// is exp of a difference.
__device__ float largest_of(const float* values, int count, float* per_warp) {
  float largest = __uint_as_float(0xff800000u);
  for (int i = threadIdx.x; i < count; i += kThreads) largest = f32::max(values[i], largest);
#pragma unroll
  for (int width = kWarp / 2; width >= 1; width /= 2) {
    largest = f32::max(__shfl_xor_sync(kFullWarp, largest, width), largest);
  }
  if (threadIdx.x % kWarp == 0) per_warp[threadIdx.x / kWarp] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = f32::max(per_warp[warp], largest);
  return largest;
}

// The canonical sum: lane i mod 16 in increasing i. For the first warp; lane 0 gets it.
__device__ float sum_of(const float* values, int count) {
  float lane_sum = 0.0f;
  if (threadIdx.x < kLanes) {
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += kLanes) lane_sum = f32::add(lane_sum, values[i]);
  }
  return f32::tree_sum(lane_sum);
}

// One warp. Takes the k largest, ties to the lower index; a taken one becomes 0. take(slot, expert, key), by one
// thread.
template <class Take>
__device__ void take_largest(uint32_t* keys, int experts, int k, Take&& take) {
  const auto lane = static_cast<int>(threadIdx.x);
  uint32_t best = 0;
  int best_index = experts;
  const auto rescan = [&] {
    best = 0;
    best_index = experts;
    for (int i = lane; i < experts; i += kWarp) {
      if (keys[i] > best) best = keys[i], best_index = i;
    }
  };
  rescan();
  for (int slot = 0; slot < k; ++slot) {
    const uint32_t largest = __reduce_max_sync(kFullWarp, best);
    const auto candidate = static_cast<unsigned>(best == largest ? best_index : experts);
    const auto winner = static_cast<int>(__reduce_min_sync(kFullWarp, candidate));
    if (lane == 0) take(slot, winner, largest);
    if (winner % kWarp == lane) {
      keys[winner] = 0;
      rescan();
    }
  }
}

__global__ __launch_bounds__(kThreads) void router_kernel(const RouterArgs args) {
  __shared__ float p[kMaxRoutedExperts];
  __shared__ uint32_t keys[kMaxRoutedExperts];
  __shared__ float per_warp[kWarps];
  __shared__ float total;
  __shared__ int32_t chosen[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  const auto experts = static_cast<int>(args.experts);
  const float* logits = args.logits + token * args.logits_stride;
  for (int i = threadIdx.x; i < experts; i += kThreads) p[i] = logits[i];
  __syncthreads();
  const float largest = largest_of(p, experts, per_warp);
  for (int i = threadIdx.x; i < experts; i += kThreads) p[i] = f32::exp(f32::sub(p[i], largest));
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const float sum = sum_of(p, experts);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();
  const float sum = total;
  for (int i = threadIdx.x; i < experts; i += kThreads) keys[i] = __float_as_uint(f32::div(p[i], sum)) + 1u;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;

  const auto lane = static_cast<int>(threadIdx.x);
  const bool is_nan = sum != sum;  // then every p is NaN, and the lowest ids are taken in order
  if (is_nan) {
    for (int s = lane; s < args.k; s += kWarp) chosen[s] = s, weights[s] = sum;
  } else {
    // Keys are the probabilities' bits + 1, which compare as the values do, since none is negative.
    take_largest(keys, experts, args.k, [&](int slot, int expert, uint32_t key) {
      chosen[slot] = expert, weights[slot] = __uint_as_float(key - 1u);
    });
  }
  __syncwarp();
  float all = 0.0f;
  for (int s = 0; s < args.k; ++s) all = f32::add(all, weights[s]);
  const bool forced = args.forced != nullptr && *args.forced != 0;
  for (int s = lane; s < args.k; s += kWarp) {
    const int64_t at = token * args.k + s;
    const int32_t id = forced ? args.forced_ids[at] : chosen[s];
    args.ids[at] = id;
    float weight = args.renormalize ? f32::div(weights[s], all) : weights[s];
    if (args.expert_scale != nullptr) weight = f32::mul(weight, args.expert_scale[chosen[s]]);
    args.weights[at] = weight;
    if (args.record != nullptr) args.record[at] = id;
  }
}

// Compares as the value does; NaN as -infinity. Never 0.
__device__ __forceinline__ uint32_t choice_key(float value) {
  if (value != value) value = -__builtin_huge_valf();
  const uint32_t bits = value == 0.0f ? 0u : __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__global__ __launch_bounds__(kThreads) void router_scores_kernel(const RouterArgs args) {
  __shared__ float p[kMaxRoutedExperts];
  __shared__ uint32_t keys[kMaxRoutedExperts];
  __shared__ int32_t chosen[kMaxTopK];
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  const auto experts = static_cast<int>(args.experts);
  const float* logits = args.logits + token * args.logits_stride;
  for (int i = threadIdx.x; i < experts; i += kThreads) {
    const float l = logits[i];
    p[i] = f32::sqrt(f32::add(f32::max(0.0f, l), f32::log1p(f32::exp(-fabsf(l)))));
    keys[i] = choice_key(args.choice_bias == nullptr ? p[i] : f32::add(p[i], args.choice_bias[i]));
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const auto lane = static_cast<int>(threadIdx.x);
  if (args.given != nullptr) {
    const int32_t* row = args.given + static_cast<int64_t>(args.token_ids[token]) * args.k;
    for (int s = lane; s < args.k; s += kWarp) chosen[s] = row[s];
  } else {
    take_largest(keys, experts, args.k, [&](int slot, int expert, uint32_t) { chosen[slot] = expert; });
  }
  __syncwarp();
  float all = 0.0f;
  for (int s = 0; s < args.k; ++s) all = f32::add(all, p[chosen[s]]);
  const float sum = f32::add(all, kRouterSumFloor);
  const bool forced = args.forced != nullptr && *args.forced != 0;
  for (int s = lane; s < args.k; s += kWarp) {
    const int64_t at = token * args.k + s;
    const int32_t id = forced ? args.forced_ids[at] : chosen[s];
    args.ids[at] = id;
    args.weights[at] = f32::mul(f32::div(p[chosen[s]], sum), args.scale);
    if (args.record != nullptr) args.record[at] = id;
  }
}

}  // namespace

void router_top_k(const RouterArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.k == 0) return;
  FT_CHECK(args.experts <= kMaxRoutedExperts && args.k <= args.experts && args.k <= kMaxTopK);
  launch(args.by_score ? router_scores_kernel : router_kernel, static_cast<unsigned>(args.tokens), kThreads, 0, stream,
         args);
}

}  // namespace ft::cuda
