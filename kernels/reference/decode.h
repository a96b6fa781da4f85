// What the reference kernels know about each format: one lane's weights and its scale, from the packed matrix.
// kGroup, kWords: k and words of a lane in a block.
// weight(): w[i] of the lane, i = 0 .. kGroup - 1, exact. The words are those of one row and lane, h = 0, 1, ...
// scale(): of one lane of one row; `scales` is the tile's. Absent lanes are not asked for.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/base/bf16.h"
#include "kernels/base/fp_codes.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/formats/fp8_channel.h"
#include "kernels/formats/layout.h"
#include "kernels/formats/mxfp4.h"
#include "kernels/formats/nvfp4.h"
#include "kernels/reference/scalar_math.h"

namespace ft::reference {

// x rounded to bf16 as an activation: a denormal gives a zero of its sign, a NaN a quiet NaN.
inline uint16_t activation_bits(float x) { return to_bf16(flush(x)).bits; }

template <const FormatInfo& kInfo>
struct LaneShape {
  static constexpr int kGroup = kInfo.group;
  static constexpr int kWords = kInfo.words_per_lane;
};

template <FormatId>
struct Decode;

template <>
struct Decode<FormatId::kBf16> : LaneShape<formats::bf16::kInfo> {
  static float weight(const uint32_t* words, int i) {
    return to_float(bf16{static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))});
  }
  static float scale(const std::byte*, int64_t, int64_t, int64_t) { return 1.0f; }
};

// E2M1 codes, a byte of scale for each row and lane.
template <const FormatInfo& kInfo, auto decode_scale>
struct DecodeFp4 : LaneShape<kInfo> {
  static float weight(const uint32_t* words, int i) {
    const int nibble = i % 8 / 2 + i % 2 * 4;
    return decode_e2m1(words[i / 8] >> (4 * nibble) & 15u);
  }
  static float scale(const std::byte* scales, int64_t block, int64_t row_in_tile, int64_t lane) {
    const int64_t index = (block * kLanes + lane) * 4 + formats::fp4::kScaleByteOfRow[row_in_tile];
    return decode_scale(static_cast<uint8_t>(scales[index]));
  }
};

template <>
struct Decode<FormatId::kNvfp4> : DecodeFp4<formats::nvfp4::kInfo, decode_e4m3> {};

template <>
struct Decode<FormatId::kMxfp4> : DecodeFp4<formats::mxfp4::kInfo, decode_e8m0> {};

template <const FormatInfo& kInfo>
struct DecodeFp8 : LaneShape<kInfo> {
  static float weight(const uint32_t* words, int i) {
    const int byte = i % 4 / 2 + i % 2 * 2;
    return decode_e4m3(static_cast<uint8_t>(words[i / 4] >> (8 * byte)));
  }
};

template <>
struct Decode<FormatId::kFp8Block> : DecodeFp8<formats::fp8_block::kInfo> {
  static float scale(const std::byte* scales, int64_t block, int64_t, int64_t lane) {
    return std::bit_cast<float>(formats::read_word(scales, block * 2 + lane / formats::fp8_block::kLanesPerScale));
  }
};

template <>
struct Decode<FormatId::kFp8Channel> : DecodeFp8<formats::fp8_channel::kInfo> {
  static float scale(const std::byte* scales, int64_t, int64_t row_in_tile, int64_t) {
    return std::bit_cast<float>(formats::read_word(scales, row_in_tile));
  }
};

}  // namespace ft::reference
