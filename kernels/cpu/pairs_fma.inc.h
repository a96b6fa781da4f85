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

// The order of vdpbf16ps: the odd elements first.
static inline F32x16 dot_pairs(Pairs a, Pairs b, F32x16 sum) { return fma(a.even, b.even, fma(a.odd, b.odd, sum)); }

}  // namespace ft::FT_ISA_NAMESPACE
