#include "kernels/formats/fp4.h"

#include "kernels/base/fp_codes.h"

namespace ft::formats::fp4 {
namespace {

// Eight codes in the order of k (nibble i is k = i) to even codes in the low half, odd codes in the high half.
constexpr uint32_t split_pairs(uint32_t x) {
  const uint32_t inner = (x ^ (x >> 4)) & 0x00f000f0u;  // nibbles 0 1 2 3 | 4 5 6 7 to 0 2 1 3 | 4 6 5 7
  x ^= inner ^ (inner << 4);
  const uint32_t outer = (x ^ (x >> 8)) & 0x0000ff00u;  // to 0 2 4 6 | 1 3 5 7
  return x ^ outer ^ (outer << 8);
}
static_assert(split_pairs(0x76543210u) == 0x75316420u);

int64_t scale_index(int64_t block, int64_t row, int64_t lane) {
  return (block * kLanes + lane) * 4 + kScaleByteOfRow[row % kRowsPerTile];
}

}  // namespace

PackedLayout layout(FormatId format, int64_t rows, int64_t cols) {
  const int group = format_info(format).group;
  return make_layout(format, rows, cols, cols / group * kRowsPerTile);
}

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  const int group = format_info(layout.format).group;
  const int lane_words = group / kCodesPerWord;
  check_raw(raw, layout, raw.rows * raw.cols / 2, raw.rows * raw.cols / group, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* words = tile_codes(layout, dst, tile);
    std::byte* scales = tile_scales(layout, dst, tile);
    for_each_lane(layout, tile, [&](int64_t block, const BlockShape& shape, int64_t row, int64_t lane, int64_t k) {
      const bool present = row < layout.rows;
      const int64_t element = row * layout.cols + k;
      for (int h = 0; h < lane_words; ++h) {
        const uint32_t word = present ? split_pairs(read_word(raw.codes.data() + element / 2, h)) : 0;
        write_word(words, word_index(shape, h, row % kRowsPerTile, lane), word);
      }
      scales[scale_index(block, row, lane)] = present ? raw.scales[static_cast<size_t>(element / group)] : std::byte{0};
    });
  }
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float (*decode_scale)(uint8_t),
                float* out) {
  const int group = format_info(layout.format).group;
  const std::byte* words = tile_codes(layout, matrix, row / kRowsPerTile);
  const std::byte* scales = tile_scales(layout, matrix, row / kRowsPerTile);
  for (int64_t first = 0; first < layout.cols; first += group) {  // of a lane
    const int64_t block = first / group / kLanes;
    const int64_t lane = first / group % kLanes;
    const BlockShape shape = block_shape(layout, block, group / kCodesPerWord);
    const float scale = decode_scale(static_cast<uint8_t>(scales[scale_index(block, row, lane)]));
    for (int k = 0; k < group; ++k) {
      const uint32_t word = read_word(words, word_index(shape, k / kCodesPerWord, row % kRowsPerTile, lane));
      const int nibble = k % kCodesPerWord / 2 + k % 2 * 4;
      out[first + k] = decode_e2m1(word >> (4 * nibble) & 15u) * scale;
    }
  }
}

void clear_absent_rows(const PackedLayout& layout, int64_t tile, std::byte* dst) {
  if ((tile + 1) * kRowsPerTile <= layout.rows) return;
  const int lane_words = format_info(layout.format).words_per_lane;
  std::byte* words = tile_codes(layout, dst, tile);
  std::byte* scales = tile_scales(layout, dst, tile);
  for_each_lane(layout, tile, [&](int64_t block, const BlockShape& shape, int64_t row, int64_t lane, int64_t) {
    if (row < layout.rows) return;
    for (int h = 0; h < lane_words; ++h) write_word(words, word_index(shape, h, row % kRowsPerTile, lane), 0);
    scales[scale_index(block, row, lane)] = std::byte{0};
  });
}

double code_squares() {
  double sum = 0;
  for (int code = 0; code < 16; ++code) {
    const double value = decode_e2m1(static_cast<uint8_t>(code));
    sum += value * value;
  }
  return sum / 16;
}

}  // namespace ft::formats::fp4
