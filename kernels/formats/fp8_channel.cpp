#include "kernels/formats/fp8_channel.h"

#include <bit>

namespace ft::formats::fp8_channel {

PackedLayout layout(int64_t rows, int64_t cols) {
  return make_layout(FormatId::kFp8Channel, rows, cols, int64_t{kRowsPerTile} * fp8::kBytesPerScale);
}

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  check_raw(raw, layout, raw.rows * raw.cols, raw.rows * fp8::kBytesPerScale, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* scales = tile_scales(layout, dst, tile);
    for (int64_t r = 0; r < kRowsPerTile; ++r) {
      const int64_t row = tile * kRowsPerTile + r;
      write_word(scales, r, row < layout.rows ? read_word(raw.scales.data(), row) : 0u);
    }
    fp8::pack_codes(raw, layout, tile, dst);
  }
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  const std::byte* scales = tile_scales(layout, matrix, row / kRowsPerTile);
  const auto scale = std::bit_cast<float>(read_word(scales, row % kRowsPerTile));
  fp8::decode_codes(layout, matrix, row, out);
  for (int64_t k = 0; k < layout.cols; ++k) out[k] *= scale;
}

void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  constexpr float kFactors[4] = {0.7f, 0.9f, 1.1f, 1.3f};  // root mean square 1.02
  const float scale = fp8::synthetic_scale(layout.cols);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    std::byte* scales = tile_scales(layout, dst, tile);
    fill_random(scales, layout.scale_bytes_per_tile, seed, tile, 1, 0x0000000300000003u, 0);
    for (int64_t r = 0; r < kRowsPerTile; ++r) {
      const float own = tile * kRowsPerTile + r < layout.rows ? scale * kFactors[read_word(scales, r)] : 0.0f;
      write_word(scales, r, std::bit_cast<uint32_t>(own));
    }
    fp8::synthesize_codes(layout, seed, tile, dst);
  }
}

float synthetic_global(int64_t) { return 1.0f; }

}  // namespace ft::formats::fp8_channel
