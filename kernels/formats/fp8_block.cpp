#include "kernels/formats/fp8_block.h"

#include <bit>

#include "kernels/formats/layout.h"

namespace ft::formats::fp8_block {

PackedLayout layout(int64_t rows, int64_t cols) {
  return make_layout(FormatId::kFp8Block, rows, cols, ceil_div(cols, kScaleBlock) * fp8::kBytesPerScale);
}

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  const int64_t scale_bytes = ceil_div(raw.cols, kScaleBlock) * fp8::kBytesPerScale;
  check_raw(raw, layout, raw.rows * raw.cols, ceil_div(raw.rows, kScaleBlock) * scale_bytes, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t scale_row = tile * kRowsPerTile / kScaleBlock;
    std::memcpy(tile_scales(layout, dst, tile), raw.scales.data() + scale_row * scale_bytes,
                static_cast<size_t>(scale_bytes));
    fp8::pack_codes(raw, layout, tile, dst);
  }
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  const std::byte* scales = tile_scales(layout, matrix, row / kRowsPerTile);
  fp8::decode_codes(layout, matrix, row, out);
  for (int64_t k = 0; k < layout.cols; ++k) out[k] *= std::bit_cast<float>(read_word(scales, k / kScaleBlock));
}

void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  const float scale = fp8::synthetic_scale(layout.cols);
  const int64_t scale_cols = layout.scale_bytes_per_tile / fp8::kBytesPerScale;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int64_t i = 0; i < scale_cols; ++i) {
      write_word(tile_scales(layout, dst, tile), i, std::bit_cast<uint32_t>(scale));
    }
    fp8::synthesize_codes(layout, seed, tile, dst);
  }
}

float synthetic_global(int64_t) { return 1.0f; }

}  // namespace ft::formats::fp8_block
