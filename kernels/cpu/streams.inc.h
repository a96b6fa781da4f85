// Bodies of residual streams (kernels/ops/streams.h). Include after a vector vocabulary.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/for_lanes.inc.h"
#include "kernels/ops/streams.h"

namespace ft::FT_ISA_NAMESPACE {

FT_KERNEL_BODY void dot_rows_body(const DotRowsArgs& args) {
  constexpr int kRows = 4;  // sums at a time: x is loaded once for them, and no fma waits for the one before
  int64_t r = 0;
  for (; r + kRows <= args.rows; r += kRows) {
    const float* w = args.w + r * args.cols;
    F32x16 sums[kRows] = {zero(), zero(), zero(), zero()};
    for_lanes(
        args.cols,
        [&](int64_t i) {
          const F32x16 x = load(args.x + i);
          for (int j = 0; j < kRows; ++j) sums[j] = fma(load(w + j * args.cols + i), x, sums[j]);
        },
        [&](int64_t i, int n) {
          const F32x16 x = load_n(args.x + i, n);
          for (int j = 0; j < kRows; ++j) sums[j] = fma(load_n(w + j * args.cols + i, n), x, sums[j]);
        });
    for (int j = 0; j < kRows; ++j) args.y[r + j] = tree_sum(sums[j]);
  }
  for (; r < args.rows; ++r) {
    const float* w = args.w + r * args.cols;
    F32x16 sum = zero();
    for_lanes(
        args.cols, [&](int64_t i) { sum = fma(load(w + i), load(args.x + i), sum); },
        [&](int64_t i, int n) { sum = fma(load_n(w + i, n), load_n(args.x + i, n), sum); });
    args.y[r] = tree_sum(sum);
  }
}

static inline void exp_in_place(float* x, int64_t count) {
  for_lanes(
      count, [&](int64_t i) { store(x + i, exp(load(x + i))); },
      [&](int64_t i, int n) { store_n(x + i, exp(load_n(x + i, n)), n); });
}

static inline void scale_to_one(float* c, int64_t count, int64_t stride, float eps) {
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += c[i * stride];
  sum += eps;
  for (int64_t i = 0; i < count; ++i) c[i * stride] /= sum;
}

static inline void sinkhorn(float* c, int64_t streams, int64_t rounds, float eps) {
  for (int64_t p = 0; p < streams; ++p) {
    float* row = c + p * streams;
    float largest = row[0], sum = 0.0f;
    for (int64_t q = 1; q < streams; ++q) largest = row[q] > largest ? row[q] : largest;
    for (int64_t q = 0; q < streams; ++q) row[q] -= largest;
    exp_in_place(row, streams);
    for (int64_t q = 0; q < streams; ++q) sum += row[q];
    for (int64_t q = 0; q < streams; ++q) row[q] = row[q] / sum + eps;
  }
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t p = 0; p < streams && round > 0; ++p) scale_to_one(c + p * streams, streams, 1, eps);
    for (int64_t q = 0; q < streams; ++q) scale_to_one(c + q, streams, streams, eps);
  }
}

FT_KERNEL_BODY void stream_factors_body(const StreamFactorsArgs& args) {
  const int64_t streams = args.streams;
  const float r = 1.0f / __builtin_sqrtf(args.squares / static_cast<float>(args.cols) + args.norm_eps);
  const auto logit = [&](int64_t i, int part) { return args.logits[i] * r * args.scale[part] + args.base[i]; };
  float e[2 * kMaxStreams];
  for (int64_t i = 0; i < streams; ++i) e[i] = -logit(i, 0);
  for (int64_t i = streams; i < 2 * streams && args.mix != nullptr; ++i) e[i] = -logit(i, 1);
  exp_in_place(e, args.mix != nullptr ? 2 * streams : streams);
  for (int64_t i = 0; i < streams; ++i) args.read[i] = 1.0f / (1.0f + e[i]) + args.eps;
  if (args.mix == nullptr) return;
  for (int64_t i = 0; i < streams; ++i) args.write[i] = 2.0f * (1.0f / (1.0f + e[streams + i]));
  float c[kMaxStreams * kMaxStreams];
  for (int64_t i = 0; i < streams * streams; ++i) c[i] = logit(2 * streams + i, 2);
  sinkhorn(c, streams, args.rounds, args.eps);
  for (int64_t p = 0; p < streams; ++p) {
    for (int64_t q = 0; q < streams; ++q) args.mix[q * streams + p] = c[p * streams + q];
  }
}

FT_KERNEL_BODY void squash_body(const SquashArgs& args) {
  const F32x16 one = broadcast(1.0f), scale = broadcast(args.scale), factor = broadcast(args.factor);
  // 0 - g has the other sign than -g for a zero only, and exp gives 1 for both.
  const auto squashed = [&](F32x16 x) {
    const F32x16 g = mul(x, scale);
    return mul(div(args.kind == GateKind::kSilu ? g : one, add(one, exp(sub(zero(), g)))), factor);
  };
  for_lanes(
      args.count, [&](int64_t i) { store(args.x + i, squashed(load(args.x + i))); },
      [&](int64_t i, int n) { store_n(args.x + i, squashed(load_n(args.x + i, n)), n); });
}

FT_KERNEL_BODY void stream_gates_body(const StreamGatesArgs& args) {
  for (int64_t i = 0; i < args.streams; ++i) {
    const float s = args.x[i] / args.root, size = __builtin_fabsf(s);
    const float root = __builtin_sqrtf(size < kStreamGateFloor ? kStreamGateFloor : size);  // passes NaN on
    args.x[i] = s == 0.0f ? 0.0f : s < 0.0f ? root : -root;
  }
  exp_in_place(args.x, args.streams);
  for (int64_t i = 0; i < args.streams; ++i) args.x[i] = 1.0f / (1.0f + args.x[i]);
}

void squash(const SquashArgs& args) {
  const FlushScope flush;
  squash_body(args);
}
void stream_gates(const StreamGatesArgs& args) {
  const FlushScope flush;
  stream_gates_body(args);
}
void dot_rows(const DotRowsArgs& args) {
  const FlushScope flush;
  dot_rows_body(args);
}
void stream_factors(const StreamFactorsArgs& args) {
  const FlushScope flush;
  stream_factors_body(args);
}

}  // namespace ft::FT_ISA_NAMESPACE
