// A head's norm and rotation (kernels/ops/rows.h head_norm_rope) by one warp, and where its rows are in the cache.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"

namespace ft::cuda {

__device__ __forceinline__ int64_t kv_stride(int kv_heads, int64_t head_dim) { return 2 * kv_heads * head_dim; }

// The row of a position.
__device__ __forceinline__ int kv_row(const KvView& kv, int64_t position) {
  const auto p = static_cast<int>(position);
  return kv.ring == 0 ? p : p % static_cast<int>(kv.ring);
}

// Between query heads.
__device__ __forceinline__ int64_t query_stride(bool gated, int64_t head_dim) {
  return gated ? 2 * head_dim : head_dim;
}

__device__ __forceinline__ float gated_by(float x, float gate) { return f32::mul(x, f32::sigmoid(gate)); }

// How a head ends that has a sink: join(r, {m = sink, sum = 1, out = +0}) of kernels/ops/attention.h.
struct SinkJoin {
  float own, sink;  // weights of what is there and of the sink

  __device__ __forceinline__ float sum(float x) const { return f32::fma(1.0f, sink, f32::mul(x, own)); }
  __device__ __forceinline__ float out(float x) const { return f32::fma(0.0f, sink, f32::mul(x, own)); }
};
__device__ __forceinline__ SinkJoin join_of_sink(float m, float sink) {
  const float larger = f32::max(m, sink);
  return {f32::exp(f32::sub(m, larger)), f32::exp(f32::sub(sink, larger))};
}

struct HeadRotation {
  int head_dim = 0, half = 0;
  float eps = 0;
  const float* cos = nullptr;  // (half) of the token's position
  const float* sin = nullptr;
};

// x: one head in shared memory, written by this warp. With `norm` its norm, by 1 where w is null; then rotation.
__device__ __forceinline__ void norm_and_rotate(float* x, const HeadRotation& r, bool norm, const float* w, int lane) {
  if (norm) {
    float lane_sum = 0.0f;
    for (int d = lane; lane < kLanes && d < r.head_dim; d += kLanes) lane_sum = f32::fma(x[d], x[d], lane_sum);
    const float sum = __shfl_sync(kFullWarp, f32::tree_sum(lane_sum), 0);
    const float mean = f32::div(sum, static_cast<float>(r.head_dim));
    const float scale = f32::div(1.0f, f32::sqrt(f32::add(mean, r.eps)));
    for (int d = lane; d < r.head_dim; d += kWarp) {
      x[d] = f32::mul(x[d], scale);
      if (w != nullptr) x[d] = f32::mul(x[d], w[d]);
    }
    __syncwarp();
  }
  for (int j = lane; j < r.half; j += kWarp) {
    const float a = x[j];
    const float b = x[j + r.half];
    x[j] = f32::fma(a, r.cos[j], -f32::mul(b, r.sin[j]));
    x[j + r.half] = f32::fma(b, r.cos[j], f32::mul(a, r.sin[j]));
  }
  __syncwarp();
}

// The norm of a head of 32 * kEach dimensions in registers, lane + 32 i each.
template <int kEach>
__device__ __forceinline__ void norm_row(float (&x)[kEach], const float (&w)[kEach], float eps, int lane) {
  float lane_sum =
      0.0f;  // canonical in lanes 0 .. 15: dimensions lane + 16 i in order, every other one the neighbour's
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float other = __shfl_xor_sync(kFullWarp, x[i], kLanes);
    lane_sum = f32::fma(x[i], x[i], lane_sum);
    lane_sum = f32::fma(other, other, lane_sum);
  }
  const float sum = __shfl_sync(kFullWarp, f32::tree_sum(lane_sum), 0);
  static_assert((kEach & (kEach - 1)) == 0);
  const float mean = f32::mul(sum, 1.0f / (kWarp * kEach));  // a power of two: what dividing gives
  const float scale = f32::div(1.0f, f32::sqrt(f32::add(mean, eps)));
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = f32::mul(f32::mul(x[i], scale), w[i]);
}

}  // namespace ft::cuda
