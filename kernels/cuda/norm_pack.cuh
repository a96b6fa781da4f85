// A block packs up to eight rows of activations for itself, normalised if wanted: the bits of rmsnorm and
// pack_activations (kernels/ops/{rows,activations}.h), so that a product needs no launch before it.
//
// The sum of squares is one chain of cols / 16 dependent fmas for each of 16 lanes (128 of them at 2048 cols: 0.3 us),
// a half warp a row; it is taken from shared memory, which all threads fill, a piece of the rows at a time.
#pragma once

#include <cstdint>

#include "kernels/cuda/math.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {

inline constexpr int kNormPackTokens = 8;  // at most, and 16 threads for each
// Floats of shared memory for the pieces: two rows of 2048 at once, or eight of 512.
inline constexpr int kNormStageFloats = 4096;

struct NormPackSource {
  const float* x = nullptr;  // (tokens) rows of cols
  int64_t x_stride = 0;
  int64_t cols = 0;
  const float* norm_w = nullptr;  // (cols) or null: no norm
  float norm_eps = 0;
};

// Elements k, even, and k + 1 as one word of a packed row; those past cols are zero. value(k) is element k.
template <class Value>
__device__ __forceinline__ uint32_t pack_pair(int64_t k, int64_t cols, Value&& value) {
  const uint32_t even = k < cols ? activation_bits(value(k)) : 0u;
  const uint32_t odd = k + 1 < cols ? activation_bits(value(k + 1)) : 0u;
  return even | odd << 16;
}

// rmsnorm's r = 1 / sqrt(sum / cols + eps).
__device__ __forceinline__ float rms_scale(float sum_of_squares, int64_t cols, float eps) {
  const float mean = f32::div(sum_of_squares, static_cast<float>(cols));
  return f32::div(1.0f, f32::sqrt(f32::add(mean, eps)));
}

// scales[t] = rms_scale of row first + t, t < tokens <= kNormPackTokens. stage: kNormStageFloats of shared memory,
// scales: tokens of shared memory. All `threads` of the block call it (whole warps, at least 16 threads a token);
// `thread` is the caller's number among them. Ends with a barrier.
__device__ __forceinline__ void norm_scales(const NormPackSource& source, int64_t first, int tokens, int thread,
                                            int threads, float* stage, float* scales) {
  constexpr int kRow = 16;  // lanes of the canonical sum
  const int piece = kNormStageFloats / tokens / kRow * kRow;
  const int row = thread / kRow;
  const int lane = thread % kRow;
  const int cols = static_cast<int>(source.cols);
  float sum = 0.0f;
  for (int begin = 0; begin < cols; begin += piece) {
    const int count = cols - begin < piece ? cols - begin : piece;
    for (int t = 0; t < tokens; ++t) {
      const float* x = source.x + (first + t) * source.x_stride + begin;
#pragma unroll 1
      for (int i = thread; i < count; i += threads) stage[t * piece + i] = x[i];
    }
    __syncthreads();
    if (row < tokens) {
      const float* x = stage + row * piece;
#pragma unroll 4
      for (int i = lane; i < count; i += kRow) sum = f32::fma(x[i], x[i], sum);
    }
    __syncthreads();
  }
  sum = f32::tree_sum(sum);  // threads past the rows bring +0 to warps of their own or to their own half
  if (row < tokens && lane == 0) scales[row] = rms_scale(sum, source.cols, source.norm_eps);
  __syncthreads();
}

// Calls put(t, i, word) once for each pair i (elements 2i and 2i + 1, padding included) of rows first + t, t < tokens,
// from some thread of the block; a barrier by the caller makes what put stored visible. Arguments as norm_scales.
template <class Put>
__device__ __forceinline__ void norm_pack_pairs(const NormPackSource& source, int64_t first, int tokens, int thread,
                                                int threads, float* stage, float* scales, Put&& put) {
  if (source.norm_w != nullptr) norm_scales(source, first, tokens, thread, threads, stage, scales);
  const auto pairs = static_cast<int>(activation_words(source.cols));
  for (int t = 0; t < tokens; ++t) {
    const float* x = source.x + (first + t) * source.x_stride;
    const float scale = source.norm_w != nullptr ? scales[t] : 1.0f;
#pragma unroll 1
    for (int i = thread; i < pairs; i += threads) {
      put(t, i, pack_pair(2 * i, source.cols, [&](int64_t k) {
            return source.norm_w != nullptr ? f32::mul(f32::mul(x[k], scale), source.norm_w[k]) : x[k];
          }));
    }
  }
}

// The packed rows first .. first + tokens - 1 into `words` (shared or global memory, activation_words(cols) apart).
// Ends with a barrier.
__device__ __forceinline__ void norm_pack(const NormPackSource& source, int64_t first, int tokens, int thread,
                                          int threads, float* stage, float* scales, uint32_t* words) {
  const int64_t row_words = activation_words(source.cols);
  norm_pack_pairs(source, first, tokens, thread, threads, stage, scales,
                  [&](int t, int i, uint32_t word) { words[t * row_words + activation_word(2 * i)] = word; });
  __syncthreads();
}

}  // namespace ft::cuda
