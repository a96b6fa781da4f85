// A block packs up to eight rows of activations for itself, normalised if wanted: the bits of rmsnorm and
// pack_activations (kernels/ops/{rows,activations}.h), so that a product needs no launch before it.
//
// The sum of squares is one chain of cols / 16 dependent fmas for each of 16 lanes (128 of them at 2048 cols: 0.3 us),
// a half warp a row; it is taken from shared memory, which all threads fill, a piece of the rows at a time. All loads
// of a thread go out together: one after the other they cost 7 us at 2048 cols [measured, H200].
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

// Floats of one row that are in the stage at once; a row that fits stays there.
__device__ __forceinline__ int norm_piece(int tokens) { return kNormStageFloats / tokens / 16 * 16; }

// The sum over x[lane], x[lane + 16], ... in this order, from `sum`. The next eight are read before this eight are
// added, so that the chain is one of fmas alone.
__device__ __forceinline__ float add_squares(const float* x, int lane, int count, float sum) {
  constexpr int kRow = 16, kAhead = 8;
  int i = lane;
  float now[kAhead];
  const auto read = [&](int from, float(&to)[kAhead]) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) to[j] = from + j * kRow < count ? x[from + j * kRow] : 0.0f;
  };
  read(i, now);
  for (; i + (kAhead - 1) * kRow < count; i += kAhead * kRow) {
    float next[kAhead];
    read(i + kAhead * kRow, next);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) sum = f32::fma(now[j], now[j], sum);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) now[j] = next[j];
  }
#pragma unroll
  for (int j = 0; j < kAhead - 1; ++j) {  // the rest is fewer than eight; elements past the row are no part of it
    if (i + j * kRow < count) sum = f32::fma(now[j], now[j], sum);
  }
  return sum;
}

// count floats of x into `to`, every thread's loads under way before the first store.
__device__ __forceinline__ void copy_floats(const float* x, int count, int thread, int threads, float* to) {
  constexpr int kAhead = 8;
  for (int begin = thread; begin < count; begin += kAhead * threads) {
    float value[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) value[j] = begin + j * threads < count ? x[begin + j * threads] : 0.0f;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j * threads < count) to[begin + j * threads] = value[j];
    }
  }
}

// scales[t] = rms_scale of row first + t, t < tokens <= kNormPackTokens. stage: kNormStageFloats of shared memory,
// scales: tokens of shared memory. All `threads` of the block call it (whole warps, at least 16 threads a token);
// `thread` is the caller's number among them. Ends with a barrier; rows of at most norm_piece(tokens) are in the stage,
// as far apart, then.
__device__ __forceinline__ void norm_scales(const NormPackSource& source, int64_t first, int tokens, int thread,
                                            int threads, float* stage, float* scales) {
  constexpr int kRow = 16;  // lanes of the canonical sum
  const int piece = norm_piece(tokens);
  const int row = thread / kRow;
  const int lane = thread % kRow;
  const int cols = static_cast<int>(source.cols);
  float sum = 0.0f;
  for (int begin = 0; begin < cols; begin += piece) {
    const int count = cols - begin < piece ? cols - begin : piece;
    if (begin > 0) __syncthreads();
    for (int t = 0; t < tokens; ++t) {
      copy_floats(source.x + (first + t) * source.x_stride + begin, count, thread, threads, stage + t * piece);
    }
    __syncthreads();
    if (row < tokens) sum = add_squares(stage + row * piece, lane, count, sum);
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
  const bool norms = source.norm_w != nullptr;
  if (norms) norm_scales(source, first, tokens, thread, threads, stage, scales);
  const bool staged = norms && source.cols <= norm_piece(tokens);
  const auto pairs = static_cast<int>(activation_words(source.cols)), cols = static_cast<int>(source.cols);
  constexpr int kAhead = 4;
  for (int t = 0; t < tokens; ++t) {
    const float* x = staged ? stage + t * norm_piece(tokens) : source.x + (first + t) * source.x_stride;
    const float scale = norms ? scales[t] : 1.0f;
    for (int begin = thread; begin < pairs; begin += kAhead * threads) {
      float value[2 * kAhead];
#pragma unroll
      for (int j = 0; j < 2 * kAhead; ++j) {
        const int k = 2 * (begin + j / 2 * threads) + j % 2;
        value[j] = k < cols ? x[k] : 0.0f;
      }
      if (norms) {
#pragma unroll
        for (int j = 0; j < 2 * kAhead; ++j) {
          const int k = 2 * (begin + j / 2 * threads) + j % 2;
          if (k < cols) value[j] = f32::mul(f32::mul(value[j], scale), source.norm_w[k]);
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = begin + j * threads;
        if (i < pairs) put(t, i, activation_bits(value[2 * j]) | activation_bits(value[2 * j + 1]) << 16);
      }
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
