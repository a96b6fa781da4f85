// The canonical dot product (kernels/ops/matvec.h) of one row tile and up to eight tokens, by one warp that walks the
// row: the fewest instructions a weight, for callers with enough tiles to fill a device.
//
// A half of the warp is the 16 lanes of a row: half s owns the rows s and s + 2 of the tile, so that word h of rows 2j
// and 2j + 1 is 32 neighbouring words, one load of 128 bytes for the warp. Activations are staged in shared memory
// (products.cuh). The sums stay in registers.
#pragma once

#include "kernels/cuda/products.cuh"

namespace ft::cuda {

// Rows of a tile that a half of the warp owns.
inline constexpr int kRowsPerHalf = kRowsPerTile / 2;

// Sums of one tile of kMatrices matrices: [matrix][j][token], of row 2j + half.
template <int kMatrices, int kTokens>
struct Sums {
  float acc[kMatrices][kRowsPerHalf][kTokens] = {};
};

template <FormatId kFormat, int kMatrices>
struct BlockWords {
  static constexpr int kWords = Decode<kFormat>::kWords;
  uint32_t code[kMatrices][kRowsPerHalf][kWords];
  uint32_t scale[kMatrices];

  // Of block `block`; `tiles` are the tiles' first blocks.
  __device__ __forceinline__ void load(const Unit<kFormat> (&tiles)[kMatrices], const TileShape& shape, int block,
                                       const BlockThread& at) {
    const bool whole = block + 1 < shape.blocks || shape.last_lanes == kLanes;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const uint32_t* words = tiles[m].codes + block * (kWords * kRowsPerTile * kLanes);
      if (whole) {
        words += at.half * kLanes + at.lane;
#pragma unroll
        for (int h = 0; h < kWords; ++h) {
#pragma unroll
          for (int j = 0; j < kRowsPerHalf; ++j) {
            code[m][j][h] = load_weight_word(words + (h * kRowsPerTile + 2 * j) * kLanes);
          }
        }
        scale[m] = Decode<kFormat>::load_scale(tiles[m].scales, block, at.lane);
      } else {
        const bool present = at.lane < shape.last_lanes;
        words += at.half * shape.last_lanes + at.lane;
#pragma unroll
        for (int h = 0; h < kWords; ++h) {
#pragma unroll
          for (int j = 0; j < kRowsPerHalf; ++j) {
            code[m][j][h] = present ? load_weight_word(words) : 0u;
            words += 2 * shape.last_lanes;
          }
        }
        scale[m] = present ? Decode<kFormat>::load_scale(tiles[m].scales, block, at.lane) : 0u;
      }
    }
  }
};

template <FormatId kFormat, int kMatrices, int kTokens, bool kScaled>
__device__ __forceinline__ void fold_block(const BlockWords<kFormat, kMatrices>& words, const uint4* x,
                                           const int (&offset)[kTokens], int half, Sums<kMatrices, kTokens>& sums) {
  using Format = Decode<kFormat>;
  constexpr int kWordsPerOctet = 4 / Format::kPairs;
  float p[kMatrices][kRowsPerHalf][kTokens] = {};
#pragma unroll
  for (int octet = 0; octet < Format::kGroup / 8; ++octet) {
    uint4 vectors[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) vectors[t] = x[octet * kLanes + offset[t]];
#pragma unroll
    for (int word = 0; word < kWordsPerOctet; ++word) {
      float w[kMatrices][kRowsPerHalf][2 * Format::kPairs];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          Format::template word<kScaled>(words.code[m][j][octet * kWordsPerOctet + word], w[m][j]);
        }
      }
#pragma unroll
      for (int i = 0; i < Format::kPairs; ++i) {
        const int pair = word * Format::kPairs + i;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const uint4& v = vectors[t];
          const uint32_t two = pair == 0 ? v.x : pair == 1 ? v.y : pair == 2 ? v.z : v.w;
          const float even = low_bf16(two), odd = high_bf16(two);
#pragma unroll
          for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
            for (int j = 0; j < kRowsPerHalf; ++j) {
              p[m][j][t] = f32::fma(w[m][j][2 * i + 1], odd, p[m][j][t]);
              p[m][j][t] = f32::fma(w[m][j][2 * i], even, p[m][j][t]);
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    float scales[kRowsPerTile];
    Format::scales(words.scale[m], scales);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const float scale = half == 0 ? scales[2 * j] : scales[2 * j + 1];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sums.acc[m][j][t] = f32::fma(p[m][j][t], scale, sums.acc[m][j][t]);
    }
  }
}

// Blocks whose loads go out together, before any of them is used: 32 words a thread for one token, 4 KiB a warp.
template <FormatId kFormat, int kMatrices, int kTokens>
inline constexpr int kBlocksAhead = [] {
  constexpr int kWords = kMatrices * kRowsPerHalf * Decode<kFormat>::kWords, kMost = kTokens == 1 ? 32 : 16;
  return kWords >= kMost ? 1 : kMost / kWords < 4 ? kMost / kWords : 4;
}();

// All blocks of the tiles, in order; `words` has the first kBlocksAhead of them. The words of a block are asked for
// again, kBlocksAhead further on, as soon as they are used.
template <FormatId kFormat, int kMatrices, int kTokens, bool kScaled, int kAhead>
__device__ __forceinline__ void fold_row(BlockWords<kFormat, kMatrices> (&words)[kAhead],
                                         const Unit<kFormat> (&tiles)[kMatrices], const TileShape& shape,
                                         const BlockThread& at, const StagedRows<kFormat>& rows,
                                         const int (&offset)[kTokens], Sums<kMatrices, kTokens>& sums) {
  for (int block = 0; block < shape.blocks; block += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (block + i >= shape.blocks) break;
      fold_block<kFormat, kMatrices, kTokens, kScaled>(words[i], rows.at(block + i, at.lane), offset, at.half, sums);
      if (block + i + kAhead < shape.blocks) words[i].load(tiles, shape, block + i + kAhead, at);
    }
  }
}
template <FormatId kFormat, int kMatrices, int kAhead>
__device__ __forceinline__ void load_row(BlockWords<kFormat, kMatrices> (&words)[kAhead],
                                         const Unit<kFormat> (&tiles)[kMatrices], const TileShape& shape,
                                         const BlockThread& at) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < shape.blocks) words[i].load(tiles, shape, i, at);
  }
}

// fold_row whether or not the rows are scaled.
template <FormatId kFormat, int kMatrices, int kTokens, int kAhead>
__device__ __forceinline__ void fold_row(bool scaled, BlockWords<kFormat, kMatrices> (&words)[kAhead],
                                         const Unit<kFormat> (&tiles)[kMatrices], const TileShape& shape,
                                         const BlockThread& at, const StagedRows<kFormat>& rows,
                                         const int (&offset)[kTokens], Sums<kMatrices, kTokens>& sums) {
  if (Decode<kFormat>::kShift == 0 || scaled) {
    fold_row<kFormat, kMatrices, kTokens, true>(words, tiles, shape, at, rows, offset, sums);
  } else {
    fold_row<kFormat, kMatrices, kTokens, false>(words, tiles, shape, at, rows, offset, sums);
  }
}

}  // namespace ft::cuda
