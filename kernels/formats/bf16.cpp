#include "kernels/formats/bf16.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/bf16.h"
#include "kernels/formats/layout.h"

namespace ft::formats::bf16 {
namespace {

constexpr int kGroup = kInfo.group;
constexpr int kWords = kInfo.words_per_lane;

}  // namespace

PackedLayout layout(int64_t rows, int64_t cols) { return make_layout(FormatId::kBf16, rows, cols, 0); }

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  check_raw(raw, layout, raw.rows * raw.cols * 2, 0, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* words = tile_codes(layout, dst, tile);
    for_each_lane(layout, tile, [&](int64_t, const BlockShape& shape, int64_t row, int64_t lane, int64_t k) {
      uint32_t lane_words[kWords] = {};
      if (row < layout.rows) {
        const int64_t count = std::min<int64_t>(kGroup, layout.cols - k);
        std::memcpy(lane_words, raw.codes.data() + (row * layout.cols + k) * 2, static_cast<size_t>(count) * 2);
      }
      for (int h = 0; h < kWords; ++h) write_word(words, word_index(shape, h, row % kRowsPerTile, lane), lane_words[h]);
    });
  }
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  const std::byte* words = tile_codes(layout, matrix, row / kRowsPerTile);
  for (int64_t k = 0; k < layout.cols; ++k) {
    const int64_t lane = k / kGroup;
    const BlockShape shape = block_shape(layout, lane / kLanes, kWords);
    const auto h = static_cast<int>(k % kGroup / 2);
    const uint32_t word = read_word(words, word_index(shape, h, row % kRowsPerTile, lane % kLanes));
    out[k] = to_float(ft::bf16{static_cast<uint16_t>(word >> (k % 2 * 16))});
  }
}

void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  // Uniform in [1, 2) has a root mean square of sqrt(7 / 3).
  const double exponent = std::round(-0.5 * std::log2(static_cast<double>(layout.cols) * 7.0 / 3.0));
  const uint64_t pattern = static_cast<uint64_t>(127 + exponent) << 7;
  const uint64_t set = pattern * 0x0001000100010001u;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* words = tile_codes(layout, dst, tile);
    fill_random(words, layout.code_bytes_per_tile, seed, tile, 0, 0x807f807f807f807fu, set);
    if (layout.cols % kGroup == 0 && (tile + 1) * kRowsPerTile <= layout.rows) continue;
    for_each_lane(layout, tile, [&](int64_t, const BlockShape& shape, int64_t row, int64_t lane, int64_t k) {
      for (int64_t h = 0; h < kWords; ++h) {
        const int64_t index = word_index(shape, h, row % kRowsPerTile, lane);
        const int64_t present = row < layout.rows ? layout.cols - (k + 2 * h) : 0;
        if (present < 2) write_word(words, index, present == 1 ? read_word(words, index) & 0xffffu : 0);
      }
    });
  }
}

float synthetic_global(int64_t) { return 1.0f; }

}  // namespace ft::formats::bf16
