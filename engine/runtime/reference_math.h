// The arithmetic of the reference backend's files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/formats/format.h"
#include "kernels/host/worker_pool.h"
#include "kernels/ops/glu.h"
#include "kernels/ops/rows.h"

namespace ft::reference_math {

// Eight sums, so that the compiler may use vectors without reordering what is written here.
inline double dot(const float* a, const float* b, int64_t count) {
  double sum[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      sum[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (; i < count; ++i) sum[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

inline void rmsnorm_row(const float* x, const float* w, float eps, int64_t cols, float* y) {
  const double scale = 1.0 / std::sqrt(dot(x, x, cols) / static_cast<double>(cols) + static_cast<double>(eps));
  for (int64_t i = 0; i < cols; ++i) y[i] = static_cast<float>(x[i] * scale * (w != nullptr ? w[i] : 1.0f));
}

// kernels/ops/glu.h with std::exp.
inline float glu_value(const Glu& how, float g, float u) {
  if (how.kind == GluKind::kSiluClamped || how.kind == GluKind::kOss) {
    g = std::min(g, how.limit);
    u = std::clamp(u, -how.limit, how.limit);
  }
  float s = g;
  if (how.kind == GluKind::kGeluTanh) s = kGeluTwiceScale * (g + kGeluCubic * g * g * g);
  if (how.kind == GluKind::kOss) {
    s = kOssAlpha * g;
    u += 1.0f;
  }
  return g / (1.0f + std::exp(-s)) * u;
}

inline float gated_value(GateKind kind, float x, float g) {
  return x * (kind == GateKind::kSilu ? g : 1.0f) / (1.0f + std::exp(-g));
}

// Half-split rotation of the first 2 * half dimensions.
inline void rotate_halves(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[j], b = x[j + half];
    x[j] = a * cos[j] - b * sin[j];
    x[j + half] = b * cos[j] + a * sin[j];
  }
}

inline void decode(const PackedMatrix& matrix, int64_t row, float* out) {
  format_info(matrix.layout.format).decode_row(matrix.layout, matrix.data, row, out);
  for (int64_t i = 0; i < matrix.layout.cols; ++i) out[i] *= matrix.global;
}

inline double bias_at(const PackedMatrix& matrix, int64_t row) {
  return matrix.bias != nullptr ? static_cast<double>(matrix.bias[row]) : 0.0;
}

// Calls f(index) for this worker's part of [0, count).
template <class F>
void split(WorkerPool& pool, int64_t count, F&& f) {
  pool.run([&](int worker, int workers) {
    const Range part = split_range(count, worker, workers);
    for (int64_t i = part.begin; i < part.end; ++i) f(i, worker);
  });
}

}  // namespace ft::reference_math
