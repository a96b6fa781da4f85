// Pairs of bf16 in 32-bit words on AVX512_BF16. vdpbf16ps rounds as two fma, the odd elements first, and flushes
// denormals whatever MXCSR says. Include after vec_avx512.h.
//
// On Sapphire Rapids it is four micro-operations on two ports (2.2 cycles each at best, latency 8), as many as widening
// two operands and two fma; for nvfp4, whose table can give widened weights at once, pairs_fma.inc.h is the faster one:
// 0.70 against 0.66 of a plain read for one token, 97 against 119 ns per block of a tile for four. Hence
// CpuQuirks::slow_dpbf16 (kernels/registry.h).
#pragma once

namespace ft::FT_ISA_NAMESPACE {

using Pairs = U32x16;

static inline Pairs make_pairs(U32x16 words) { return words; }

// Table entries (bf16, 16 of them) for the low 4 bits of each half.
using PairTable = HalfTable;
static inline PairTable load_pair_table(const uint16_t* entries) { return load_half_table(entries); }
static inline Pairs lookup_pairs(PairTable table, U32x16 x) { return lookup_halves(table, x); }

static inline F32x16 dot_pairs(Pairs a, Pairs b, F32x16 sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

}  // namespace ft::FT_ISA_NAMESPACE
