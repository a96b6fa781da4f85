// The one tensor-core tile of prefill: 128 rows of activations times 128 rows of weights, k in tiles of 64 in order.
//
// Activations come by cp.async into three buffers, two tiles ahead; weights by their Loader (weight_tile.cuh): copied
// the same way, or loaded to registers one tile ahead and decoded into one of two buffers beside the products of the
// tile before. A group of four warps has 128 x 128 sums, or 64 x 128 where it may keep two sets (fp8). Products are
// wgmma on sm_90a, which read shared memory while the warps decode, and mma.sync of the same sums elsewhere. A row's
// sums are made of that row and the weights alone, in the order of k; a half of the rows that is empty is left out.
#pragma once

#include "kernels/cuda/weight_tile.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace ft::cuda {

inline constexpr int kTileTokens = 128;
inline constexpr int kActivationBuffers = 3;
inline constexpr int kGroupTokens = 64;
inline constexpr int kGroupThreads = 128;

struct TileRows {
  int32_t in[kTileTokens];   // row of x, or -1
  int32_t out[kTileTokens];  // row of the result, or -1
};

template <FormatId kFormat, int kMatrices>
struct ProductTile {
  using Weights = Loader<kFormat, kMatrices>;
  static constexpr int kThreads = Weights::kThreads;
  static constexpr int kBlocksPerProcessor = 256 / kThreads;
  static constexpr bool kFolds = Weights::kBlockScales;
  static constexpr int kM = kTileTokens / kGroupTokens / (kThreads / kGroupThreads);
  static constexpr int kN = kTileRows / 8;
  static constexpr int kWeightBuffers = Weights::kCopies ? kActivationBuffers : 2;
  static constexpr int kSharedBytes =
      (kActivationBuffers + kWeightBuffers) * kTileBytes + static_cast<int>(sizeof(TileRows));
  static_assert(kM == 1 || (kM == 2 && !kFolds));

  using Sums = float[kM][kN][4];

  // Thread's place: its sums [m][n][2 h + i] are those of token `token(m, h)` and weight row `row(n) + i`.
  int lane, group, warp;
  __device__ __forceinline__ ProductTile()
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        group(static_cast<int>(threadIdx.x) / kGroupThreads),
        warp(static_cast<int>(threadIdx.x) / kWarp % 4) {}
  __device__ __forceinline__ int first_token(int m) const { return (group + m) * kGroupTokens; }
  __device__ __forceinline__ int token(int m, int h) const { return first_token(m) + warp * 16 + h * 8 + lane / 4; }
  __device__ __forceinline__ int row(int n) const { return n * 8 + lane % 4 * 2; }

  // `count` rows are there. Shared memory is free for others afterwards.
  __device__ __forceinline__ void run(const WeightMatrices& weights, const uint32_t* x, int64_t x_words, int tiles,
                                      int count, const TileRows& rows, uint32_t shared, Sums& sums) {
    Weights loader(weights, static_cast<int>(threadIdx.x));
    const bool all = first_token(kM - 1) < count, any = first_token(0) < count;
    float part[kFolds ? kM : 1][kFolds ? kN : 1][4];
    clear(sums);
    if constexpr (kFolds) clear(part);
    copy_tile(loader, x, x_words, 0, rows, shared);
    copy_tile(loader, x, x_words, 1, rows, shared);  // there are at least two
    if constexpr (!Weights::kCopies) {
      loader.load(0);
      loader.store(weight_tile(shared, 0));
      loader.load(1);
    }
    for (int kt = 0; kt < tiles; ++kt) {
      wait_copies<1>();
      publish_to_products();
      __syncthreads();
      const uint32_t a = activation_tile(shared, kt), b = weight_tile(shared, kt);
      auto& target = pick(sums, part);
      const bool keep = kFolds ? kt % 2 == 1 : kt > 0;
      if constexpr (kWarpgroups) {
        if (all) {
          issue<kM>(a, b, keep, target);
        } else if (any) {
          issue<1>(a, b, keep, target);
        }
      }
      if (kt + 2 < tiles) {
        copy_tile(loader, x, x_words, kt + 2, rows, shared);
      } else {
        commit_copies();
      }
      float scale[2];
      if (kFolds && kt % 2 == 1) load_scales(weights, kt / 2, scale);
      if constexpr (!Weights::kCopies) {
        if (kt + 1 < tiles) loader.store(weight_tile(shared, kt + 1));
        if (kt + 2 < tiles) loader.load(kt + 2);
      }
      if constexpr (kWarpgroups) {
        wait_products();
      } else {
        if (kFolds && !keep) clear(part);
        if (all) {
          multiply<kM>(a, b, target);
        } else if (any) {
          multiply<1>(a, b, target);
        }
      }
      if constexpr (kFolds) {
        if (kt % 2 == 1) fold(part, scale, sums);
      }
    }
    wait_copies<0>();
    __syncthreads();
  }

 private:
  template <int kRows, int kCols>
  static __device__ __forceinline__ void clear(float (&sums)[kRows][kCols][4]) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kCols; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
      }
    }
  }

  template <class Part>
  static __device__ __forceinline__ auto& pick(Sums& sums, Part& part) {
    if constexpr (kFolds) {
      return part;
    } else {
      return sums;
    }
  }

  static __device__ __forceinline__ uint32_t activation_tile(uint32_t shared, int kt) {
    return shared + static_cast<uint32_t>(kt % kActivationBuffers * kTileBytes);
  }
  static __device__ __forceinline__ uint32_t weight_tile(uint32_t shared, int kt) {
    return shared + static_cast<uint32_t>((kActivationBuffers + kt % kWeightBuffers) * kTileBytes);
  }

  static __device__ __forceinline__ void copy_tile(const Weights& loader, const uint32_t* x, int64_t x_words, int kt,
                                                   const TileRows& rows, uint32_t shared) {
    const int chunk = static_cast<int>(threadIdx.x) % 8;
    const uint32_t* from =
        x + (Weights::kWholeBlocks ? kt * (kTileK / 2) + chunk * 4 : KTile(kt).activation_words(chunk));
    const uint32_t target = activation_tile(shared, kt);
#pragma unroll
    for (int i = 0; i < kTileTokens * 8 / kThreads; ++i) {
      const int row = static_cast<int>(threadIdx.x) / 8 + i * (kThreads / 8);
      const int32_t in = rows.in[row];
      copy_async_16(chunk_address(target, row, chunk), from + (in < 0 ? 0 : in) * x_words, in >= 0);
    }
    if constexpr (Weights::kCopies) loader.copy(kt, weight_tile(shared, kt));
    commit_copies();
  }

  // The four steps of 16 k of a tile, for kRows groups of 64 tokens; complete at wait_products.
  template <int kRows>
  __device__ __forceinline__ void issue(uint32_t activations, uint32_t weights, bool keep, Sums& sums) const {
    begin_products();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      const uint64_t b = matrix_descriptor(weights + static_cast<uint32_t>(step * 32));
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const uint32_t a = activations + static_cast<uint32_t>(first_token(m) * kTileRowBytes + step * 32);
        multiply_group(sums[m], matrix_descriptor(a), b, keep || step > 0);
      }
    }
    commit_products();
  }

  template <int kRows>
  __device__ __forceinline__ void multiply(uint32_t activations, uint32_t weights, Sums& sums) const {
    const int swizzle = lane & 7;
    const uint32_t a_row =
        activations + static_cast<uint32_t>((first_token(0) + warp * 16 + lane % 16) * kTileRowBytes);
    const uint32_t b_row = weights + static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * kTileRowBytes);
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      const auto a_chunk = static_cast<uint32_t>(((2 * step + lane / 16) ^ swizzle) << 4);
      const auto b_chunk = static_cast<uint32_t>(((2 * step + lane / 8 % 2) ^ swizzle) << 4);
      uint32_t a[kRows][4];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        load_matrices(a[m], a_row + static_cast<uint32_t>(m * kGroupTokens * kTileRowBytes) + a_chunk);
      }
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        uint32_t b[4];
        load_matrices(b, b_row + static_cast<uint32_t>(n * 8 * kTileRowBytes) + b_chunk);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          multiply_add(sums[m][n], a[m], b[0], b[1]);
          multiply_add(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // fp8_block's scale of 128 k: one for the block's rows of a matrix, which lie in one block of 128 rows.
  static __device__ __forceinline__ void load_scales(const WeightMatrices& weights, int k_block, float (&scale)[2]) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const PackedTile tile(weights.shape, weights.matrix[m], weights.first_tile);
      scale[m] = __ldg(reinterpret_cast<const float*>(tile.scales) + k_block);
    }
  }
  static __device__ __forceinline__ void fold(const Sums& part, const float (&scale)[2], Sums& sums) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[m][n][i] = f32::fma(part[m][n][i], scale[kMatrices == 2 ? n % 2 : 0], sums[m][n][i]);
        }
      }
    }
  }
};

}  // namespace ft::cuda
