// The router's product of one block of k and one row tile by a warp: bf16 weights from registers, asked for before the
// wait for the kernel before (no step writes them), times a packed row in shared memory. The sums P of blocks meet in
// shared memory and are folded in order, so the bits are those of one warp that walks the tile (kernels/ops/matvec.h).
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

inline constexpr int kRouterWords = 8;                           // of a lane in a block of k: 16 weights
inline constexpr int kRouterBlockWords = kRouterWords * kLanes;  // of a packed row in a block of k
inline constexpr int kRouterRows = kRowsPerTile / 2;             // of a thread

// Thread t of the warp is lane t % 16 of rows t / 16 and t / 16 + 2 of the tile.
struct RouterWeights {
  uint32_t w[kRouterRows][kRouterWords];

  // Lane `lane` of rows `half` and `half` + 2. block_codes: the tile's words of that block, of `lanes` lanes. Zeros
  // where `there` is false.
  __device__ __forceinline__ void load(const uint32_t* block_codes, int lanes, int lane, int half, bool there) {
#pragma unroll
    for (int h = 0; h < kRouterWords; ++h) {
#pragma unroll
      for (int j = 0; j < kRouterRows; ++j) {
        w[j][h] = there ? __ldg(block_codes + (h * kRowsPerTile + 2 * j + half) * lanes + lane) : 0u;
      }
    }
  }
  // Of the thread's rows: the lane's sum over its 16 k. pairs: the lane's first word of the block in the packed row.
  __device__ __forceinline__ void multiply(const uint32_t* pairs, float (&p)[kRouterRows]) const {
#pragma unroll
    for (int h = 0; h < kRouterWords; ++h) {
      const uint32_t pair = pairs[h * kLanes];
#pragma unroll
      for (int j = 0; j < kRouterRows; ++j) {
        p[j] = f32::fma(high_bf16(w[j][h]), high_bf16(pair), p[j]);
        p[j] = f32::fma(low_bf16(w[j][h]), low_bf16(pair), p[j]);
      }
    }
  }
};

// A row's product from its blocks' sums [block][lane], by the half warp of the row; lane 0 has it.
__device__ __forceinline__ float fold_router_row(const float* sums, int blocks, int lane) {
  float acc = 0.0f;
#pragma unroll 8
  for (int block = 0; block < blocks; ++block) acc = f32::fma(sums[block * kLanes + lane], 1.0f, acc);
  return f32::tree_sum(acc);
}

// A block's packed rows from shared memory, for the experts.
__device__ __forceinline__ void store_words(const uint32_t* from, int count, int threads, uint32_t* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) to[i] = from[i];
}

}  // namespace ft::cuda
