#include "kernels/formats/fp8.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/fp_codes.h"

namespace ft::formats::fp8 {
namespace {

// Bytes 0 1 2 3 to 0 2 1 3: even codes in the low half, odd codes in the high half. Its own inverse.
constexpr uint32_t split_pairs(uint32_t x) {
  return (x & 0xff0000ffu) | ((x & 0x0000ff00u) << 8) | ((x & 0x00ff0000u) >> 8);
}
static_assert(split_pairs(0x33221100u) == 0x33112200u);

}  // namespace

void pack_codes(const RawMatrix& raw, const PackedLayout& layout, int64_t tile, std::byte* dst) {
  std::byte* words = tile_codes(layout, dst, tile);
  for_each_lane(layout, tile, [&](int64_t, const BlockShape& shape, int64_t row, int64_t lane, int64_t k) {
    uint32_t lane_words[kWordsPerLane] = {};
    if (row < layout.rows) {
      const int64_t count = std::min<int64_t>(kGroup, layout.cols - k);
      std::memcpy(lane_words, raw.codes.data() + row * layout.cols + k, static_cast<size_t>(count));
    }
    for (int h = 0; h < kWordsPerLane; ++h) {
      write_word(words, word_index(shape, h, row % kRowsPerTile, lane), split_pairs(lane_words[h]));
    }
  });
}

void decode_codes(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  const std::byte* words = tile_codes(layout, matrix, row / kRowsPerTile);
  for (int64_t k = 0; k < layout.cols; ++k) {
    const int64_t lane = k / kGroup;
    const auto in_lane = static_cast<int>(k % kGroup);
    const BlockShape shape = block_shape(layout, lane / kLanes, kWordsPerLane);
    const uint32_t word =
        split_pairs(read_word(words, word_index(shape, in_lane / 4, row % kRowsPerTile, lane % kLanes)));
    out[k] = decode_e4m3(static_cast<uint8_t>(word >> (8 * (in_lane % 4))));
  }
}

void synthesize_codes(const PackedLayout& layout, uint64_t seed, int64_t tile, std::byte* dst) {
  std::byte* words = tile_codes(layout, dst, tile);
  fill_random(words, layout.code_bytes_per_tile, seed, tile, 0, 0x9f9f9f9f9f9f9f9fu, 0x2020202020202020u);
  if (layout.cols % kGroup == 0 && (tile + 1) * kRowsPerTile <= layout.rows) return;
  for_each_lane(layout, tile, [&](int64_t, const BlockShape& shape, int64_t row, int64_t lane, int64_t k) {
    for (int64_t h = 0; h < kWordsPerLane; ++h) {
      const int64_t present = row < layout.rows ? std::clamp<int64_t>(layout.cols - (k + 4 * h), 0, 4) : 0;
      const int64_t index = word_index(shape, h, row % kRowsPerTile, lane);
      const uint32_t keep = present == 4 ? ~0u : (1u << (8 * present)) - 1u;
      write_word(words, index, read_word(words, index) & split_pairs(keep));
    }
  });
}

float synthetic_scale(int64_t cols) {
  double squares = 0;  // of the 32 magnitudes 0x20 .. 0x3f, 2^-3 .. 1.875
  for (int code = 0x20; code < 0x40; ++code) squares += std::pow(decode_e4m3(static_cast<uint8_t>(code)), 2) / 32;
  return static_cast<float>(1.0 / std::sqrt(squares * static_cast<double>(cols)));
}

}  // namespace ft::formats::fp8
