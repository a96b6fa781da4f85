// One cache line is one register.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ft::FT_ISA_NAMESPACE {

using Line = __m512d;

static inline Line load_line(const void* p) { return _mm512_load_pd(p); }
static inline void stream_line(double* p, Line x) { _mm512_stream_pd(p, x); }
static inline Line zero_line() { return _mm512_setzero_pd(); }
static inline Line fill_line(double x) { return _mm512_set1_pd(x); }
static inline Line mul_lines(Line a, Line b) { return _mm512_mul_pd(a, b); }
static inline Line add_lines(Line a, Line b) { return _mm512_add_pd(a, b); }
static inline Line xor_lines(Line a, Line b) { return _mm512_xor_pd(a, b); }
static inline uint64_t xor_words(Line x) {
  alignas(64) uint64_t words[8];
  _mm512_store_pd(words, x);
  return (words[0] ^ words[1]) ^ (words[2] ^ words[3]) ^ (words[4] ^ words[5]) ^ (words[6] ^ words[7]);
}

}  // namespace ft::FT_ISA_NAMESPACE

#include "kernels/cpu/memory.inc.h"
