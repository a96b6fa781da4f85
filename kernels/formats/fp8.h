// What the formats of E4M3 codes share (fp8_block, fp8_channel): the words of a lane, drawn in fp8_block.h. Not for
// kernels.
#pragma once

#include "kernels/formats/layout.h"

namespace ft::formats::fp8 {

inline constexpr int kGroup = 16;         // k of a lane
inline constexpr int kWordsPerLane = 4;   // of four codes
inline constexpr int kBytesPerScale = 4;  // fp32

// The codes of one tile; absent rows and k get zero codes.
void pack_codes(const RawMatrix& raw, const PackedLayout& layout, int64_t tile, std::byte* dst);
// Every code of a row, without a scale. out: cols floats.
void decode_codes(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out);
// Random sign and mantissa, exponents uniform over four binades; zero codes where there is no weight.
void synthesize_codes(const PackedLayout& layout, uint64_t seed, int64_t tile, std::byte* dst);
// The scale that gives such codes the root mean square 1 / sqrt(cols).
float synthetic_scale(int64_t cols);

}  // namespace ft::formats::fp8
