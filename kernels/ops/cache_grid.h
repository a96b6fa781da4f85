// Rows rounded to the grid of a small format and back, as caches of quantized rows would give them: groups of values
// share a scale, a power of two. And the turn by a Hadamard matrix that comes before, which spreads outliers.
// Source: what DeepSeek-V4 does beside its weights (the authors' inference), for rows, entries and index vectors.
//
//   scale(amax) = 2^ceil(log2(max(amax, grid.least) * (1 / grid.largest))), the products rounded to fp32
//   value(x)    = e * scale, e the value of the grid nearest to clamp(x / scale, -largest, largest), ties to even; a
//                 zero is +0
// amax: the largest |x| of the group. Flushed denormals as in kernels/ops/rows.h; a NaN gives NaN at its place, and
// what infinities do to their group is not promised beyond equal bits. The functions here are the definition: the host
// and CUDA both compute them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/bf16.h"

namespace ft {

// Values of `mantissa` bits after the leading one; below 2^least_exponent they lie evenly.
struct CacheGrid {
  int mantissa = 0;
  int least_exponent = 0;
  float largest = 0;
  float least = 0;  // of amax
  int group = 0;    // neighbouring values; the last group of a row may be shorter
};
constexpr CacheGrid fp8_grid() { return {3, -6, 448.0f, 1e-4f, 64}; }          // E4M3
constexpr CacheGrid fp4_grid() { return {1, 0, 6.0f, 6.0f * 0x1p-126f, 32}; }  // E2M1
inline constexpr CacheGrid kFp8Grid = fp8_grid(), kFp4Grid = fp4_grid();

constexpr float grid_scale(const CacheGrid& grid, float amax) {
  const float ratio = (amax > grid.least ? amax : grid.least) * (1.0f / grid.largest);
  const auto bits = std::bit_cast<uint32_t>(ratio);
  const uint32_t up = (bits & 0x7fffffu) != 0 ? 1 : 0;
  const uint32_t exponent = (bits >> 23) + up;
  return std::bit_cast<float>((exponent < 253 ? exponent : 253) << 23);
}

constexpr float on_grid(const CacheGrid& grid, float x, float scale) {
  const float inverse = std::bit_cast<float>((254u << 23) - std::bit_cast<uint32_t>(scale));
  const float ratio = x * inverse;
  const float y = ratio < -grid.largest ? -grid.largest : ratio > grid.largest ? grid.largest : ratio;
  const auto own = static_cast<int>(std::bit_cast<uint32_t>(y) >> 23 & 0xffu), least = grid.least_exponent + 127;
  // A number so large that neighbours are a step of the grid apart: adding it rounds.
  const auto exponent = static_cast<uint32_t>((own > least ? own : least) + 23 - grid.mantissa);
  const float rounder = std::bit_cast<float>(exponent << 23 | 0x400000u);
  const float sum = y + rounder;
  return (sum - rounder) * scale;
}

// In place, `count` values of a row from its first on.
inline void round_to_grid(const CacheGrid& grid, float* x, int64_t count) {
  for (int64_t first = 0; first < count; first += grid.group) {
    const int64_t end = first + grid.group < count ? first + grid.group : count;
    float amax = 0;
    for (int64_t i = first; i < end; ++i) {
      const float size = x[i] < 0 ? -x[i] : x[i];
      amax = size > amax ? size : amax;
    }
    const float scale = grid_scale(grid, amax);
    for (int64_t i = first; i < end; ++i) x[i] = on_grid(grid, x[i], scale);
  }
}

// x = H x * scale in place, H the Hadamard matrix of dim rows in natural order (Sylvester's): (a, b) = (a + b, a - b)
// for values h apart, h = 1, 2, 4, .. dim / 2 in order, then the product with `scale`. REQUIRES dim a power of two.
inline void turn_by_hadamard(float* x, int64_t dim, float scale) {
  for (int64_t h = 1; h < dim; h *= 2) {
    for (int64_t first = 0; first < dim; first += 2 * h) {
      for (int64_t i = first; i < first + h; ++i) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < dim; ++i) x[i] *= scale;
}
inline float hadamard_scale(int64_t dim) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))); }

// What DeepSeek-V4 keeps of a row or entry, whose last `rotated` dimensions stay as they are, and of an index vector,
// which stays as it is where its size is no power of two (the authors' inference takes none). Inputs of both steps are
// rounded to bf16 first.
inline void round_cached_row(float* x, int64_t dim, int64_t rotated) {
  for (int64_t i = 0; i < dim - rotated; ++i) x[i] = round_to_bf16(x[i]);
  round_to_grid(kFp8Grid, x, dim - rotated);
}
// Without <bit>, whose count of bits gives 0 in device code [nvcc 13.0, seen on an H200].
constexpr bool rounds_index(int64_t dim) { return dim > 0 && (dim & (dim - 1)) == 0; }
inline void round_index_vector(float* x, int64_t dim) {
  if (!rounds_index(dim)) return;
  for (int64_t i = 0; i < dim; ++i) x[i] = round_to_bf16(x[i]);
  turn_by_hadamard(x, dim, hadamard_scale(dim));
  for (int64_t i = 0; i < dim; ++i) x[i] = round_to_bf16(x[i]);
  round_to_grid(kFp4Grid, x, dim);
}

}  // namespace ft
