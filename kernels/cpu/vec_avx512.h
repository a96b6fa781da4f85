// The vector vocabulary on AVX-512 (F, BW, DQ, VL): 16 fp32 lanes in one register. Bodies (*.inc.h) are written once in
// these words; a file OP_ISA.cpp includes one vocabulary and one body. Everything stays in the ISA's namespace: an
// inline function shared with baseline code would be one weak symbol, and the linker could pick the AVX-512 one.
#pragma once

#include <immintrin.h>

#include <cstdint>

#ifndef FT_ISA_NAMESPACE
#define FT_ISA_NAMESPACE avx512
#endif

namespace ft::FT_ISA_NAMESPACE {

using F32x16 = __m512;   // 16 fp32 lanes
using U32x16 = __m512i;  // 16 words

static inline F32x16 zero() { return _mm512_setzero_ps(); }
static inline F32x16 broadcast(float x) { return _mm512_set1_ps(x); }
static inline F32x16 load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x); }
// First n lanes (0..16); the others read as +0 and are not written.
static inline F32x16 load_n(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
}
static inline void store_n(float* p, F32x16 x, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), x);
}
static inline F32x16 add(F32x16 a, F32x16 b) { return _mm512_add_ps(a, b); }
static inline F32x16 sub(F32x16 a, F32x16 b) { return _mm512_sub_ps(a, b); }
static inline F32x16 mul(F32x16 a, F32x16 b) { return _mm512_mul_ps(a, b); }
static inline F32x16 div(F32x16 a, F32x16 b) { return _mm512_div_ps(a, b); }
static inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline F32x16 min(F32x16 a, F32x16 b) { return _mm512_min_ps(a, b); }  // b when either is NaN
static inline F32x16 max(F32x16 a, F32x16 b) { return _mm512_max_ps(a, b); }  // b when either is NaN
static inline F32x16 round_nearest(F32x16 x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline U32x16 to_int(F32x16 x) { return _mm512_cvtps_epi32(x); }
static inline F32x16 bits_to_float(U32x16 x) { return _mm512_castsi512_ps(x); }
static inline U32x16 float_to_bits(F32x16 x) { return _mm512_castps_si512(x); }
static inline U32x16 load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
static inline U32x16 load_words_n(const uint32_t* p, int n) {
  return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1u), p);
}
// The same with `absent` in the lanes from n on.
static inline U32x16 load_words_n(const uint32_t* p, int n, U32x16 absent) {
  return _mm512_mask_loadu_epi32(absent, static_cast<__mmask16>((1u << n) - 1u), p);
}
static inline void store_words(uint32_t* p, U32x16 x) { _mm512_storeu_si512(p, x); }
static inline U32x16 broadcast_word(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
static inline U32x16 add_words(U32x16 a, U32x16 b) { return _mm512_add_epi32(a, b); }
static inline U32x16 and_words(U32x16 a, U32x16 b) { return _mm512_and_si512(a, b); }
static inline U32x16 or_words(U32x16 a, U32x16 b) { return _mm512_or_si512(a, b); }
template <int kBits>
static inline U32x16 shift_left(U32x16 x) {
  return _mm512_slli_epi32(x, kBits);
}
template <int kBits>
static inline U32x16 shift_right(U32x16 x) {
  return _mm512_srli_epi32(x, kBits);
}
// mask ? a : b, bit by bit.
static inline U32x16 select_bits(U32x16 mask, U32x16 a, U32x16 b) {
  return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

// Halves: a word as two 16-bit numbers.
static inline U32x16 add_halves(U32x16 a, U32x16 b) { return _mm512_add_epi16(a, b); }
template <int kBits>
static inline U32x16 shift_left_halves(U32x16 x) {
  return _mm512_slli_epi16(x, kBits);
}
template <int kBits>
static inline U32x16 shift_right_halves(U32x16 x) {
  return _mm512_srli_epi16(x, kBits);
}
// Whether every byte lies in low .. high.
template <int kLow, int kHigh>
static inline bool bytes_between(U32x16 x) {
  const __m512i from_low = _mm512_sub_epi8(x, _mm512_set1_epi8(kLow));
  return _mm512_cmpgt_epu8_mask(from_low, _mm512_set1_epi8(kHigh - kLow)) == 0;
}
// 16 entries of 16 bits, chosen by the low 4 bits of each half. Entry 0 is 0.
using HalfTable = __m512i;
static inline HalfTable load_half_table(const uint16_t* entries) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(entries)));
}
static inline U32x16 lookup_halves(HalfTable table, U32x16 x) { return _mm512_permutexvar_epi16(x, table); }
// In halves where x (unsigned) is at least `bound`, the table's entry for `index`; elsewhere `other`.
static inline U32x16 lookup_halves_from(HalfTable table, U32x16 x, U32x16 bound, U32x16 index, U32x16 other) {
  return _mm512_mask_permutexvar_epi16(other, _mm512_cmpge_epu16_mask(x, bound), index, table);
}

// The even (odd) lanes of a in lanes 0 .. 7, those of b in lanes 8 .. 15.
static inline U32x16 even_lanes(U32x16 a, U32x16 b) {
  return _mm512_permutex2var_epi32(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
static inline U32x16 odd_lanes(U32x16 a, U32x16 b) {
  return _mm512_permutex2var_epi32(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

// a in lanes 0 .. 7, b in lanes 8 .. 15.
static inline F32x16 broadcast_halves(float a, float b) {
  return _mm512_mask_broadcastss_ps(_mm512_set1_ps(a), 0xff00, _mm_set_ss(b));
}
// x in lanes 0 .. n-1, +0 in the others.
static inline F32x16 first_lanes(F32x16 x, int n) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>((1u << n) - 1u), x);
}
// Lanes kFirst .. kFirst + kCount - 1 of x in lanes 0 .. kCount - 1, +0 in the others.
template <int kFirst, int kCount>
static inline F32x16 lanes_from(F32x16 x) {
  return _mm512_maskz_compress_ps(static_cast<__mmask16>(((1u << kCount) - 1u) << kFirst), x);
}

// 16 fp32 to bf16, nearest even, in order: denormals to zeros of their sign, NaN quieted. Integer steps: independent of
// MXCSR.
static inline __m256i round_bf16(F32x16 x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i upper = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 tiny = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
  rounded = _mm512_mask_and_epi32(rounded, tiny, upper, _mm512_set1_epi32(0x8000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

// 16 consecutive bf16 as fp32, exact; _n: the first n, the others +0.
static inline F32x16 load_bf16(const void* p) {
  return bits_to_float(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
}
static inline F32x16 load_bf16_n(const void* p, int n) {
  return bits_to_float(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1u), p)), 16));
}
// The fixed tree over lanes: widths 8, 4, 2, 1, acc[i] + acc[i + width].
static inline float tree_sum(F32x16 x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline __m256 tree_step8(F32x16 x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
// The largest lane; with a NaN among them, any lane's value or NaN.
static inline float tree_max(F32x16 x) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace ft::FT_ISA_NAMESPACE
