// Parts of compressed.cu and compressed_choose.cu: places in a layer's memory, runs, rotation, and the making of an
// entry.
#pragma once

#include "kernels/cuda/compressed.h"
#include "kernels/cuda/head_rows.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/ops/cache_grid.h"

namespace ft::cuda {

// ---- places

__device__ __forceinline__ bf16* ring_row(const CompressedLayerView& layer, int sequence, int position) {
  return layer.rows + sequence * layer.sequence_elements +
         static_cast<int64_t>(position % layer.ring_rows) * layer.head_dim;
}
__device__ __forceinline__ bf16* entry_row(const CompressedLayerView& layer, int sequence, int entry) {
  return layer.rows + sequence * layer.sequence_elements +
         (static_cast<int64_t>(layer.ring_rows) + entry) * layer.head_dim;
}
__device__ __forceinline__ bf16* index_entry(const CompressedLayerView& layer, int sequence, int entry) {
  return entry_row(layer, sequence, layer.entries) + static_cast<int64_t>(entry) * layer.index_dim;
}
__device__ __forceinline__ float* open_row(const CompressedLayerView& layer, int sequence, int position) {
  return layer.open + sequence * layer.sequence_floats +
         static_cast<int64_t>(position % layer.open_ring) * layer.open_row_floats();
}

// ---- runs

__device__ __forceinline__ SequenceRun run_at(const CompressedArgs& args, int index) {
  if (args.runs != nullptr) return args.runs[index];
  return {args.position[index], index, 1, args.sequence[index], 0};
}
__device__ __forceinline__ SequenceRun run_of_token(const CompressedArgs& args, int token) {
  if (args.runs == nullptr) return run_at(args, token);
  int run = 0;
  while (run + 1 < args.run_count && args.runs[run + 1].token <= token) ++run;
  return args.runs[run];
}

__device__ __forceinline__ int visible_entries(const CompressedLayerView& layer, int position) {
  return layer.ratio > 0 ? (position + 1) / layer.ratio : 0;
}
// Whether a token has more entries than it may attend to.
__device__ __forceinline__ bool chooses(const CompressedLayerView& layer, int position) {
  return layer.index_dim > 0 && visible_entries(layer, position) > layer.index_top_k;
}

// ---- rotation

struct PairRotation {
  const float *cos, *sin;  // (half) of a position
  int half;
};
__device__ __forceinline__ PairRotation rotation_at(const CompressedArgs& args, int64_t position) {
  return {args.cos + position * args.half, args.sin + position * args.half, args.half};
}
// rotate_pairs of kernels/ops/compressed.h, one row.
__device__ __forceinline__ void rotate_pairs(float* row, int dim, const PairRotation& rotation, bool inverse,
                                             int thread, int threads) {
  float* x = row + dim - 2 * rotation.half;
  for (int j = thread; j < rotation.half; j += threads) {
    const float a = x[2 * j], b = x[2 * j + 1];
    const float cos = rotation.cos[j], sin = inverse ? -rotation.sin[j] : rotation.sin[j];
    x[2 * j] = f32::sub(f32::mul(a, cos), f32::mul(b, sin));
    x[2 * j + 1] = f32::add(f32::mul(b, cos), f32::mul(a, sin));
  }
}

// ---- grids of kernels/ops/cache_grid.h, by one warp; x in memory that all its lanes see

// The first `count` values to bf16; the warp sees them.
__device__ __forceinline__ void round_values(float* x, int count, int lane) {
  for (int i = lane; i < count; i += kWarp) x[i] = low_bf16(bf16_bits(x[i]));
  __syncwarp();
}
__device__ __forceinline__ void round_groups(const CacheGrid& grid, float* x, int count, int lane) {
  for (int first = 0; first < count; first += grid.group) {
    const int end = min(first + grid.group, count);
    float amax = 0.0f;
    for (int i = first + lane; i < end; i += kWarp) {
      const float size = x[i] < 0 ? -x[i] : x[i];
      amax = size > amax ? size : amax;
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kFullWarp, amax, step);
      amax = other > amax ? other : amax;
    }
    const float scale = grid_scale(grid, amax);
    for (int i = first + lane; i < end; i += kWarp) x[i] = on_grid(grid, x[i], scale);
  }
  __syncwarp();
}
__device__ __forceinline__ void round_cached_row_by_warp(float* x, int dim, int rotated, int lane) {
  round_values(x, dim - rotated, lane);
  round_groups(fp8_grid(), x, dim - rotated, lane);
}
__device__ __forceinline__ void round_index_vector_by_warp(float* x, int dim, float scale, int lane) {
  if (!rounds_index(dim)) return;
  round_values(x, dim, lane);
  for (int h = 1; h < dim; h *= 2) {
    for (int pair = lane; pair < dim / 2; pair += kWarp) {
      const int i = pair / h * 2 * h + pair % h;
      const float a = x[i], b = x[i + h];
      x[i] = f32::add(a, b);
      x[i + h] = f32::sub(a, b);
    }
    __syncwarp();
  }
  for (int i = lane; i < dim; i += kWarp) x[i] = low_bf16(bf16_bits(f32::mul(x[i], scale)));
  __syncwarp();
  round_groups(fp4_grid(), x, dim, lane);
}

// ---- entries

// What entries of a run are made of.
struct EntryRows {
  const CompressedArgs& args;
  const SequenceRun& run;
  bool index;
  int dim;

  __device__ __forceinline__ EntryRows(const CompressedArgs& all, const SequenceRun& of, bool of_index)
      : args(all), run(of), index(of_index), dim(of_index ? all.layer.index_dim : all.layer.head_dim) {}

  // Channel `i` of an entry: compress of kernels/ops/compressed.h.
  __device__ __forceinline__ float compress(int entry, int i) const {
    const CompressedLayerView& layer = args.layer;
    const int begin = entry * layer.ratio - (layer.overlap && entry > 0 ? layer.ratio : 0);
    const int end = (entry + 1) * layer.ratio;
    float largest = 0.0f;
    for (int from = begin; from < end; from += kAhead) {
      float logits[kAhead];
      load_logits(logits, from, end, entry, i);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (from + j < end) largest = from + j == begin ? logits[j] : f32::max(logits[j], largest);
      }
    }
    float sum = 0.0f, out = 0.0f;
    for (int from = begin; from < end; from += kAhead) {
      float logits[kAhead], values[kAhead];
      load_logits(logits, from, end, entry, i);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        values[j] = from + j < end ? row(from + j, false)[channel(from + j, entry) + i] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (from + j >= end) break;
        const float e = f32::exp(f32::sub(logits[j], largest));
        sum = f32::add(sum, e);
        out = f32::fma(e, values[j], out);
      }
    }
    return f32::div(out, sum);
  }

 private:
  static constexpr int kAhead =
      8;  // rows whose loads are under way together: 333 us for 128 rows, one by one 391 [measured, H200]

  __device__ __forceinline__ void load_logits(float (&logits)[kAhead], int from, int end, int entry, int i) const {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) logits[j] = from + j < end ? logit(from + j, entry, i) : 0.0f;
  }
  // Channels for the next window come first.
  __device__ __forceinline__ int channel(int t, int entry) const {
    return args.layer.overlap && t >= entry * args.layer.ratio ? dim : 0;
  }
  __device__ __forceinline__ const float* row(int t, bool logits) const {
    const auto begin = static_cast<int>(run.position);
    if (t >= begin) {
      const CompressedArgs::Rows& rows =
          index ? (logits ? args.index_logit : args.index_value) : (logits ? args.entry_logit : args.entry_value);
      return rows.data + (run.token + t - begin) * rows.stride;
    }
    const CompressedLayerView& layer = args.layer;
    const int main = layer.halves() * layer.head_dim, side = layer.halves() * layer.index_dim;
    return open_row(layer, run.sequence, t) + (index ? 2 * main : 0) + (logits ? (index ? side : main) : 0);
  }
  __device__ __forceinline__ float logit(int t, int entry, int i) const {
    const float* bias = index ? args.index_bias : args.entry_bias;
    const int at = channel(t, entry) + i;
    return f32::add(row(t, true)[at], bias[t % args.layer.ratio * args.layer.halves() * dim + at]);
  }
};

}  // namespace ft::cuda
