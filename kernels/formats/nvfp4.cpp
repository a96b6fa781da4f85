#include "kernels/formats/nvfp4.h"

#include <cmath>

#include "kernels/base/fp_codes.h"
#include "kernels/formats/layout.h"

namespace ft::formats::nvfp4 {
namespace {

constexpr int kGroup = kInfo.group;
constexpr int kWords = kInfo.words_per_lane;

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

PackedLayout layout(int64_t rows, int64_t cols) {
  return make_layout(FormatId::kNvfp4, rows, cols, kGroup, cols / kGroup * kRowsPerTile);
}

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  check_raw(raw, layout, raw.rows * raw.cols / 2, raw.rows * raw.cols / kGroup, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* words = tile_codes(layout, dst, tile);
    std::byte* scales = tile_scales(layout, dst, tile);
    for_each_lane(layout, tile, kWords,
                  [&](int64_t block, const BlockShape& shape, int64_t row, int64_t lane, int64_t k) {
                    const bool present = row < layout.rows;
                    const int64_t element = row * layout.cols + k;
                    for (int h = 0; h < kWords; ++h) {
                      const uint32_t word = present ? split_pairs(read_word(raw.codes.data() + element / 2, h)) : 0;
                      write_word(words, word_index(shape, h, row % kRowsPerTile, lane), word);
                    }
                    scales[scale_index(block, row, lane)] =
                        present ? raw.scales[static_cast<size_t>(element / kGroup)] : std::byte{0};
                  });
  }
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  const std::byte* words = tile_codes(layout, matrix, row / kRowsPerTile);
  const std::byte* scales = tile_scales(layout, matrix, row / kRowsPerTile);
  for (int64_t k = 0; k < layout.cols; ++k) {
    const int64_t block = k / kGroup / kLanes;
    const int64_t lane = k / kGroup % kLanes;
    const auto in_lane = static_cast<int>(k % kGroup);
    const BlockShape shape = block_shape(layout, block, kWords);
    const uint32_t word = read_word(words, word_index(shape, in_lane / 8, row % kRowsPerTile, lane));
    const int nibble = in_lane % 8 / 2 + in_lane % 2 * 4;
    out[k] = decode_e2m1(word >> (4 * nibble) & 15u) *
             decode_e4m3(static_cast<uint8_t>(scales[scale_index(block, row, lane)]));
  }
}

void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* words = tile_codes(layout, dst, tile);
    std::byte* scales = tile_scales(layout, dst, tile);
    fill_random(words, layout.code_bytes_per_tile, seed, tile, 0, ~uint64_t{0}, 0);
    fill_random(scales, layout.scale_bytes_per_tile, seed, tile, 1, 0x0f0f0f0f0f0f0f0fu, 0x3030303030303030u);
    if ((tile + 1) * kRowsPerTile <= layout.rows) continue;
    for_each_lane(layout, tile, kWords,
                  [&](int64_t block, const BlockShape& shape, int64_t row, int64_t lane, int64_t) {
                    if (row < layout.rows) return;
                    for (int h = 0; h < kWords; ++h) {
                      write_word(words, word_index(shape, h, row % kRowsPerTile, lane), 0);
                    }
                    scales[scale_index(block, row, lane)] = std::byte{0};
                  });
  }
}

float synthetic_global(int64_t cols) {
  double code_squares = 0;
  double scale_squares = 0;
  for (int i = 0; i < 16; ++i) {
    code_squares += std::pow(decode_e2m1(static_cast<uint8_t>(i)), 2) / 16;
    scale_squares += std::pow(decode_e4m3(static_cast<uint8_t>(0x30 + i)), 2) / 16;
  }
  return static_cast<float>(1.0 / std::sqrt(code_squares * scale_squares * static_cast<double>(cols)));
}

}  // namespace ft::formats::nvfp4
