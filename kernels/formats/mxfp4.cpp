#include "kernels/formats/mxfp4.h"

#include <cmath>

#include "kernels/base/fp_codes.h"

namespace ft::formats::mxfp4 {

PackedLayout layout(int64_t rows, int64_t cols) { return fp4::layout(FormatId::kMxfp4, rows, cols); }

void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  fp4::pack(raw, layout, tile_begin, tile_end, dst);
}

void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) {
  fp4::decode_row(layout, matrix, row, decode_e8m0, out);
}

void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst) {
  constexpr double kScaleSquares = (1.0 + 4.0) / 2;  // of the scales 1 and 2, equally often
  const double squares = fp4::code_squares() * kScaleSquares * static_cast<double>(layout.cols);
  const auto smaller = static_cast<uint8_t>(127 + std::lround(-0.5 * std::log2(squares)));
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    fill_random(tile_codes(layout, dst, tile), layout.code_bytes_per_tile, seed, tile, 0, ~uint64_t{0}, 0);
    std::byte* scales = tile_scales(layout, dst, tile);
    fill_random(scales, layout.scale_bytes_per_tile, seed, tile, 1, 0x0101010101010101u, 0);
    for (int64_t i = 0; i < layout.scale_bytes_per_tile; ++i) {
      scales[i] = static_cast<std::byte>(static_cast<uint8_t>(scales[i]) + smaller);
    }
    fp4::clear_absent_rows(layout, tile, dst);
  }
}

float synthetic_global(int64_t) { return 1.0f; }

}  // namespace ft::formats::mxfp4
