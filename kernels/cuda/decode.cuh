// What the device kernels know about each format: the weights of one code word and the scales of one lane, exactly
// those of kernels/reference/decode.h.
//
//   kGroup            k of a lane in a block (16, or 32)
//   kWords            code words of a lane in a block; word h holds the pairs [h * kPairs, (h + 1) * kPairs)
//   kShift            word<true>() leaves out a factor of 2^kShift, which the caller puts into the activations instead
//   word<kScaled>(w, out)  weights of a word: out[2i] and out[2i + 1] are the even and the odd one of its pair i
//   kHasScales        false: every scale is 1
//   kRowScales        a row has one scale for all blocks, fp32: word r of a tile's scales is row r's. Then there are no
//                     scales() and half_scales()
//   scale_offset(block, lane)  bytes from a tile's first scale to the word with those of a lane that is present, or,
//                     with kRowScales, to row `lane`'s
//   scales(word, out) those of the four rows of the tile
//   half_scales(word, half, out)  those of the rows half and half + 2
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/formats/fp8_channel.h"
#include "kernels/formats/mxfp4.h"
#include "kernels/formats/nvfp4.h"

namespace ft::cuda {

// sm_89 and newer turn two E4M3 codes into fp16 in one instruction.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
inline constexpr bool kConvertsE4m3 = false;
#else
inline constexpr bool kConvertsE4m3 = true;
#endif

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

// The E4M3 codes in bytes 0 and 1 of `word`, and those in bytes 2 and 3, as pairs of fp16.
struct HalfPairs {
  uint32_t low, high;
};
__device__ __forceinline__ HalfPairs convert_e4m3(uint32_t word) {
  HalfPairs result{};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.rn.f16x2.e4m3x2 %0, low;\n"
      " cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(result.low), "=r"(result.high)
      : "r"(word));
#endif
  return result;
}

// Eight E2M1 codes, even ones in the low half, odd ones in the high half.
//
// As E4M3 bits a code's sign, exponent and mantissa, moved to the places of theirs, are its value * 2^-6, the denormal
// 0.5 included: seven integer steps and four conversions for eight weights in pairs, and one more a weight to fp32.
// Before sm_89 a code's exponent and mantissa bits become the lowest exponent and highest mantissa bits of an fp16,
// which is the code's value * 2^-14.
inline constexpr int kE2m1Shift = kConvertsE4m3 ? 6 : 14;
template <bool kScaled>
__device__ __forceinline__ void decode_e2m1_word(uint32_t word, float (&out)[8]) {
  uint32_t pairs[4];
  if constexpr (kConvertsE4m3) {
    const HalfPairs even = convert_e4m3((word << 4 & 0x80808080u) | (word << 2 & 0x1c1c1c1cu));  // nibbles 0 2, 4 6
    const HalfPairs odd = convert_e4m3((word & 0x80808080u) | (word >> 2 & 0x1c1c1c1cu));        // nibbles 1 3, 5 7
    pairs[0] = even.low, pairs[1] = even.high, pairs[2] = odd.low, pairs[3] = odd.high;
  } else {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t sign = shift_left(word, 12 - 4 * pair) & 0x80008000u;
      pairs[pair] = sign | (shift_left(word, 9 - 4 * pair) & 0x0e000e00u);
    }
  }
  constexpr uint32_t kPower = 0x3c003c00u + kE2m1Shift * 0x04000400u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 weights = half_pair_to_float(kScaled ? pairs[i] : multiply_half_pair(pairs[i], kPower));
    if constexpr (kConvertsE4m3) {  // nibble n is the even (n < 4) or odd one of pair n mod 4
      const int place = i % 2 + i / 2 * 2;
      out[place] = weights.x;
      out[place + 4] = weights.y;
    } else {
      out[2 * i] = weights.x;
      out[2 * i + 1] = weights.y;
    }
  }
}

// Four E4M3 codes. Before sm_89: as fp16 bits a code is its value * 2^-8, except that its NaN would be a number.
__device__ __forceinline__ void decode_e4m3_word(uint32_t word, float (&out)[4]) {
  if constexpr (kConvertsE4m3) {
    const HalfPairs pairs = convert_e4m3(word);
    const float2 low = half_pair_to_float(pairs.low), high = half_pair_to_float(pairs.high);
    out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
  } else {
    constexpr uint32_t kTwoTo8 = 0x5c005c00u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = word >> (8 * i);
      const uint32_t bits = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
      const float2 pair = half_pair_to_float(multiply_half_pair(bits, kTwoTo8));
      out[i] = (codes & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : pair.x;
      out[2 + i] = (codes & 0x7f0000u) == 0x7f0000u ? __uint_as_float(0x7fc00000u) : pair.y;
    }
  }
}

// Those in bytes 0 and 1.
__device__ __forceinline__ void decode_e4m3_pair(uint32_t word, float (&out)[2]) {
  if constexpr (kConvertsE4m3) {
    const float2 pair = half_pair_to_float(convert_e4m3(word).low);
    out[0] = pair.x, out[1] = pair.y;
  } else {
    float all[4];
    decode_e4m3_word(word, all);
    out[0] = all[0], out[1] = all[1];
  }
}

// Weights are read once in a step: they stay out of L1, which keeps the activations. Not the read-only path: a slot may
// have been filled by this kernel. The compiler sees no memory here: what must come first has to give the address.
__device__ __forceinline__ uint32_t load_weight_word(const uint32_t* word) {
  uint32_t result;
  asm("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(result) : "l"(word));
  return result;
}

template <FormatId>
struct Decode;

template <>
struct Decode<FormatId::kBf16> : LaneShape<formats::bf16::kInfo.group, formats::bf16::kInfo.words_per_lane> {
  static constexpr int kShift = 0;
  static constexpr bool kHasScales = false, kRowScales = false;
  template <bool kScaled>
  static __device__ __forceinline__ void word(uint32_t word, float (&out)[2]) {
    out[0] = low_bf16(word);
    out[1] = high_bf16(word);
  }
  static __device__ __forceinline__ int scale_offset(int, int) { return 0; }
  static __device__ __forceinline__ void scales(uint32_t, float (&out)[kRowsPerTile]) {
#pragma unroll
    for (float& scale : out) scale = 1.0f;
  }
  static __device__ __forceinline__ void half_scales(uint32_t, int, float (&out)[2]) { out[0] = out[1] = 1.0f; }
};

// E2M1 codes and a scale word with a byte for each row of the tile.
template <class Shape>
struct DecodeFp4 : Shape {
  static constexpr int kShift = kE2m1Shift;
  static constexpr bool kHasScales = true, kRowScales = false;
  template <bool kScaled>
  static __device__ __forceinline__ void word(uint32_t word, float (&out)[8]) {
    decode_e2m1_word<kScaled>(word, out);
  }
  static __device__ __forceinline__ int scale_offset(int block, int lane) { return (block * kLanes + lane) * 4; }
};
// Row of the tile whose scale is in byte `byte` of a scale word.
__host__ __device__ constexpr int scale_row_of_byte(int byte) { return byte / 2 + byte % 2 * 2; }
static_assert(formats::fp4::kScaleByteOfRow[scale_row_of_byte(0)] == 0 &&
              formats::fp4::kScaleByteOfRow[scale_row_of_byte(1)] == 1 &&
              formats::fp4::kScaleByteOfRow[scale_row_of_byte(2)] == 2 &&
              formats::fp4::kScaleByteOfRow[scale_row_of_byte(3)] == 3);

template <>
struct Decode<FormatId::kNvfp4>
    : DecodeFp4<LaneShape<formats::nvfp4::kInfo.group, formats::nvfp4::kInfo.words_per_lane>> {
  static __device__ __forceinline__ void scales(uint32_t word, float (&out)[kRowsPerTile]) {
    float of_byte[4];
    decode_e4m3_word(word, of_byte);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[scale_row_of_byte(i)] = of_byte[i];
  }
  static __device__ __forceinline__ void half_scales(uint32_t word, int half, float (&out)[2]) {
    decode_e4m3_pair(word >> (16 * half), out);
  }
};

// An E8M0 code is an fp32 exponent: 0 becomes +0, as flushing 2^-127 does.
template <>
struct Decode<FormatId::kMxfp4>
    : DecodeFp4<LaneShape<formats::mxfp4::kInfo.group, formats::mxfp4::kInfo.words_per_lane>> {
  static __device__ __forceinline__ void scales(uint32_t word, float (&out)[kRowsPerTile]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = word >> (8 * i) & 0xffu;
      out[scale_row_of_byte(i)] = __uint_as_float(code == 0xffu ? 0x7fc00000u : code << 23);
    }
  }
  static __device__ __forceinline__ void half_scales(uint32_t word, int half, float (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t code = word >> (16 * half + 8 * i) & 0xffu;
      out[i] = __uint_as_float(code == 0xffu ? 0x7fc00000u : code << 23);
    }
  }
};

struct DecodeFp8 : LaneShape<formats::fp8::kGroup, formats::fp8::kWordsPerLane> {
  static constexpr int kShift = 0;
  static constexpr bool kHasScales = true;
  template <bool kScaled>
  static __device__ __forceinline__ void word(uint32_t word, float (&out)[4]) {
    float of_byte[4];
    decode_e4m3_word(word, of_byte);  // pair p: its even code in byte p, its odd one in byte p + 2
    out[0] = of_byte[0], out[1] = of_byte[2], out[2] = of_byte[1], out[3] = of_byte[3];
  }
};

template <>
struct Decode<FormatId::kFp8Block> : DecodeFp8 {
  static constexpr bool kRowScales = false;
  static __device__ __forceinline__ int scale_offset(int block, int lane) {
    constexpr int kLanesPerScale = formats::fp8_block::kLanesPerScale;
    return (block * (kLanes / kLanesPerScale) + lane / kLanesPerScale) * 4;
  }
  static __device__ __forceinline__ void scales(uint32_t word, float (&out)[kRowsPerTile]) {
#pragma unroll
    for (float& scale : out) scale = __uint_as_float(word);
  }
  static __device__ __forceinline__ void half_scales(uint32_t word, int, float (&out)[2]) {
    out[0] = out[1] = __uint_as_float(word);
  }
};

template <>
struct Decode<FormatId::kFp8Channel> : DecodeFp8 {
  static constexpr bool kRowScales = true;
  static __device__ __forceinline__ int scale_offset(int, int row) { return row * formats::fp8::kBytesPerScale; }
};

// Words of scales that a block of k has in shared memory, and whether lane `lane` of a block of `lanes` brings one.
template <FormatId kFormat>
inline constexpr int kScaleWords =
    !Decode<kFormat>::kHasScales ? 0 : (Decode<kFormat>::kRowScales ? kRowsPerTile : kLanes);
template <FormatId kFormat>
__device__ __forceinline__ bool brings_scale(int lane, int lanes) {
  return lane < (Decode<kFormat>::kRowScales ? kRowsPerTile : lanes);
}

}  // namespace ft::cuda
