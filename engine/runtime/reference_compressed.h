// The arithmetic of attention to compressed entries in reference numerics: sums in double, std::exp, nothing rounded
// but for what the authors' arithmetic puts on a grid.
#pragma once

#include <algorithm>
#include <cmath>

#include "engine/runtime/compressed_attention.h"
#include "engine/runtime/reference_math.h"
#include "kernels/ops/cache_grid.h"

namespace ft {

class ReferenceCompressedMath {
 public:
  using Element = float;
  struct Guard {
    Guard() {}  // nothing to hold
  };

  ReferenceCompressedMath() = default;
  // attended: rows of one token, at most.
  ReferenceCompressedMath(int threads, int64_t attended, int64_t widest_dim, DeepseekArithmetic arithmetic)
      : sums_(threads, attended + widest_dim),
        attended_(attended),
        authors_(arithmetic == DeepseekArithmetic::kAuthors) {}

  static float store(float x) { return x; }
  static void round_query(float*, int64_t) {}
  void round_row(float* x, int64_t dim, int64_t rotated) const {
    if (authors_) round_cached_row(x, dim, rotated);
  }
  void round_index(float* x, int64_t dim) const {
    if (authors_) round_index_vector(x, dim);
  }
  static void norm(float* x, int64_t rows, int64_t dim, float eps) {
    for (int64_t row = 0; row < rows; ++row, x += dim) reference_math::rmsnorm_row(x, nullptr, eps, dim, x);
  }
  static void norm_entry(float* x, const float* weight, int64_t dim, float eps) {
    reference_math::rmsnorm_row(x, weight, eps, dim, x);
  }
  static void rotate(const RotatePairsArgs& args) {
    for (int64_t row = 0; row < args.rows; ++row) {
      float* x = args.x + (row + 1) * args.dim - 2 * args.half;
      for (int64_t j = 0; j < args.half; ++j, x += 2) {
        const float a = x[0], b = x[1], sin = args.inverse ? -args.sin[j] : args.sin[j];
        x[0] = a * args.cos[j] - b * sin;
        x[1] = b * args.cos[j] + a * sin;
      }
    }
  }
  static void compress(const CompressArgs& args) {
    for (int64_t i = 0; i < args.cols; ++i) {
      const auto logit = [&](int64_t s) { return static_cast<double>(args.logit[s][i] + args.bias[s][i]); };
      double largest = logit(0), sum = 0, out = 0;
      for (int64_t s = 1; s < args.slots; ++s) largest = std::max(largest, logit(s));
      for (int64_t s = 0; s < args.slots; ++s) {
        const double e = std::exp(logit(s) - largest);
        sum += e;
        out += e * static_cast<double>(args.value[s][i]);
      }
      args.out[i] = static_cast<float>(out / sum);
    }
  }
  static void score(const float* q, const float* weight, int64_t heads, int64_t dim, const float* keys, int64_t count,
                    float* scores) {
    for (int64_t entry = 0; entry < count; ++entry) {
      double sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        sum +=
            static_cast<double>(weight[h]) * std::max(0.0, reference_math::dot(q + h * dim, keys + entry * dim, dim));
      }
      scores[entry] = static_cast<float>(sum);
    }
  }
  void attend(const Attended<float>& args, int worker) const {
    double* weights = sums_.row(worker);
    double* mixed = weights + attended_;
    for (int64_t h = 0; h < args.heads; ++h) {
      const auto sink = static_cast<double>(args.sinks[h]);
      double largest = sink, sum = 0;
      for (int64_t t = 0; t < args.count; ++t) {
        weights[t] = reference_math::dot(args.q + h * args.dim, args.rows + t * args.dim, args.dim) *
                     static_cast<double>(args.scale);
        largest = std::max(largest, weights[t]);
      }
      sum = std::exp(sink - largest);
      std::fill_n(mixed, args.dim, 0.0);
      for (int64_t t = 0; t < args.count; ++t) {
        const double e = std::exp(weights[t] - largest);
        sum += e;
        for (int64_t i = 0; i < args.dim; ++i) mixed[i] += e * static_cast<double>(args.rows[t * args.dim + i]);
      }
      for (int64_t i = 0; i < args.dim; ++i) args.out[h * args.dim + i] = static_cast<float>(mixed[i] / sum);
    }
  }

 private:
  RowBuffer<double> sums_;  // (threads) weights of a token's rows, then a head's output
  int64_t attended_ = 0;
  bool authors_ = false;
};

}  // namespace ft
