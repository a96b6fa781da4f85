// fp8 channel: 8-bit E4M3 codes with one fp32 scale (a multiplier) for each row. Any rows and cols; a byte a weight and
// four a row. compressed-tensors' "float-quantized" with the strategy "channel" and modelopt's per-channel fp8 are this
// format. Source of the code: OCP 8-bit Floating Point (OFP8).
//
// Lane: 16 consecutive k in 4 words, as drawn in fp8_block.h. A full block of four rows is 1 KiB of codes.
//
// Scales: [row tile][row in tile] fp32, which is one for each row in order; +0 for rows past the last.
//
// The row's scale is the scale of each of its lanes and blocks in the canonical order (kernels/ops/matvec.h):
// acc = fma(P, scale, acc). So no operation knows of a new place where something is multiplied, a row's sum is rounded
// once less than if it were scaled in the end, and a matrix whose rows have one scale gives the bits of fp8_block with
// that scale in all blocks, as a checkpoint with one scale a matrix is packed. fp8_block's own form has no room for a
// scale of a row: its scales are those of a tile, and four of them for each 128 k would be 3 % of its bytes, read with
// every block for a number that does not change.
#pragma once

#include "kernels/formats/fp8.h"

namespace ft::formats::fp8_channel {

PackedLayout layout(int64_t rows, int64_t cols);
void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst);
void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out);
// Codes as fp8_block's; rows of four neighbouring scales, so that a row that takes another's shows.
void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst);
float synthetic_global(int64_t cols);

inline constexpr FormatInfo kInfo{
    FormatId::kFp8Channel, "fp8_channel", fp8::kGroup, fp8::kWordsPerLane, 1, 1.0, layout, pack, decode_row, synthesize,
    synthetic_global};

}  // namespace ft::formats::fp8_channel
