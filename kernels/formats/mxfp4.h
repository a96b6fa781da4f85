// MXFP4: 4-bit E2M1 codes, one E8M0 scale (a power of two) for 32 consecutive k, no multiplier for the matrix. Any
// rows; cols a multiple of 32. 0.53125 bytes a weight. compressed-tensors' "mxfp4-pack-quantized" and DeepSeek-V4's fp4
// experts are this format under different names.
// Source: OCP Microscaling Formats (MX) v1.0.
//
// Lane: 32 consecutive k in 4 words, so a block is 512 k. Word h holds k = 8h .. 8h+7 (counted from the lane's first),
// its nibbles in the order drawn in nvfp4.h.
//
// A lane's k are those of two neighbouring lanes of packed activations (kernels/ops/activations.h), and a block's those
// of two of their blocks. Pair p of lane l in block b is the activations' pair p % 8 of lane l % 8 * 2 + p / 8 in block
// 2b + l / 8: for one p of all 16 lanes, the even or the odd words of two vectors. An odd number of activation blocks
// ends in half a block here; its lanes 8 .. 15 are absent, and there is no second vector to read.
//
// Scales: [row tile][block][lane] 32-bit words with the four rows' bytes in the order of nvfp4.h. Code 0 is 2^-127, a
// denormal: decode_row gives it, the kernels' arithmetic flushes it to 0. 255 is NaN.
// A full block of four rows is 1 KiB of codes and 64 B of scales.
#pragma once

#include "kernels/formats/fp4.h"

namespace ft::formats::mxfp4 {

PackedLayout layout(int64_t rows, int64_t cols);
void pack(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end, std::byte* dst);
void decode_row(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out);
// Uniform codes, scales of two neighbouring powers of two that hold the magnitude.
void synthesize(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end, std::byte* dst);
float synthetic_global(int64_t cols);

inline constexpr FormatInfo kInfo{FormatId::kMxfp4, "mxfp4",         32, 4, 32, 0.53125, layout, pack, decode_row,
                                  synthesize,       synthetic_global};

}  // namespace ft::formats::mxfp4
