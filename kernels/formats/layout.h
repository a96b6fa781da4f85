// What the formats' implementations share: shapes, offsets and counters of packed matrices. Not for kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/random.h"
#include "kernels/formats/format.h"

namespace ft::formats {

// Codes and scales of one row tile, and how they are addressed inside it.
struct BlockShape {
  int64_t lanes = 0;       // lanes of this block, 16 but for the last one
  int64_t code_words = 0;  // index of the block's first code word in its tile
};

// Throws Error(kFailed) naming `format` when rows or cols are out of bounds or cols is not a multiple of the
// format's cols_multiple. scale_bytes: of one tile.
PackedLayout make_layout(FormatId format, int64_t rows, int64_t cols, int64_t scale_bytes);

// Throws Error(kFailed) when a raw span has not the size that rows and cols ask for, or the tile range is not inside
// the matrix, or raw and layout are of different formats or shapes.
void check_raw(const RawMatrix& raw, const PackedLayout& layout, int64_t code_bytes, int64_t scale_bytes,
               int64_t tile_begin, int64_t tile_end);

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

inline BlockShape block_shape(const PackedLayout& layout, int64_t block, int words_per_lane) {
  return {block + 1 == layout.blocks ? layout.last_lanes : kLanes, block * words_per_lane * kRowsPerTile * kLanes};
}

// Word h of one lane in its tile.
inline int64_t word_index(const BlockShape& shape, int64_t h, int64_t row_in_tile, int64_t lane) {
  return shape.code_words + (h * kRowsPerTile + row_in_tile) * shape.lanes + lane;
}

inline std::byte* tile_codes(const PackedLayout& layout, std::byte* matrix, int64_t tile) {
  return matrix + layout.codes_offset + tile * layout.code_bytes_per_tile;
}
inline const std::byte* tile_codes(const PackedLayout& layout, const std::byte* matrix, int64_t tile) {
  return matrix + layout.codes_offset + tile * layout.code_bytes_per_tile;
}
inline std::byte* tile_scales(const PackedLayout& layout, std::byte* matrix, int64_t tile) {
  return matrix + layout.scales_offset + tile * layout.scale_bytes_per_tile;
}
inline const std::byte* tile_scales(const PackedLayout& layout, const std::byte* matrix, int64_t tile) {
  return matrix + layout.scales_offset + tile * layout.scale_bytes_per_tile;
}

inline uint32_t read_word(const std::byte* words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words + index * 4, 4);
  return word;
}
inline void write_word(std::byte* words, int64_t index, uint32_t word) { std::memcpy(words + index * 4, &word, 4); }

// Calls f(block, shape, row, lane, first_k) for every lane of the tile, absent rows included.
template <class F>
void for_each_lane(const PackedLayout& layout, int64_t tile, F&& f) {
  const FormatInfo& info = format_info(layout.format);
  for (int64_t block = 0; block < layout.blocks; ++block) {
    const BlockShape shape = block_shape(layout, block, info.words_per_lane);
    for (int64_t r = 0; r < kRowsPerTile; ++r) {
      for (int64_t lane = 0; lane < shape.lanes; ++lane) {
        f(block, shape, tile * kRowsPerTile + r, lane, (block * kLanes + lane) * info.group);
      }
    }
  }
}

// Fills `bytes` (a multiple of 4) with the counter's random words, (word & keep) | set. Streams of one (seed, tile) do
// not overlap: a tile has less than 2^40 bytes.
void fill_random(std::byte* dst, int64_t bytes, uint64_t seed, int64_t tile, int stream, uint64_t keep, uint64_t set);

}  // namespace ft::formats
