// Pairs of bf16 in 32-bit words, multiplied with two fma: the even element in the low half, the odd one in the high
// half. Include after a vector vocabulary. pairs_dpbf16.inc.h is the same in one instruction.
#pragma once

#include "kernels/formats/format.h"

namespace ft::FT_ISA_NAMESPACE {

struct Pairs {
  F32x16 even, odd;
};

static inline Pairs make_pairs(U32x16 words) {
  return {bits_to_float(shift_left<16>(words)), bits_to_float(and_words(words, broadcast_word(0xffff0000u)))};
}

// Pairs in memory: 16 even elements, 16 odd ones.
constexpr int kPairsWords = 2 * kLanes;
static inline void store_pairs(uint32_t* p, Pairs x) {
  store_words(p, float_to_bits(x.even));
  store_words(p + kLanes, float_to_bits(x.odd));
}
static inline Pairs load_pairs(const uint32_t* p) {
  return {bits_to_float(load_words(p)), bits_to_float(load_words(p + kLanes))};
}

// lookup_pairs<q>: table entries (16 bf16) for nibbles q and q + 4 of each word as the even and the odd element.
#ifdef __AVX512F__
// vpermps looks at the low four bits of a word. To bring nibbles 0, 2, 4 and 6 there takes no shift but a load that
// starts as many bytes later (up to 3 bytes past the words: scales follow the codes), 1, 3, 5 and 7 one shift more.
// Per 128 weights 4 shifts, 8 permutes and 8 fma, where shifts of one load would take 7. vpermw for the odd elements,
// which needs no shift of its own, is two instructions inside (with 16 fma 26 cycles where 16 vpermps take 17.6).
using PairTable = F32x16;
static inline PairTable load_pair_table(const uint16_t* entries) { return load_bf16(entries); }
template <int q, class Words>
static inline Pairs lookup_pairs(PairTable table, const Words& words) {
  U32x16 even = words.template load<q / 2>();
  U32x16 odd = words.template load<q / 2 + 2>();
  if constexpr (q % 2 == 1) {
    even = shift_right<4>(even);
    odd = shift_right<4>(odd);
  }
  return {_mm512_permutexvar_ps(even, table), _mm512_permutexvar_ps(odd, table)};
}
#else
using PairTable = HalfTable;
static inline PairTable load_pair_table(const uint16_t* entries) { return load_half_table(entries); }
template <int q, class Words>
static inline Pairs lookup_pairs(const PairTable& table, const Words& words) {
  return make_pairs(lookup_halves(table, q == 0 ? words.load() : shift_right<4 * q>(words.load())));
}
#endif

// The order of vdpbf16ps: the odd elements first.
static inline F32x16 dot_pairs(Pairs a, Pairs b, F32x16 sum) { return fma(a.even, b.even, fma(a.odd, b.odd, sum)); }

}  // namespace ft::FT_ISA_NAMESPACE
