// The vector vocabulary on AVX2 + FMA + F16C: 16 fp32 lanes in two registers, lanes 0-7 in lo. See vec_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#ifndef FT_ISA_NAMESPACE
#define FT_ISA_NAMESPACE avx2
#endif

namespace ft::FT_ISA_NAMESPACE {

struct F32x16 {
  __m256 lo, hi;
};
struct U32x16 {
  __m256i lo, hi;
};

static inline F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
static inline __m256i lane_mask(int n) {  // lanes 0 .. n-1 all ones
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline F32x16 load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, lane_mask(n)), _mm256_maskload_ps(p + 8, lane_mask(n - 8))};
}
static inline void store_n(float* p, F32x16 x, int n) {
  _mm256_maskstore_ps(p, lane_mask(n), x.lo);
  _mm256_maskstore_ps(p + 8, lane_mask(n - 8), x.hi);
}
static inline F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline F32x16 round_nearest(F32x16 x) {
  return {_mm256_round_ps(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline U32x16 to_int(F32x16 x) { return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
static inline F32x16 bits_to_float(U32x16 x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
static inline U32x16 float_to_bits(F32x16 x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
static inline U32x16 load_words(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
static inline U32x16 load_words_n(const uint32_t* p, int n) {
  const int* words = reinterpret_cast<const int*>(p);
  return {_mm256_maskload_epi32(words, lane_mask(n)), _mm256_maskload_epi32(words + 8, lane_mask(n - 8))};
}
static inline U32x16 load_words_n(const uint32_t* p, int n, U32x16 absent) {
  const U32x16 present = load_words_n(p, n);
  return {_mm256_blendv_epi8(absent.lo, present.lo, lane_mask(n)),
          _mm256_blendv_epi8(absent.hi, present.hi, lane_mask(n - 8))};
}
static inline void store_words(uint32_t* p, U32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
static inline U32x16 broadcast_word(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
static inline U32x16 add_words(U32x16 a, U32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
static inline U32x16 and_words(U32x16 a, U32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
static inline U32x16 or_words(U32x16 a, U32x16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int kBits>
static inline U32x16 shift_left(U32x16 x) {
  return {_mm256_slli_epi32(x.lo, kBits), _mm256_slli_epi32(x.hi, kBits)};
}
template <int kBits>
static inline U32x16 shift_right(U32x16 x) {
  return {_mm256_srli_epi32(x.lo, kBits), _mm256_srli_epi32(x.hi, kBits)};
}
static inline U32x16 select_bits(U32x16 mask, U32x16 a, U32x16 b) {
  return {_mm256_or_si256(_mm256_and_si256(mask.lo, a.lo), _mm256_andnot_si256(mask.lo, b.lo)),
          _mm256_or_si256(_mm256_and_si256(mask.hi, a.hi), _mm256_andnot_si256(mask.hi, b.hi))};
}
static inline U32x16 add_halves(U32x16 a, U32x16 b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
template <int kBits>
static inline U32x16 shift_left_halves(U32x16 x) {
  return {_mm256_slli_epi16(x.lo, kBits), _mm256_slli_epi16(x.hi, kBits)};
}
template <int kBits>
static inline U32x16 shift_right_halves(U32x16 x) {
  return {_mm256_srli_epi16(x.lo, kBits), _mm256_srli_epi16(x.hi, kBits)};
}
static inline __m256i bytes_between(__m256i x, __m256i low, __m256i high) {
  return _mm256_cmpeq_epi8(_mm256_min_epu8(_mm256_max_epu8(x, low), high), x);
}
template <int kLow, int kHigh>
static inline bool bytes_between(U32x16 x) {
  const __m256i low = _mm256_set1_epi8(kLow), high = _mm256_set1_epi8(kHigh);
  return _mm256_movemask_epi8(_mm256_and_si256(bytes_between(x.lo, low, high), bytes_between(x.hi, low, high))) == -1;
}
struct HalfTable {
  __m256i low_bytes, high_bytes;  // 16 each, twice; entry 0 is 0
};
static inline HalfTable load_half_table(const uint16_t* entries) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries + 8));
  const __m128i byte = _mm_set1_epi16(0xff);
  const __m128i low = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
  const __m128i high = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
  return {_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)};
}
static inline __m256i lookup_halves(HalfTable table, __m256i x) {
  const __m256i index = _mm256_and_si256(x, _mm256_set1_epi16(15));  // the other byte looks entry 0 up: 0
  return _mm256_or_si256(_mm256_shuffle_epi8(table.low_bytes, index),
                         _mm256_shuffle_epi8(table.high_bytes, _mm256_slli_epi16(index, 8)));
}
static inline U32x16 lookup_halves(HalfTable table, U32x16 x) {
  return {lookup_halves(table, x.lo), lookup_halves(table, x.hi)};
}
static inline __m256i lookup_halves_from(HalfTable table, __m256i x, __m256i bound, __m256i index, __m256i other) {
  const __m256i at_least = _mm256_cmpeq_epi16(_mm256_max_epu16(x, bound), x);
  return _mm256_blendv_epi8(other, lookup_halves(table, index), at_least);
}
static inline U32x16 lookup_halves_from(HalfTable table, U32x16 x, U32x16 bound, U32x16 index, U32x16 other) {
  return {lookup_halves_from(table, x.lo, bound.lo, index.lo, other.lo),
          lookup_halves_from(table, x.hi, bound.hi, index.hi, other.hi)};
}
template <int kControl>
static inline __m256i gather_lanes(U32x16 x) {
  const __m256 crossed = _mm256_shuffle_ps(_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi), kControl);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(crossed), 0xd8);  // shuffle works within 128-bit lanes
}
static inline U32x16 even_lanes(U32x16 a, U32x16 b) { return {gather_lanes<0x88>(a), gather_lanes<0x88>(b)}; }
static inline U32x16 odd_lanes(U32x16 a, U32x16 b) { return {gather_lanes<0xdd>(a), gather_lanes<0xdd>(b)}; }
static inline F32x16 broadcast_halves(float a, float b) { return {_mm256_set1_ps(a), _mm256_set1_ps(b)}; }
static inline F32x16 first_lanes(F32x16 x, int n) {
  return {_mm256_and_ps(x.lo, _mm256_castsi256_ps(lane_mask(n))),
          _mm256_and_ps(x.hi, _mm256_castsi256_ps(lane_mask(n - 8)))};
}
template <int kFirst, int kCount>
static inline F32x16 lanes_from(F32x16 x) {
  static_assert(kFirst % kCount == 0 && (kCount == 8 || kCount == 4));
  const __m256 half = kFirst < 8 ? x.lo : x.hi;
  if constexpr (kCount == 8) return {half, _mm256_setzero_ps()};
  return {_mm256_zextps128_ps256(_mm256_extractf128_ps(half, kFirst % 8 / 4)), _mm256_setzero_ps()};
}
static inline __m256i round_bf16(__m256 x) {  // in words
  const __m256i u = _mm256_castps_si256(x);
  const __m256i upper = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i exponent = _mm256_and_si256(u, _mm256_set1_epi32(0x7f800000));
  const __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i flushed = _mm256_blendv_epi8(rounded, _mm256_and_si256(upper, _mm256_set1_epi32(0x8000)), tiny);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(flushed, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
}
static inline __m256i round_bf16(F32x16 x) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(x.lo), round_bf16(x.hi));
  return _mm256_permute4x64_epi64(packed, 0xd8);  // packus works within 128-bit lanes
}
static inline __m256 widen_bf16(const void* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
}
static inline F32x16 load_bf16(const void* p) {
  return {widen_bf16(p), widen_bf16(static_cast<const uint16_t*>(p) + 8)};
}
static inline F32x16 load_bf16_n(const void* p, int n) {
  alignas(32) uint16_t padded[16] = {};
  for (int i = 0; i < n; ++i) padded[i] = static_cast<const uint16_t*>(p)[i];
  return load_bf16(padded);
}
static inline float tree_sum(F32x16 x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline __m256 tree_step8(F32x16 x) { return _mm256_add_ps(x.lo, x.hi); }
static inline float tree_max(F32x16 x) {
  const __m256 eight = _mm256_max_ps(x.lo, x.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace ft::FT_ISA_NAMESPACE
