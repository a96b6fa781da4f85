// The delta rule of kernels/ops/delta_net.h with a column of the state over four threads.
#pragma once

#include "kernels/cuda/delta_net.cuh"

namespace ft::cuda {

inline constexpr int kRuleThreads = kDeltaColumns * kDeltaParts;

// A tile of tokens made ready.
template <int kTile>
struct Tile {
  float* rows;  // (kTile, DeltaRowShape::floats)
  DeltaGates* gates;
};

// The rows of a part of a column.
template <int kEach, bool kExact>
struct StateColumn {
  float s[kEach];
  float* memory;  // of the first row
  int rows;       // in this part; kExact: kEach
  bool active;

  __device__ __forceinline__ StateColumn(const DeltaNetShape& shape, float* state, int first_column, int thread) {
    const auto key_dim = static_cast<int>(shape.key_dim);
    const int column = first_column + thread / kDeltaParts, part = thread % kDeltaParts;
    active = column < shape.value_dim;
    rows = (key_dim - part + kDeltaParts - 1) / kDeltaParts;
    memory = state + column / 16 * key_dim * 16 + part * 16 + column % 16;
  }
  __device__ __forceinline__ bool there(int n) const { return kExact || n < rows; }
  __device__ __forceinline__ void load(bool zero) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      s[n] = !zero && active && there(n) ? memory[n * kDeltaParts * 16] : 0.0f;
    }
  }
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      if (active && there(n)) memory[n * kDeltaParts * 16] = s[n];
    }
  }

  // The sum of the four parts, in all four threads.
  __device__ __forceinline__ static float join(float part) {
    part = f32::add(part, __shfl_xor_sync(kFullWarp, part, 2));
    return f32::add(part, __shfl_xor_sync(kFullWarp, part, 1));
  }

  // q and k below: of this part, on 16 bytes. The decayed state's sum at a token's keys.
  __device__ __forceinline__ float decay(const float* k, float factor) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kEach; n += 4) {
      if (!there(n)) break;
      const float4 key = *reinterpret_cast<const float4*>(k + n);
      const float keys[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!there(n + i)) continue;
        s[n + i] = f32::mul(s[n + i], factor);
        sum = f32::fma(s[n + i], keys[i], sum);
      }
    }
    return sum;
  }
  // A token's change, and the sum at its queries. With kNext then decay() for the token whose keys are next_k, in the
  // same walk.
  template <bool kNext>
  __device__ __forceinline__ float change(const float* q, const float* k, float d, const float* next_k, float factor,
                                          float& next_sum) {
    float sum = 0.0f, at_next = 0.0f;
#pragma unroll
    for (int n = 0; n < kEach; n += 4) {
      if (!there(n)) break;
      const float4 key = *reinterpret_cast<const float4*>(k + n), query = *reinterpret_cast<const float4*>(q + n);
      const float4 next = kNext ? *reinterpret_cast<const float4*>(next_k + n) : key;
      const float keys[4] = {key.x, key.y, key.z, key.w}, queries[4] = {query.x, query.y, query.z, query.w};
      const float nexts[4] = {next.x, next.y, next.z, next.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!there(n + i)) continue;
        s[n + i] = f32::fma(keys[i], d, s[n + i]);
        sum = f32::fma(s[n + i], queries[i], sum);
        if constexpr (kNext) {
          s[n + i] = f32::mul(s[n + i], factor);
          at_next = f32::fma(s[n + i], nexts[i], at_next);
        }
      }
    }
    next_sum = at_next;
    return sum;
  }
};

// `count` tokens of a tile; put(t, column, value).
template <class Column, int kTile, class Put>
__device__ __forceinline__ void apply_rule(Column& column, const DeltaRowShape& row, const Tile<kTile>& tile, int count,
                                           int thread, Put&& put) {
  const int own = thread / kDeltaParts, part = thread % kDeltaParts * row.part;
  float sum = column.decay(tile.rows + row.key() + part, tile.gates[0].decay);
  for (int t = 0; t < count; ++t) {
    const float* q = tile.rows + t * row.floats() + part;
    const float* k = q + row.key();
    const float v = column.active ? tile.rows[t * row.floats() + row.value() + own] : 0.0f;
    const float d = f32::mul(tile.gates[t].write, f32::sub(v, Column::join(sum)));
    const float read = t + 1 < count
                           ? column.template change<true>(q, k, d, k + row.floats(), tile.gates[t + 1].decay, sum)
                           : column.template change<false>(q, k, d, nullptr, 0.0f, sum);
    const float out = Column::join(read);
    if (thread % kDeltaParts == 0 && column.active) put(t, own, out);
  }
}

}  // namespace ft::cuda
