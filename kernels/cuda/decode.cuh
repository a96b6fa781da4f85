// What the device kernels know about each format: the weights of one code word and the scale of one lane, exactly those
// of kernels/reference/decode.h.
//
//   kGroup           k of a lane in a block (16, or 32)
//   kWords           code words of a lane in a block; word h holds the pairs [h * kPairs, (h + 1) * kPairs)
//   word(w, out)     weights of a word: out[2i] and out[2i + 1] are the even and the odd one of its pair i
//   load_scale(...)  the word with the scales of lane `lane` in `block` for the rows of the tile whose scales start at
//                    `scales`; only for lanes that are present
//   scale(word, row) that of one row of the tile
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/formats/mxfp4.h"
#include "kernels/formats/nvfp4.h"

namespace ft::cuda {

template <int kGroupOfFormat, int kWordsOfFormat>
struct LaneShape {
  static constexpr int kGroup = kGroupOfFormat;
  static constexpr int kWords = kWordsOfFormat;
  static constexpr int kPairs = kGroup / 2 / kWords;
};

__device__ __forceinline__ float2 half_pair_to_float(uint32_t pair) {
  float2 result;
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
      : "=f"(result.x), "=f"(result.y)
      : "r"(pair));
  return result;
}

// Exact products of fp16 pairs; fp16 denormals count.
__device__ __forceinline__ uint32_t multiply_half_pair(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ constexpr uint32_t shift_left(uint32_t word, int count) {
  return count >= 0 ? word << count : word >> -count;
}

// Eight E2M1 codes, even ones in the low half, odd ones in the high half. A code's exponent and mantissa bits become
// the lowest exponent and highest mantissa bits of an fp16, which is the code's value * 2^-14, its denormal 0.5
// included. Four integer steps, one product and two conversions for two weights.
__device__ __forceinline__ void decode_e2m1_word(uint32_t word, float (&out)[8]) {
  constexpr uint32_t kTwoTo14 = 0x74007400u;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t sign = shift_left(word, 12 - 4 * pair) & 0x80008000u;
    const uint32_t magnitude = shift_left(word, 9 - 4 * pair) & 0x0e000e00u;
    const float2 weights = half_pair_to_float(multiply_half_pair(sign | magnitude, kTwoTo14));
    out[2 * pair] = weights.x;
    out[2 * pair + 1] = weights.y;
  }
}

// Two E4M3 codes, in the low bytes of the halves of `codes` (other bits are ignored). As fp16 bits a code is its value
// * 2^-8, except that its NaN would be a number.
__device__ __forceinline__ float2 decode_e4m3_pair(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("{\n .reg .b16 packed;\n cvt.u16.u32 packed, %1;\n cvt.rn.f16x2.e4m3x2 %0, packed;\n}"
      : "=r"(pair)
      : "r"(__byte_perm(codes, 0, 0x4420)));
  return half_pair_to_float(pair);
#else
  constexpr uint32_t kTwoTo8 = 0x5c005c00u;
  const uint32_t bits = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
  float2 result = half_pair_to_float(multiply_half_pair(bits, kTwoTo8));
  if ((codes & 0x7fu) == 0x7fu) result.x = __uint_as_float(0x7fc00000u);
  if ((codes & 0x7f0000u) == 0x7f0000u) result.y = __uint_as_float(0x7fc00000u);
  return result;
#endif
}

// Weights are read once in a step: they stay out of L1, which keeps the activations.
__device__ __forceinline__ uint32_t load_weight_word(const uint32_t* word) {
  uint32_t result;
  asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(result) : "l"(word));
  return result;
}

template <FormatId>
struct Decode;

template <>
struct Decode<FormatId::kBf16> : LaneShape<formats::bf16::kInfo.group, formats::bf16::kInfo.words_per_lane> {
  static __device__ __forceinline__ void word(uint32_t word, float (&out)[2]) {
    out[0] = low_bf16(word);
    out[1] = high_bf16(word);
  }
  static __device__ __forceinline__ uint32_t load_scale(const std::byte*, int, int) { return 0; }
  static __device__ __forceinline__ float scale(uint32_t, int) { return 1.0f; }
};

// E2M1 codes and a scale word with a byte for each row of the tile.
template <class Shape>
struct DecodeFp4 : Shape {
  static __device__ __forceinline__ void word(uint32_t word, float (&out)[8]) { decode_e2m1_word(word, out); }
  static __device__ __forceinline__ uint32_t load_scale(const std::byte* scales, int block, int lane) {
    return load_weight_word(reinterpret_cast<const uint32_t*>(scales) + block * kLanes + lane);
  }
};
__host__ __device__ constexpr int scale_byte_of_row(int row) { return row / 2 + row % 2 * 2; }
static_assert(scale_byte_of_row(0) == formats::fp4::kScaleByteOfRow[0] &&
              scale_byte_of_row(1) == formats::fp4::kScaleByteOfRow[1] &&
              scale_byte_of_row(2) == formats::fp4::kScaleByteOfRow[2] &&
              scale_byte_of_row(3) == formats::fp4::kScaleByteOfRow[3]);

template <>
struct Decode<FormatId::kNvfp4>
    : DecodeFp4<LaneShape<formats::nvfp4::kInfo.group, formats::nvfp4::kInfo.words_per_lane>> {
  static __device__ __forceinline__ float scale(uint32_t word, int row) {
    return decode_e4m3_pair(word >> (8 * scale_byte_of_row(row))).x;
  }
};

// An E8M0 code is an fp32 exponent: 0 becomes +0, as flushing 2^-127 does.
template <>
struct Decode<FormatId::kMxfp4>
    : DecodeFp4<LaneShape<formats::mxfp4::kInfo.group, formats::mxfp4::kInfo.words_per_lane>> {
  static __device__ __forceinline__ float scale(uint32_t word, int row) {
    const uint32_t code = word >> (8 * scale_byte_of_row(row)) & 0xffu;
    return __uint_as_float(code == 0xffu ? 0x7fc00000u : code << 23);
  }
};

template <>
struct Decode<FormatId::kFp8Block>
    : LaneShape<formats::fp8_block::kInfo.group, formats::fp8_block::kInfo.words_per_lane> {
  static __device__ __forceinline__ void word(uint32_t word, float (&out)[4]) {
    const float2 first = decode_e4m3_pair(word);
    const float2 second = decode_e4m3_pair(word >> 8);
    out[0] = first.x;
    out[1] = first.y;
    out[2] = second.x;
    out[3] = second.y;
  }
  static __device__ __forceinline__ uint32_t load_scale(const std::byte* scales, int block, int lane) {
    constexpr int kLanesPerScale = formats::fp8_block::kLanesPerScale;
    return load_weight_word(reinterpret_cast<const uint32_t*>(scales) + block * (kLanes / kLanesPerScale) +
                            lane / kLanesPerScale);
  }
  static __device__ __forceinline__ float scale(uint32_t word, int) { return __uint_as_float(word); }
};

}  // namespace ft::cuda
