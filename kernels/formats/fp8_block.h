// fp8 block: 8-bit E4M3 codes with one fp32 scale (a multiplier) for each block of 128 rows x 128 cols; blocks at the
// edges are ragged. Any rows and cols. Source of the code: OCP 8-bit Floating Point (OFP8); of the blocks: the
// weight_scale_inv tensors of published fp8 checkpoints.
//
// Lane: 16 consecutive k in 4 words. Word h holds k = 4h .. 4h+3 (counted from the lane's first) as two pairs: pair p
// has its even code in byte p and its odd code in byte p + 2.
//
//   byte      3     2     1     0
//   k - 4h    3     1     2     0
//
// so that both codes of a pair sit at the same place of the word's two halves and 16-bit integer steps give 32 bf16
// weights in the order of packed activations.
//
// Scales: [row tile][scale block] fp32, ceil(cols / 128) of them per tile: eight lanes share one, so a block has two
// (the last block one or two). A tile never crosses a 128-row edge; repeating the scales for each of the 32 tiles of
// a scale block costs 0.8 % of the bytes and makes them one more forward stream. A full block of four rows is 1 KiB of
// codes and 8 B of scales.
#pragma once

#include "kernels/formats/fp8.h"

namespace ft::formats::fp8_block {

inline constexpr int64_t kScaleBlock = 128;
inline constexpr int64_t kLanesPerScale = 8;
static_assert(kScaleBlock % kRowsPerTile == 0);

PackedLayout layout(int64_t rows, int64_t cols);
void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst);
void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out);
// Random sign and mantissa, exponents uniform over four binades, one scale per matrix.
void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst);
float synthetic_global(int64_t cols);

inline constexpr FormatInfo kInfo{FormatId::kFp8Block,   "fp8_block", fp8::kGroup, fp8::kWordsPerLane, 1,
                                  1.0 + 4.0 / (4 * 128), layout,      pack,        decode_row,         synthesize,
                                  synthetic_global};
static_assert(kLanesPerScale * kInfo.group == kScaleBlock);

}  // namespace ft::formats::fp8_block
