#include "kernels/formats/nvfp4.h"

#include <cmath>

#include "kernels/base/fp_codes.h"

namespace ft::formats::nvfp4 {

PackedLayout layout(int64_t rows, int64_t cols) { return fp4::layout(FormatId::kNvfp4, rows, cols); }

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  fp4::pack(raw, layout, tile_begin, tile_end, dst);
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  fp4::decode_row(layout, matrix, row, decode_e4m3, out);
}

void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    fill_random(tile_codes(layout, dst, tile), layout.code_bytes_per_tile, seed, tile, 0, ~uint64_t{0}, 0);
    fill_random(tile_scales(layout, dst, tile), layout.scale_bytes_per_tile, seed, tile, 1, 0x0f0f0f0f0f0f0f0fu,
                0x3030303030303030u);
    fp4::clear_absent_rows(layout, tile, dst);
  }
}

float synthetic_global(int64_t cols) {
  double scale_squares = 0;
  for (int i = 0; i < 16; ++i) scale_squares += std::pow(decode_e4m3(static_cast<uint8_t>(0x30 + i)), 2) / 16;
  return static_cast<float>(1.0 / std::sqrt(fp4::code_squares() * scale_squares * static_cast<double>(cols)));
}

}  // namespace ft::formats::nvfp4
