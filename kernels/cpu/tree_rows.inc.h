// The fixed tree over lanes (vec_*.h tree_sum) of four rows at once: 10 shuffles and 4 adds after the first step, where
// four single trees take 12 and 12 (counted, not timed). Include after a vector vocabulary.
#pragma once

#include <immintrin.h>

namespace ft::FT_ISA_NAMESPACE {

static inline __m128 tree_sum_rows(F32x16 row0, F32x16 row1, F32x16 row2, F32x16 row3) {
  const auto fold4 = [](__m256 a, __m256 b) {  // a's four sums, then b's
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const __m256 rows01 = fold4(tree_step8(row0), tree_step8(row1));
  const __m256 rows23 = fold4(tree_step8(row2), tree_step8(row3));
  const __m256 two =  // row 0, row 2 | row 1, row 3, two sums each
      _mm256_add_ps(_mm256_shuffle_ps(rows01, rows23, 0x44), _mm256_shuffle_ps(rows01, rows23, 0xee));
  const __m256 one = _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xdd));
  return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

}  // namespace ft::FT_ISA_NAMESPACE
