// The canonical dot product (kernels/ops/matvec.h) of one row tile and up to eight tokens, by one warp, from registers.
//
// A half of the warp is the 16 lanes of a row: half s owns the rows s and s + 2 of the tile, so that word h of rows 2j
// and 2j + 1 is 32 neighbouring words, one load of 128 bytes for the warp. Each block of k starts from P = 0 and is
// folded into acc in order of blocks; other blocks' loads and products are independent of that.
//
// For experts, where each warp has a few blocks of k. A ring in shared memory (tile_ring.cuh), which is faster for
// dense products, was slower here: 30 us against 20 to 22 for eight NVFP4 experts of 2048 x 768, the merge
// included, on an H200.
#pragma once

#include "kernels/cuda/tile_ring.cuh"

namespace ft::cuda {

// Words that hold the scales of a thread's two rows: one of its lane, or one of each row.
template <FormatId kFormat>
struct ScaleOfLane {
  static constexpr int kWords = Decode<kFormat>::kRowScales ? kRowsPerHalf : 1;
  uint32_t word[kWords];

  __device__ __forceinline__ void load(const Tile& tile, int block, const Place& place, bool present) {
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const int offset = Decode<kFormat>::scale_offset(block, kWords == 1 ? place.lane : place.row(j));
      word[j] = 0u;
      if constexpr (Decode<kFormat>::kHasScales) {
        if (present) word[j] = load_weight_word(reinterpret_cast<const uint32_t*>(tile.scales + offset));
      }
    }
  }
  // Of row place.row(j).
  __device__ __forceinline__ void decode(const Place& place, float (&out)[kRowsPerHalf]) const {
    if constexpr (Decode<kFormat>::kRowScales) {
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) out[j] = __uint_as_float(word[j]);
    } else {
      float scales[kRowsPerTile];
      Decode<kFormat>::scales(word[0], scales);
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) out[j] = place.half == 0 ? scales[2 * j] : scales[2 * j + 1];
    }
  }
};

// What a thread needs of one block of kMatrices matrices of equal shape.
template <FormatId kFormat, int kMatrices>
struct BlockWords {
  static constexpr int kWords = Decode<kFormat>::kWords;
  uint32_t code[kMatrices][kRowsPerHalf][kWords];
  ScaleOfLane<kFormat> scale[kMatrices];

  __device__ __forceinline__ void load_full(const Tile (&tiles)[kMatrices], int block, const Place& place) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const uint32_t* words =
          reinterpret_cast<const uint32_t*>(tiles[m].codes) + block * (kWords * kRowsPerTile * kLanes) + place.thread;
#pragma unroll
      for (int h = 0; h < kWords; ++h) {
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          code[m][j][h] = load_weight_word(words + (h * kRowsPerTile + 2 * j) * kLanes);
        }
      }
      scale[m].load(tiles[m], block, place, true);
    }
  }

  // The last block, of `lanes` lanes: the others' codes are zero.
  __device__ __forceinline__ void load_short(const Tile (&tiles)[kMatrices], int block, int lanes, const Place& place) {
    const bool present = place.lane < lanes;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const uint32_t* words =
          reinterpret_cast<const uint32_t*>(tiles[m].codes) + block * (kWords * kRowsPerTile * kLanes) + place.lane;
#pragma unroll
      for (int h = 0; h < kWords; ++h) {
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          code[m][j][h] = present ? load_weight_word(words + (h * kRowsPerTile + place.row(j)) * lanes) : 0u;
        }
      }
      scale[m].load(tiles[m], block, place, present);
    }
  }
};

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
      for (int j = 0; j < kRowsPerHalf; ++j) Format::template word<false>(words.code[m][j][h], w[m][j]);
    }
#pragma unroll
    for (int i = 0; i < Format::kPairs; ++i) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint32_t pair = present ? x[t][first + pair_words<Format::kGroup>(h * Format::kPairs + i)] : 0u;
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

// Products and scales of one block go to fold(m, j, t, p, scale).
template <FormatId kFormat, int kMatrices, int kTokens, class Fold>
__device__ __forceinline__ void fold_block(const BlockWords<kFormat, kMatrices>& words, int block, bool present,
                                           const Place& place, const uint32_t* const (&x)[kTokens], Fold& fold) {
  float p[kMatrices][kRowsPerHalf][kTokens];
  block_products<kFormat, kMatrices, kTokens>(words, block, present, place, x, p);
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    float scales[kRowsPerHalf];
    words.scale[m].decode(place, scales);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const float scale = present ? scales[j] : 0.0f;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) fold(m, j, t, p[m][j][t], scale);
    }
  }
}

// The tiles' blocks in order. Those of one batch are all asked for before the first is used: 32 words a thread, 4 KiB a
// warp, three times what a multiprocessor's share of the memory's latency needs with the 12 warps that eight experts
// give it; a short row (the three blocks of 768 k) comes in one batch.
template <FormatId kFormat, int kMatrices, int kTokens, class Fold>
__device__ __forceinline__ void fold_tile(const TileShape& shape, const Tile (&tiles)[kMatrices], const Place& place,
                                          const uint32_t* const (&x)[kTokens], Fold& fold) {
  using Words = BlockWords<kFormat, kMatrices>;
  constexpr int kWordsPerBlock = kMatrices * kRowsPerHalf * Words::kWords;
  constexpr int kWanted = kTokens == 1 ? 32 : 16;  // words; sums of more tokens need the registers
  constexpr int kBatch = kWordsPerBlock >= kWanted ? 1 : kWanted / kWordsPerBlock;
  const int full = shape.last_lanes == kLanes ? shape.blocks : shape.blocks - 1;
  for (int block = 0; block < full; block += kBatch) {
    Words words[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (block + i < full) words[i].load_full(tiles, block + i, place);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (block + i < full) fold_block<kFormat, kMatrices, kTokens>(words[i], block + i, true, place, x, fold);
    }
  }
  if (full < shape.blocks) {
    Words words;
    words.load_short(tiles, full, shape.last_lanes, place);
    fold_block<kFormat, kMatrices, kTokens>(words, full, place.lane < shape.last_lanes, place, x, fold);
  }
}

}  // namespace ft::cuda
