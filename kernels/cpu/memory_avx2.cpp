// One cache line is two registers.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ft::FT_ISA_NAMESPACE {

struct Line {
  __m256d lo, hi;
};

static inline Line load_line(const void* p) {
  const auto* doubles = static_cast<const double*>(p);
  return {_mm256_load_pd(doubles), _mm256_load_pd(doubles + 4)};
}
static inline void stream_line(double* p, Line x) {
  _mm256_stream_pd(p, x.lo);
  _mm256_stream_pd(p + 4, x.hi);
}
static inline Line zero_line() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
static inline Line fill_line(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
static inline Line mul_lines(Line a, Line b) { return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)}; }
static inline Line add_lines(Line a, Line b) { return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)}; }
static inline Line xor_lines(Line a, Line b) { return {_mm256_xor_pd(a.lo, b.lo), _mm256_xor_pd(a.hi, b.hi)}; }
static inline uint64_t xor_words(Line x) {
  alignas(32) uint64_t words[4];
  _mm256_store_pd(reinterpret_cast<double*>(words), _mm256_xor_pd(x.lo, x.hi));
  return (words[0] ^ words[1]) ^ (words[2] ^ words[3]);
}

}  // namespace ft::FT_ISA_NAMESPACE

#include "kernels/cpu/memory.inc.h"
