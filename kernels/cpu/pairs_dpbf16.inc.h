// Pairs of bf16 in 32-bit words on AVX512_BF16. vdpbf16ps rounds as two fma, the odd elements first, and flushes
// denormals whatever MXCSR says. Include after vec_avx512.h.
#pragma once

namespace ft::FT_ISA_NAMESPACE {

using Pairs = U32x16;

static inline Pairs make_pairs(U32x16 words) { return words; }

static inline F32x16 dot_pairs(Pairs a, Pairs b, F32x16 sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

}  // namespace ft::FT_ISA_NAMESPACE
