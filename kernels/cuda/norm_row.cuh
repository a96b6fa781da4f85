// rmsnorm and packing of one row by a block, at the latency of its parts: the row and the norm's weights stay in
// registers, the weights from before the wait, and the sum of squares is read 16 bytes at a time from a transposed copy
// of the row, so that its chain of cols / 16 fmas for a lane is all that is left of it. The bits of norm_pack.cuh.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {

template <int kThreads, int kPairs>
class NormRow {
 public:
  static constexpr int kMaxCols = 2 * kThreads * kPairs;
  static constexpr int kStageFloats = kMaxCols + 16 * 4;
  __host__ __device__ static bool fits(int64_t cols) { return cols % 2 == 0 && cols <= kMaxCols; }

  // REQUIRES fits(cols); x and w on 8-byte boundaries. May come before the wait for the kernel before.
  __device__ __forceinline__ void load_weights(const float* w, int cols) { load(w_, w, cols); }

  // The packed row into `words` (activation_words(cols) of shared memory). stage: kStageFloats of shared memory on a
  // 16-byte boundary, scale: one float of it. All kThreads of the block call it; ends with a barrier.
  __device__ __forceinline__ void pack(const float* x, int cols, float eps, float* stage, float* scale,
                                       uint32_t* words) {
    const auto thread = static_cast<int>(threadIdx.x);
    const int count = (cols + 63) / 64 * 4, stride = count + 4;  // of a lane, whole vectors; zeros add nothing
    float2 x_own[kPairs];
    load(x_own, x, cols);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int k = 2 * (thread + j * kThreads);
      if (k >= 16 * count) continue;
      stage[k % 16 * stride + k / 16] = x_own[j].x;
      stage[(k % 16 + 1) * stride + k / 16] = x_own[j].y;
    }
    __syncthreads();
    if (thread < kWarp) {
      float sum = 0.0f;
      if (thread < 16) sum = sum_of_squares(reinterpret_cast<const float4*>(stage + thread * stride), count / 4);
      sum = f32::tree_sum(sum);
      if (thread == 0) *scale = rms_scale(sum, cols, eps);
    }
    __syncthreads();
    const float r = *scale;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int k = 2 * (thread + j * kThreads);
      if (k >= 2 * static_cast<int>(activation_words(cols))) continue;
      const uint32_t even = activation_bits(f32::mul(f32::mul(x_own[j].x, r), w_[j].x));
      const uint32_t odd = activation_bits(f32::mul(f32::mul(x_own[j].y, r), w_[j].y));
      words[activation_word(k)] = k < cols ? even | odd << 16 : 0u;
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ static void load(float2 (&to)[kPairs], const float* from, int cols) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int k = 2 * (static_cast<int>(threadIdx.x) + j * kThreads);
      to[j] = k < cols ? *reinterpret_cast<const float2*>(from + k) : float2{0.0f, 0.0f};
    }
  }
  __device__ __forceinline__ static float sum_of_squares(const float4* x, int vectors) {
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < vectors; ++i) {
      const float4 v = x[i];
      sum = f32::fma(v.x, v.x, sum);
      sum = f32::fma(v.y, v.y, sum);
      sum = f32::fma(v.z, v.z, sum);
      sum = f32::fma(v.w, v.w, sum);
    }
    return sum;
  }

  float2 w_[kPairs];
};

}  // namespace ft::cuda
