// The canonical dot product (kernels/ops/matvec.h) of one row tile and up to eight tokens, by one warp.
//
// A half of the warp is the 16 lanes of a row: half s owns the rows s and s + 2 of the tile, so that word h of rows 2j
// and 2j + 1 is 32 neighbouring words, one load of 128 bytes for the warp. Each block of k starts from P = 0 and is
// folded into acc in order of blocks; other blocks' loads and products are independent of that.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/decode.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

// Rows of a tile that a half of the warp owns.
inline constexpr int kRowsPerHalf = kRowsPerTile / 2;
// Tokens that share one decoding of the weights: 64 sums in registers for gate and up together.
inline constexpr int kMaxTokensPerPass = 8;

struct TileShape {
  int blocks = 0;
  int last_lanes = 0;
  int64_t rows = 0;
  int64_t row_tiles = 0;
  int64_t code_bytes_per_tile = 0;
  int64_t scale_bytes_per_tile = 0;
  int64_t scales_offset = 0;
};
inline TileShape tile_shape(const PackedLayout& layout) {
  return {static_cast<int>(layout.blocks), static_cast<int>(layout.last_lanes), layout.rows,         layout.row_tiles,
          layout.code_bytes_per_tile,      layout.scale_bytes_per_tile,         layout.scales_offset};
}

// This thread's place in a warp that owns a tile.
struct Place {
  int thread, half, lane;
  __device__ explicit Place(int thread_in_warp)
      : thread(thread_in_warp), half(thread_in_warp / kLanes), lane(thread_in_warp % kLanes) {}
  // Row in the tile of this half's j-th row.
  __device__ int row(int j) const { return 2 * j + half; }
};

struct Tile {
  const uint32_t* codes = nullptr;
  const std::byte* scales = nullptr;
};
__device__ __forceinline__ Tile tile_of(const TileShape& shape, const std::byte* matrix, int64_t tile) {
  return {reinterpret_cast<const uint32_t*>(matrix + tile * shape.code_bytes_per_tile),
          matrix + shape.scales_offset + tile * shape.scale_bytes_per_tile};
}

// What a thread needs of one block of kMatrices matrices of equal shape.
template <FormatId kFormat, int kMatrices>
struct BlockWords {
  static constexpr int kWords = Decode<kFormat>::kWords;
  uint32_t code[kMatrices][kRowsPerHalf][kWords];
  uint32_t scale[kMatrices];

  __device__ __forceinline__ void load_full(const Tile (&tiles)[kMatrices], int block, const Place& place) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const uint32_t* words = tiles[m].codes + block * (kWords * kRowsPerTile * kLanes) + place.thread;
#pragma unroll
      for (int h = 0; h < kWords; ++h) {
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          code[m][j][h] = load_weight_word(words + (h * kRowsPerTile + 2 * j) * kLanes);
        }
      }
      scale[m] = Decode<kFormat>::load_scale(tiles[m].scales, block, place.lane);
    }
  }

  // The last block, of `lanes` lanes: the others' codes are zero.
  __device__ __forceinline__ void load_short(const Tile (&tiles)[kMatrices], int block, int lanes, const Place& place) {
    const bool present = place.lane < lanes;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const uint32_t* words = tiles[m].codes + block * (kWords * kRowsPerTile * kLanes) + place.lane;
#pragma unroll
      for (int h = 0; h < kWords; ++h) {
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          code[m][j][h] = present ? load_weight_word(words + (h * kRowsPerTile + place.row(j)) * lanes) : 0u;
        }
      }
      scale[m] = present ? Decode<kFormat>::load_scale(tiles[m].scales, block, place.lane) : 0u;
    }
  }
};

// Word of a packed activation row with pair p of a lane, from the block's first word. A lane of 32 k is two
// neighbouring lanes of the 16-k layout, and its block two of that layout's.
template <int kGroup>
__device__ __forceinline__ int lane_words(int lane) {
  static_assert(kGroup == 16 || kGroup == 32);
  return kGroup == 16 ? lane : lane / 8 * 128 + lane % 8 * 2;
}
template <int kGroup>
__device__ __forceinline__ constexpr int pair_words(int pair) {
  return kGroup == 16 ? pair * kLanes : pair % 8 * kLanes + pair / 8;
}

// Sums of one block: p[m][j][t] = the products of the lane's k. Lanes that are not present give +0.
template <FormatId kFormat, int kMatrices, int kTokens>
__device__ __forceinline__ void block_products(const BlockWords<kFormat, kMatrices>& words, int block, bool present,
                                               const Place& place, const uint32_t* const (&x)[kTokens],
                                               float (&p)[kMatrices][kRowsPerHalf][kTokens]) {
  using Format = Decode<kFormat>;
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) p[m][j][t] = 0.0f;
    }
  }
  const int first = block * (Format::kGroup / 2 * kLanes) + lane_words<Format::kGroup>(place.lane);
#pragma unroll
  for (int h = 0; h < Format::kWords; ++h) {
    float w[kMatrices][kRowsPerHalf][2 * Format::kPairs];
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) Format::word(words.code[m][j][h], w[m][j]);
    }
#pragma unroll
    for (int i = 0; i < Format::kPairs; ++i) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint32_t pair = present ? __ldg(x[t] + first + pair_words<Format::kGroup>(h * Format::kPairs + i)) : 0u;
        const float even = low_bf16(pair);
        const float odd = high_bf16(pair);
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

// Products and scales of one block go to fold(block, m, j, t, p, scale).
template <FormatId kFormat, int kMatrices, int kTokens, class Fold>
__device__ __forceinline__ void fold_block(const BlockWords<kFormat, kMatrices>& words, int block, bool present,
                                           const Place& place, const uint32_t* const (&x)[kTokens], Fold& fold) {
  float p[kMatrices][kRowsPerHalf][kTokens];
  block_products<kFormat, kMatrices, kTokens>(words, block, present, place, x, p);
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const float scale = present ? Decode<kFormat>::scale(words.scale[m], place.row(j)) : 0.0f;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) fold(block, m, j, t, p[m][j][t], scale);
    }
  }
}

// Blocks first, first + step, ... of the tiles, in that order. The loads of one pass go out before the products of the
// pass before it, while a pass is at most 18 loads; longer ones are enough bytes in flight by themselves.
template <FormatId kFormat, int kMatrices, int kTokens, class Fold>
__device__ __forceinline__ void fold_tile(const TileShape& shape, const Tile (&tiles)[kMatrices], int first, int step,
                                          const Place& place, const uint32_t* const (&x)[kTokens], Fold& fold) {
  using Words = BlockWords<kFormat, kMatrices>;
  constexpr int kWordsPerBlock = kMatrices * kRowsPerHalf * Words::kWords;
  constexpr int kBlocks = kWordsPerBlock >= 8 ? 1 : 8 / kWordsPerBlock;
  constexpr bool kAhead = kWordsPerBlock * kBlocks <= 16;
  const int full = shape.last_lanes == kLanes ? shape.blocks : shape.blocks - 1;
  int block = first;
  if constexpr (kAhead) {
    Words words[kBlocks];
    if (block + (kBlocks - 1) * step < full) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) words[i].load_full(tiles, block + i * step, place);
    }
    while (block + (kBlocks - 1) * step < full) {
      const int next = block + kBlocks * step;
      Words ahead[kBlocks];
      if (next + (kBlocks - 1) * step < full) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) ahead[i].load_full(tiles, next + i * step, place);
      }
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        fold_block<kFormat, kMatrices, kTokens>(words[i], block + i * step, true, place, x, fold);
      }
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) words[i] = ahead[i];
      block = next;
    }
  }
  if constexpr (!kAhead || kBlocks > 1) {
    for (; block < full; block += step) {
      Words words;
      words.load_full(tiles, block, place);
      fold_block<kFormat, kMatrices, kTokens>(words, block, true, place, x, fold);
    }
  }
  if (block < shape.blocks) {
    Words words;
    words.load_short(tiles, block, shape.last_lanes, place);
    fold_block<kFormat, kMatrices, kTokens>(words, block, place.lane < shape.last_lanes, place, x, fold);
  }
}

// The usual fold: sums in registers.
template <int kMatrices, int kTokens>
struct Sums {
  float acc[kMatrices][kRowsPerHalf][kTokens] = {};
  __device__ __forceinline__ void operator()(int, int m, int j, int t, float p, float scale) {
    acc[m][j][t] = f32::fma(p, scale, acc[m][j][t]);
  }
};

// Calls pass(first token, integral constant: tokens) for groups of 8, 4, 2 and 1 tokens until `tokens` are done, with
// groups of at most kMost.
template <int kMost, class Pass>
__device__ __forceinline__ void for_token_groups(int64_t tokens, Pass&& pass) {
  int64_t token = 0;
  if constexpr (kMost >= 8) {
    for (; tokens - token >= 8; token += 8) pass(token, std::integral_constant<int, 8>());
    if (tokens - token >= 4) pass(token, std::integral_constant<int, 4>()), token += 4;
    if (tokens - token >= 2) pass(token, std::integral_constant<int, 2>()), token += 2;
  }
  for (; token < tokens; ++token) pass(token, std::integral_constant<int, 1>());
}

}  // namespace ft::cuda
