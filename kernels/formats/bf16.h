// bf16: two bytes a weight, no scales. Any rows and cols.
//
// Lane: 16 consecutive k in 8 words. Word h holds the pair p = h as a checkpoint stores it:
//
//   bit   31 .. 16   15 .. 0
//          k = 2h+1   k = 2h        k counted from the lane's first
//
// which is also the layout of packed activations (kernels/ops/activations.h), so no decoding is left: the word is the
// operand. A block of four full rows is 8 * 4 * 64 B = 2 KiB. k past cols are zero. Scale: 1.
#pragma once

#include "kernels/formats/format.h"

namespace ft::formats::bf16 {

PackedLayout layout(int64_t rows, int64_t cols);
void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst);
void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out);
// Random sign and mantissa, one exponent per matrix: magnitudes in [1, 2) * 2^e.
void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst);
float synthetic_global(int64_t cols);

inline constexpr FormatInfo kInfo{FormatId::kBf16, "bf16",          16, 8, 1, 2.0, layout, pack, decode_row,
                                  synthesize,      synthetic_global};

}  // namespace ft::formats::bf16
