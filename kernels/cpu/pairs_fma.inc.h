// Pairs of bf16 in 32-bit words, multiplied with two fma: the even element in the low half, the odd one in the high
// half. Include after a vector vocabulary. pairs_dpbf16.inc.h is the same in one instruction.
#pragma once

namespace ft::FT_ISA_NAMESPACE {

struct Pairs {
  F32x16 even, odd;
};

static inline Pairs make_pairs(U32x16 words) {
  return {bits_to_float(shift_left<16>(words)), bits_to_float(and_words(words, broadcast_word(0xffff0000u)))};
}

// Table entries (bf16, 16 of them; entry 0 is 0) for the low 4 bits of each half.
#ifdef __AVX512F__
// One permute each: of words for the even elements, of halves with the lower ones zeroed for the odd ones. Spreading
// one permute of halves takes a shift and a mask more.
struct PairTable {
  F32x16 words;
  HalfTable halves;
};
static inline PairTable load_pair_table(const uint16_t* entries) {
  return {load_bf16(entries), load_half_table(entries)};
}
static inline Pairs lookup_pairs(const PairTable& table, U32x16 x) {
  return {_mm512_permutexvar_ps(x, table.words),
          _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, x, table.halves))};
}
#else
using PairTable = HalfTable;
static inline PairTable load_pair_table(const uint16_t* entries) { return load_half_table(entries); }
static inline Pairs lookup_pairs(const PairTable& table, U32x16 x) { return make_pairs(lookup_halves(table, x)); }
#endif

// The order of vdpbf16ps: the odd elements first.
static inline F32x16 dot_pairs(Pairs a, Pairs b, F32x16 sum) { return fma(a.even, b.even, fma(a.odd, b.odd, sum)); }

}  // namespace ft::FT_ISA_NAMESPACE
