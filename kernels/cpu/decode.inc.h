// The code per format: 16 code words of one row to bf16 pairs, and the scales of a block for the four rows of a tile.
// Layouts are drawn in kernels/formats/NAME.h. Include after a vector vocabulary and pairs_*.inc.h.
//
//   kWords, kPairs       words per lane, pairs per word; kWords * kPairs is half the lane's k
//   Tables               constants that stay in registers
//   pair<q>(tables, w)   pair q of each of the 16 CodeWords w as Pairs: exact, all codes
//   scales(...)          fp32 scale per lane of each row. `scales` is the block's part, `lanes` the lanes it has (16 in
//                        the version for whole blocks); absent lanes, whose products sum to +0, get any
//                        finite number that is not below 0
#pragma once

#include <cstddef>

#include "kernels/formats/format.h"

namespace ft::FT_ISA_NAMESPACE {

// 16 code words of one row in memory, the first `lanes` of them there; the others read as 0.
template <bool kShort>
struct CodeWords {
  const uint32_t* words;
  int lanes;
  // kBytes: as if they began that many bytes later.
  template <int kBytes = 0>
  inline U32x16 load() const {
    const auto* p = reinterpret_cast<const uint32_t*>(reinterpret_cast<const std::byte*>(words) + kBytes);
    return kShort ? load_words_n(p, lanes) : load_words(p);
  }
};

template <FormatId>
struct Decode;

template <>
struct Decode<FormatId::kBf16> {
  static constexpr int kWords = 8;
  static constexpr int kPairs = 1;
  static constexpr int kScaleBytesPerBlock = 0;
  struct Tables {};

  template <int, class Words>
  static inline Pairs pair(const Tables&, const Words& words) {
    return make_pairs(words.load());
  }
  static inline void scales(const Tables&, const std::byte*, F32x16 (&out)[kRowsPerTile]) {
    for (F32x16& scale : out) scale = broadcast(1.0f);
  }
  static inline void scales(const Tables& tables, const std::byte* scales_of_block, int lanes,
                            F32x16 (&out)[kRowsPerTile]) {
    scales(tables, scales_of_block, out);
    for (F32x16& scale : out) scale = first_lanes(scale, lanes);
  }
};

// E4M3 in bytes 0 and 2 (q = 0) or 1 and 3 (q = 1) of each word to two bf16. Codes 0x08 .. 0x7e move their exponent and
// mantissa to bf16's places and add 120 to the exponent. The others (subnormal, zero, NaN) come from a table by their
// low four bits: no fp32 denormal appears on the way, so flush modes do not matter.
struct E4m3 {
  static constexpr int kLeastUsual = 0x08, kMostUsual = 0x7e;
  HalfTable unusual;

  static inline E4m3 load() {
    static constexpr uint16_t kUnusual[16] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60,
                                              0, 0,      0,      0,      0,      0,      0,      0x7fc0};
    return {load_half_table(kUnusual)};
  }

  // When all codes are usual and positive.
  template <int q>
  static inline U32x16 usual_pair(U32x16 v) {
    const U32x16 in_place = and_words(q == 0 ? shift_left<4>(v) : shift_right<4>(v), broadcast_word(0x07f007f0u));
    return add_halves(in_place, broadcast_word(0x3c003c00u));
  }
  template <int q>
  inline U32x16 pair(U32x16 v) const {
    const U32x16 in_low_byte = q == 0 ? v : shift_right_halves<8>(v);
    const U32x16 magnitude = and_words(in_low_byte, broadcast_word(0x007f007fu));
    const U32x16 usual = add_halves(shift_left_halves<4>(magnitude), broadcast_word(0x3c003c00u));
    // magnitude - 8 as an unsigned half: 0 .. 118 for usual codes, more for 0x7f and, wrapped, for 0 .. 7
    const U32x16 from_8 = add_halves(magnitude, broadcast_word(0xfff8fff8u));
    const U32x16 decoded = lookup_halves_from(unusual, from_8, broadcast_word(0x00770077u), magnitude, usual);
    const U32x16 sign_on_top = q == 0 ? shift_left_halves<8>(v) : v;
    return select_bits(broadcast_word(0x80008000u), sign_on_top, decoded);
  }
};

// A lane of E2M1 codes and a scale word with a byte for each row of the tile.
struct E2m1 {
  PairTable code;

  static inline E2m1 load() {  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives as bf16
    static constexpr uint16_t kCodes[16] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                            0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
    return {load_pair_table(kCodes)};
  }
  template <int q, class Words>
  inline Pairs pair(const Words& words) const {
    return lookup_pairs<q>(code, words);
  }
};

template <>
struct Decode<FormatId::kNvfp4> {
  static constexpr int kWords = 2;
  static constexpr int kPairs = 4;
  static constexpr int kScaleBytesPerBlock = kLanes * kRowsPerTile;
  struct Tables {
    E2m1 code = E2m1::load();
    E4m3 scale = E4m3::load();
  };

  template <int q, class Words>
  static inline Pairs pair(const Tables& tables, const Words& words) {
    return tables.code.template pair<q>(words);
  }
  static inline void spread(const Tables& tables, U32x16 words, F32x16 (&out)[kRowsPerTile]) {
    U32x16 rows01, rows23;
    if (bytes_between<E4m3::kLeastUsual, E4m3::kMostUsual>(words)) [[likely]] {
      rows01 = E4m3::usual_pair<0>(words);
      rows23 = E4m3::usual_pair<1>(words);
    } else {
      rows01 = tables.scale.pair<0>(words);
      rows23 = tables.scale.pair<1>(words);
    }
    const U32x16 upper = broadcast_word(0xffff0000u);
    out[0] = bits_to_float(shift_left<16>(rows01));
    out[1] = bits_to_float(and_words(rows01, upper));
    out[2] = bits_to_float(shift_left<16>(rows23));
    out[3] = bits_to_float(and_words(rows23, upper));
  }
  static inline void scales(const Tables& tables, const std::byte* scales_of_block, F32x16 (&out)[kRowsPerTile]) {
    spread(tables, load_words(reinterpret_cast<const uint32_t*>(scales_of_block)), out);
  }
  static inline void scales(const Tables& tables, const std::byte* scales_of_block, int lanes,
                            F32x16 (&out)[kRowsPerTile]) {
    const U32x16 one = broadcast_word(0x38383838u);
    spread(tables, load_words_n(reinterpret_cast<const uint32_t*>(scales_of_block), lanes, one), out);
  }
};

template <>
struct Decode<FormatId::kMxfp4> {
  static constexpr int kWords = 4;
  static constexpr int kPairs = 4;
  static constexpr int kScaleBytesPerBlock = kLanes * kRowsPerTile;
  struct Tables {
    E2m1 code = E2m1::load();
  };

  template <int q, class Words>
  static inline Pairs pair(const Tables& tables, const Words& words) {
    return tables.code.template pair<q>(words);
  }
  // E8M0 as fp32: the code is the exponent, so 0 becomes +0, as flushing 2^-127 does, and 255 infinity. x * 0 + x keeps
  // every number and makes that one NaN.
  static inline F32x16 power(U32x16 shifted) {
    const F32x16 x = bits_to_float(and_words(shifted, broadcast_word(0x7f800000u)));
    return fma(x, zero(), x);
  }
  static inline void spread(U32x16 words, F32x16 (&out)[kRowsPerTile]) {  // bytes: rows 0, 2, 1, 3
    out[0] = power(shift_left<23>(words));
    out[1] = power(shift_left<7>(words));
    out[2] = power(shift_left<15>(words));
    out[3] = power(shift_right<1>(words));
  }
  static inline void scales(const Tables&, const std::byte* scales_of_block, F32x16 (&out)[kRowsPerTile]) {
    spread(load_words(reinterpret_cast<const uint32_t*>(scales_of_block)), out);
  }
  static inline void scales(const Tables&, const std::byte* scales_of_block, int lanes, F32x16 (&out)[kRowsPerTile]) {
    spread(load_words_n(reinterpret_cast<const uint32_t*>(scales_of_block), lanes), out);
  }
};

struct DecodeFp8 {
  static constexpr int kWords = 4;
  static constexpr int kPairs = 2;
  struct Tables {
    E4m3 code = E4m3::load();
  };

  template <int q, class Words>
  static inline Pairs pair(const Tables& tables, const Words& words) {
    return make_pairs(tables.code.pair<q>(words.load()));
  }
};

template <>
struct Decode<FormatId::kFp8Block> : DecodeFp8 {
  static constexpr int kScaleBytesPerBlock = 8;

  static inline void scales(const Tables&, const std::byte* scales_of_block, F32x16 (&out)[kRowsPerTile]) {
    const float* pair_of_scales = reinterpret_cast<const float*>(scales_of_block);
    for (F32x16& scale : out) scale = broadcast_halves(pair_of_scales[0], pair_of_scales[1]);
  }
  static inline void scales(const Tables&, const std::byte* scales_of_block, int lanes, F32x16 (&out)[kRowsPerTile]) {
    const float* present = reinterpret_cast<const float*>(scales_of_block);  // one scale for 8 lanes or less
    const float second = lanes > 8 ? present[1] : 0.0f;
    for (F32x16& scale : out) scale = first_lanes(broadcast_halves(present[0], second), lanes);
  }
};

template <>
struct Decode<FormatId::kFp8Channel> : DecodeFp8 {
  static constexpr int kScaleBytesPerBlock = 0;  // the tile's four are those of every block

  static inline void scales(const Tables&, const std::byte* scales_of_tile, F32x16 (&out)[kRowsPerTile]) {
    const float* of_row = reinterpret_cast<const float*>(scales_of_tile);
    for (int r = 0; r < kRowsPerTile; ++r) out[r] = broadcast(of_row[r]);
  }
  static inline void scales(const Tables& tables, const std::byte* scales_of_tile, int lanes,
                            F32x16 (&out)[kRowsPerTile]) {
    scales(tables, scales_of_tile, out);
    for (F32x16& scale : out) scale = first_lanes(scale, lanes);
  }
};

}  // namespace ft::FT_ISA_NAMESPACE
