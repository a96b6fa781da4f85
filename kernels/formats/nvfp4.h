// NVFP4: 4-bit E2M1 codes, one E4M3 scale for 16 consecutive k, one fp32 multiplier for the matrix (kept apart, in
// PackedMatrix::global or the expert's trailer). Any rows; cols a multiple of 16. 0.5625 bytes a weight.
// Sources: OCP Microscaling Formats (MX) v1.0 for E2M1; OCP OFP8 for E4M3.
//
// Lane: 16 consecutive k in 2 words. Word h holds k = 8h .. 8h+7 (counted from the lane's first) as four pairs: pair p
// has its even code in nibble p and its odd code in nibble p + 4.
//
//   nibble    7     6     5     4     3     2     1     0
//   k - 8h    7     5     3     1     6     4     2     0
//
// so that `word >> 4p` has the codes of the pair (2p, 2p+1) in the low nibbles of its two halves: one shift and one
// 16-bit table permute turn 16 words into 32 bf16 weights in the order of packed activations. (Codes in the order of k
// would cost an interleave of two permutes per 32 weights.)
//
// Scales: [row tile][block][lane] 32-bit words, the four rows of the tile in one word, in the byte order of an
// fp8_block code word: byte 0 row 0, byte 1 row 2, byte 2 row 1, byte 3 row 3. One load brings the scales of a whole
// block of a tile, and the same decode gives rows 0 and 1, then rows 2 and 3, as bf16 pairs.
// A full block of four rows is 512 B of codes and 64 B of scales.
#pragma once

#include "kernels/formats/fp4.h"

namespace ft::formats::nvfp4 {

PackedLayout layout(int64_t rows, int64_t cols);
void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst);
void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out);
// Uniform codes, scales uniform over the 16 codes 0.5 .. 1.875.
void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst);
float synthetic_global(int64_t cols);

inline constexpr FormatInfo kInfo{FormatId::kNvfp4, "nvfp4",         16, 2, 16, 0.5625, layout, pack, decode_row,
                                  synthesize,       synthetic_global};

}  // namespace ft::formats::nvfp4
