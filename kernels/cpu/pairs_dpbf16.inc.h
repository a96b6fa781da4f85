// Pairs of bf16 in 32-bit words on AVX512_BF16. vdpbf16ps rounds as two fma, the odd elements first, and flushes
// denormals whatever MXCSR says. Include after vec_avx512.h.
//
// On the Sapphire Rapids VM measured it costs 2.2 cycles at best (fma 0.5, permutes 1) with a latency of 8: about as
// much as widening two operands and two fma. What decides for fma there is several tokens, four of them from cache, fma
// against this: bf16 78 against 99 ns per block of a tile, nvfp4 97 against 119, fp8_block 136 against 151. One token,
// cold, five runs on a loaded machine, share of a plain read: nvfp4 fma ahead by 0.02 to 0.07 in most pairs and level
// in the rest; bf16 this one ahead by 0.02 to 0.05; fp8_block no difference. So the quirk (CpuQuirks::slow_dpbf16,
// kernels/registry.h) costs bf16 a little at one token. Other CPUs: not measured.
#pragma once

#include "kernels/formats/format.h"

namespace ft::FT_ISA_NAMESPACE {

using Pairs = U32x16;

static inline Pairs make_pairs(U32x16 words) { return words; }
constexpr int kPairsWords = kLanes;
static inline void store_pairs(uint32_t* p, Pairs x) { store_words(p, x); }
static inline Pairs load_pairs(const uint32_t* p) { return load_words(p); }

// Table entries (bf16, 16 of them) for the low 4 bits of each half.
using PairTable = HalfTable;
static inline PairTable load_pair_table(const uint16_t* entries) { return load_half_table(entries); }
// Nibbles q and q + 4 of each word as the even and odd element.
template <int q, class Words>
static inline Pairs lookup_pairs(PairTable table, const Words& words) {
  return lookup_halves(table, q == 0 ? words.load() : shift_right<4 * q>(words.load()));
}

static inline F32x16 dot_pairs(Pairs a, Pairs b, F32x16 sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

}  // namespace ft::FT_ISA_NAMESPACE
