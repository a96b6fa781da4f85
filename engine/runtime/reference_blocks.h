// The arithmetic of an index of blocks in reference numerics: sums in double, nothing rounded.
#pragma once

#include "engine/runtime/block_index.h"
#include "engine/runtime/reference_compressed.h"
#include "engine/runtime/reference_math.h"

namespace ft {

class ReferenceBlockMath {
 public:
  using Element = float;

  static float store(float x) { return x; }
  static void round_query(float*, int64_t) {}
  static void average(const float* const* rows, int64_t count, int64_t dim, float* out) {
    for (int64_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (int64_t row = 0; row < count; ++row) sum += static_cast<double>(rows[row][i]);
      out[i] = static_cast<float>(sum / static_cast<double>(count));
    }
  }
  static void norm_rotate(float* x, int64_t dim, const float* weight, float eps, const float* cos, const float* sin,
                          int64_t half) {
    reference_math::rmsnorm_row(x, weight, eps, dim, x);
    reference_math::rotate_halves(x, cos, sin, half);
  }
  static void score(const float* q, const float* weight, int64_t heads, int64_t dim, const float* keys, int64_t count,
                    float* scores) {
    ReferenceCompressedMath::score(q, weight, heads, dim, keys, count, scores);
  }
};

}  // namespace ft
