// The one tensor-core tile of prefill: 128 rows of activations times 128 rows of weights, k in tiles of 64 in order.
//
// Activations come by cp.async into three buffers, two tiles ahead; weights by their Loader (weight_tile.cuh): copied
// the same way, or loaded to registers one tile ahead and decoded into one of two buffers between the two halves of a
// tile's products. A warp has 64 x 64 sums (fp8_block: 64 x 32, and as many of the 128 k at hand). Rows that are not
// there are not computed: a row's sums are made of that row and the weights alone, in the order of k.
#pragma once

#include "kernels/cuda/weight_tile.cuh"

namespace ft::cuda {

inline constexpr int kTileTokens = 128;
inline constexpr int kActivationBuffers = 3;
inline constexpr int kWarpTokens = 64;

struct TileRows {
  int32_t in[kTileTokens];   // row of x, or -1
  int32_t out[kTileTokens];  // row of the result, or -1
};

template <FormatId kFormat, int kMatrices>
struct ProductTile {
  using Weights = Loader<kFormat, kMatrices>;
  static constexpr int kThreads = Weights::kThreads;
  static constexpr int kBlocksPerProcessor = 256 / kThreads;
  static constexpr bool kFolds = kFormat == FormatId::kFp8Block;
  static constexpr int kWarpRows = kTileRows / (kThreads / kWarp / (kTileTokens / kWarpTokens));  // 64, or 32
  static constexpr int kM = kWarpTokens / 16;
  static constexpr int kN = kWarpRows / 8;
  static constexpr int kWeightBuffers = Weights::kCopies ? kActivationBuffers : 2;
  static constexpr int kSharedBytes =
      (kActivationBuffers + kWeightBuffers) * kTileBytes + static_cast<int>(sizeof(TileRows));

  using Sums = float[kM][kN][4];

  // Thread's place: its sums [m][n][2 h + i] are those of token `token(m, h)` and weight row `row(n) + i`.
  int lane, warp_m, warp_n;
  __device__ __forceinline__ ProductTile()
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        warp_m(static_cast<int>(threadIdx.x) / kWarp % 2),
        warp_n(static_cast<int>(threadIdx.x) / kWarp / 2) {}
  __device__ __forceinline__ int token(int m, int h) const { return warp_m * kWarpTokens + m * 16 + h * 8 + lane / 4; }
  __device__ __forceinline__ int row(int n) const { return warp_n * kWarpRows + n * 8 + lane % 4 * 2; }

  // `count` rows are there. Shared memory is free for others afterwards.
  __device__ __forceinline__ void run(const WeightMatrices& weights, const uint32_t* x, int64_t x_words, int tiles,
                                      int count, const TileRows& rows, uint32_t shared, Sums& sums) {
    Weights loader(weights, static_cast<int>(threadIdx.x));
    const int m_count = min(max((count - warp_m * kWarpTokens + 15) / 16, 0), kM);
    float part[kFolds ? kM : 1][kFolds ? kN : 1][4];
    clear(sums);
    copy_tile(loader, x, x_words, 0, rows, shared);
    copy_tile(loader, x, x_words, 1, rows, shared);  // there are at least two
    if constexpr (!Weights::kCopies) {
      loader.load(0);
      loader.store(weight_tile(shared, 0));
      loader.load(1);
    }
    for (int kt = 0; kt < tiles; ++kt) {
      wait_copies<1>();
      __syncthreads();
      if (kt + 2 < tiles) {
        copy_tile(loader, x, x_words, kt + 2, rows, shared);
      } else {
        commit_copies();
      }
      float scale[2];
      if constexpr (kFolds) {
        if (kt % 2 == 0) clear(part);
        if (kt % 2 == 1) load_scales(weights, kt / 2, scale);
      }
      auto& target = pick(sums, part);
      multiply<0, 2>(activation_tile(shared, kt), weight_tile(shared, kt), m_count, target);
      if constexpr (!Weights::kCopies) {
        if (kt + 1 < tiles) loader.store(weight_tile(shared, kt + 1));
        if (kt + 2 < tiles) loader.load(kt + 2);
      }
      multiply<2, 4>(activation_tile(shared, kt), weight_tile(shared, kt), m_count, target);
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
    const uint32_t* from = x + KTile(kt).activation_words(chunk);
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

  // Steps of 16 k, [kBegin, kEnd) of the tile's four, for 16 m_count rows: without branches between the products, which
  // the loads of the next ones have to pass.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void multiply(uint32_t activations, uint32_t weights, int m_count, Sums& sums) const {
    if (m_count == kM) return multiply_rows<kBegin, kEnd, kM>(activations, weights, sums);
    if (m_count == 1) return multiply_rows<kBegin, kEnd, 1>(activations, weights, sums);
    if (m_count == 2) return multiply_rows<kBegin, kEnd, 2>(activations, weights, sums);
    if (m_count == 3) return multiply_rows<kBegin, kEnd, 3>(activations, weights, sums);
    static_assert(kM == 4);
  }

  template <int kBegin, int kEnd, int kRows>
  __device__ __forceinline__ void multiply_rows(uint32_t activations, uint32_t weights, Sums& sums) const {
    const int swizzle = lane & 7;
    const uint32_t a_row = activations + static_cast<uint32_t>((warp_m * kWarpTokens + lane % 16) * kTileRowBytes);
    const uint32_t b_row =
        weights + static_cast<uint32_t>((warp_n * kWarpRows + lane % 8 + lane / 16 * 8) * kTileRowBytes);
#pragma unroll
    for (int step = kBegin; step < kEnd; ++step) {
      const auto a_chunk = static_cast<uint32_t>(((2 * step + lane / 16) ^ swizzle) << 4);
      const auto b_chunk = static_cast<uint32_t>(((2 * step + lane / 8 % 2) ^ swizzle) << 4);
      uint32_t a[kRows][4], b[kN / 2][4];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        load_matrices(a[m], a_row + static_cast<uint32_t>(m * 16 * kTileRowBytes) + a_chunk);
      }
#pragma unroll
      for (int n = 0; n < kN / 2; ++n) {
        load_matrices(b[n], b_row + static_cast<uint32_t>(n * 16 * kTileRowBytes) + b_chunk);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int m = 0; m < kRows; ++m) multiply_add(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }

  // fp8_block's scale of 128 k: one for the block's rows of a matrix, which lie in one block of 128 rows.
  static __device__ __forceinline__ void load_scales(const WeightMatrices& weights, int k_block, float (&scale)[2]) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const Tile tile = tile_of(weights.shape, weights.matrix[m], weights.first_tile);
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
