// The canonical dot product (kernels/ops/matvec.h) of one row and one token, for the reference kernels.
#pragma once

#include "kernels/reference/decode.h"

namespace ft::reference {

// Index of the packed activation word that holds k and k + 1, k even (kernels/ops/activations.h).
inline int64_t activation_index(int64_t k) { return k / 256 * 128 + k % 16 / 2 * kLanes + k % 256 / 16; }

// The end of a row's product: kernels/ops/matvec.h.
inline float with_bias(const PackedMatrix& matrix, int64_t row, float y) {
  return matrix.bias == nullptr ? y : add(y, matrix.bias[row]);
}

// Row `row` of the packed matrix at `data` times packed activations x, without the global.
template <FormatId kFormat>
float dot_row(const PackedLayout& layout, const std::byte* data, int64_t row, const uint32_t* x) {
  constexpr int kGroup = Decode<kFormat>::kGroup;
  constexpr int kWordsPerLane = Decode<kFormat>::kWords;
  const int64_t row_in_tile = row % kRowsPerTile;
  const std::byte* codes = formats::tile_codes(layout, data, row / kRowsPerTile);
  const std::byte* scales = formats::tile_scales(layout, data, row / kRowsPerTile);
  float acc[kLanes] = {};
  for (int64_t block = 0; block < layout.blocks; ++block) {
    const formats::BlockShape shape = formats::block_shape(layout, block, kWordsPerLane);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const bool present = lane < shape.lanes;
      uint32_t words[kWordsPerLane] = {};
      for (int h = 0; present && h < kWordsPerLane; ++h) {
        words[h] = formats::read_word(codes, formats::word_index(shape, h, row_in_tile, lane));
      }
      float p = 0;
      for (int k = 0; k < kGroup; k += 2) {
        // An absent lane may lie past the activations' last block.
        const uint32_t xw = present ? x[activation_index((block * kLanes + lane) * kGroup + k)] : 0u;
        const float x_even = std::bit_cast<float>(xw << 16);
        const float x_odd = std::bit_cast<float>(xw & 0xffff0000u);
        p = fma(Decode<kFormat>::weight(words, k + 1), x_odd, p);
        p = fma(Decode<kFormat>::weight(words, k), x_even, p);
      }
      const float scale = present ? Decode<kFormat>::scale(scales, block, row_in_tile, lane) : 0.0f;
      acc[lane] = fma(p, scale, acc[lane]);
    }
  }
  return tree_sum(acc);
}

}  // namespace ft::reference
