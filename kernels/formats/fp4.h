// What the formats of E2M1 codes with one byte of scale for a lane's k share (nvfp4, mxfp4): the layout of a lane,
// drawn in nvfp4.h, whatever its number of k. Not for kernels.
#pragma once

#include "kernels/formats/layout.h"

namespace ft::formats::fp4 {

inline constexpr int kCodesPerWord = 8;
// Which byte of a lane's scale word belongs to which row of the tile.
inline constexpr int kScaleByteOfRow[kRowsPerTile] = {0, 2, 1, 3};

PackedLayout layout(FormatId format, int64_t rows, int64_t cols);
void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst);
void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float (*decode_scale)(uint8_t),
                float* out);
// Zero codes and scales in the rows of `tile` past the matrix's last.
void clear_absent_rows(const PackedLayout& layout, int64_t tile, std::byte* dst);
// Mean square of the 16 codes.
double code_squares();

}  // namespace ft::formats::fp4
