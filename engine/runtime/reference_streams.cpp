// Residual streams and grouped products in reference numerics.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/runtime/reference_backend.h"
#include "engine/runtime/reference_math.h"
#include "kernels/base/error.h"
#include "kernels/ops/streams.h"

namespace ft {

using reference_math::decode;
using reference_math::dot;
using reference_math::split;

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// count values, `stride` apart, divided by (their sum + eps).
void scale_to_one(double* c, int64_t count, int64_t stride, double eps) {
  double sum = eps;
  for (int64_t i = 0; i < count; ++i) sum += c[i * stride];
  for (int64_t i = 0; i < count; ++i) c[i * stride] /= sum;
}

// c[p][q] of logits: kernels/ops/streams.h.
void sinkhorn(const StreamsSpec& spec, double* c) {
  const int64_t streams = spec.streams;
  const auto eps = static_cast<double>(spec.eps);
  for (double* row = c; row < c + streams * streams; row += streams) {
    const double largest = *std::max_element(row, row + streams);
    std::transform(row, row + streams, row, [&](double value) { return std::exp(value - largest); });
    scale_to_one(row, streams, 1, 0);
    std::transform(row, row + streams, row, [&](double value) { return value + eps; });
  }
  for (int round = 0; round < spec.rounds; ++round) {
    for (int64_t p = 0; p < streams && round > 0; ++p) scale_to_one(c + p * streams, streams, 1, eps);
    for (int64_t q = 0; q < streams; ++q) scale_to_one(c + q, streams, streams, eps);
  }
}

}  // namespace

void ReferenceBackend::stream_factors(const StreamsSpec& spec, int64_t token) {
  const RowBuffer<float>& residual = buffers_[Slot::kResidual];
  const int64_t streams = spec.streams, cols = residual.width();
  const float* x = residual.row(token);
  const std::span<const float> fn = parts_.weights[spec.fn], scale = parts_.weights[spec.scale];
  const std::span<const float> base = parts_.weights[spec.base];
  const double mean = dot(x, x, cols) / static_cast<double>(cols);
  const double r = 1.0 / std::sqrt(mean + static_cast<double>(spec.norm_eps));
  const auto logit = [&](int64_t row, size_t part) {
    return dot(fn.data() + row * cols, x, cols) * r * static_cast<double>(scale[part]) +
           static_cast<double>(base[static_cast<size_t>(row)]);
  };
  float* factors = buffers_[Slot::kStreamFactors].row(token);
  for (int64_t i = 0; i < streams; ++i) {
    factors[i] = static_cast<float>(sigmoid(logit(i, 0)) + static_cast<double>(spec.eps));
  }
  if (!spec.writes) return;
  for (int64_t i = streams; i < 2 * streams; ++i) factors[i] = static_cast<float>(2 * sigmoid(logit(i, 1)));
  std::array<double, kMaxStreams * kMaxStreams> c{};
  for (int64_t i = 0; i < streams * streams; ++i) c[static_cast<size_t>(i)] = logit(2 * streams + i, 2);
  sinkhorn(spec, c.data());
  for (int64_t p = 0; p < streams; ++p) {
    for (int64_t q = 0; q < streams; ++q) {
      factors[(2 + q) * streams + p] = static_cast<float>(c[static_cast<size_t>(p * streams + q)]);
    }
  }
}

void ReferenceBackend::streams_read(const StreamsSpec& spec, Slot to) {
  FT_CHECK(spec.streams <= kMaxStreams);
  if (spec.kind == StreamsKind::kGated) {
    read_gated_streams(spec, to);
    return;
  }
  split(parts_.pool, tokens_->count(), [&](int64_t token, int) {
    stream_factors(spec, token);
    const float* read = buffers_[Slot::kStreamFactors].row(token);
    const float* streams = buffers_[Slot::kResidual].row(token);
    const int64_t width = buffers_[Slot::kResidual].width() / spec.streams;
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (int p = 0; p < spec.streams; ++p) {
        sum += static_cast<double>(read[p]) * static_cast<double>(streams[p * width + i]);
      }
      buffers_[to].row(token)[i] = static_cast<float>(sum);
    }
  });
}

void ReferenceBackend::streams_write(const StreamsSpec& spec, Slot from) {
  if (spec.kind == StreamsKind::kGated) {
    write_gated_streams(spec, from);
    return;
  }
  const int64_t count = spec.streams, width = buffers_[Slot::kResidual].width() / count;
  split(parts_.pool, tokens_->count(), [&](int64_t token, int) {
    const float* write = buffers_[Slot::kStreamFactors].row(token) + count;
    const float* mix = write + count;
    float* streams = buffers_[Slot::kResidual].row(token);
    for (int64_t i = 0; i < width; ++i) {
      std::array<double, kMaxStreams> fresh{};
      for (int64_t q = 0; q < count; ++q) {
        double sum = static_cast<double>(write[q]) * static_cast<double>(buffers_[from].row(token)[i]);
        for (int64_t p = 0; p < count; ++p) {
          sum += static_cast<double>(mix[q * count + p]) * static_cast<double>(streams[p * width + i]);
        }
        fresh[static_cast<size_t>(q)] = sum;
      }
      for (int64_t q = 0; q < count; ++q) streams[q * width + i] = static_cast<float>(fresh[static_cast<size_t>(q)]);
    }
  });
}

void ReferenceBackend::grouped_linear(Slot from, MatrixId weight, int groups, Slot to) {
  const PackedMatrix& matrix = parts_.weights[weight];
  const int64_t cols = matrix.layout.cols, rows = matrix.layout.rows / groups;
  split(parts_.pool, matrix.layout.rows, [&](int64_t row, int worker) {
    float* w = decoded(worker, 0);
    decode(matrix, row, w);
    for (int64_t token = 0; token < tokens_->count(); ++token) {
      const float* x = buffers_[from].row(token) + row / rows * cols;
      buffers_[to].row(token)[row] = static_cast<float>(dot(w, x, cols));
    }
  });
}

void ReferenceBackend::compressed_attention(const CompressedAttentionSpec& spec) {
  compressed_.run(spec, *tokens_, buffers_, ropes_[static_cast<size_t>(spec.rope)]);
}

}  // namespace ft
