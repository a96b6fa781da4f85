// Parallel residual streams (hyper-connections): a token has several rows instead of one, a site reads a weighted sum
// of them and writes its output back to each. Mixed streams (manifold-constrained) write on top of a mix of the old
// ones, gated streams on top of the old ones themselves. What is particular about them; the sums over streams are
// `merge` of kernels/ops/rows.h, whose rules (16 lanes, tree, flushed denormals, NaN, threads) hold here too. Source:
// Hugging Face transformers 5.17, models/deepseek_v4 and models/qwen4_exp.
#pragma once

#include <cstdint>

#include "kernels/ops/rows.h"

namespace ft {

inline constexpr int64_t kMaxStreams = 8;
constexpr int64_t stream_logit_count(int64_t streams) { return 2 * streams + streams * streams; }

// y[r] = the sum over lanes of fma(w[r][i], x[i], lane): fp32 throughout. w may be x.
struct DotRowsArgs {
  const float* x = nullptr;  // (cols)
  const float* w = nullptr;  // (rows, cols) without gaps
  int64_t rows = 0;
  int64_t cols = 0;
  float* y = nullptr;  // (rows)
};
using DotRowsFn = void (*)(const DotRowsArgs&);

// The factors of one token at one site, S streams. r = 1 / sqrt(squares / cols + norm_eps); a[i] = (logits[i] * r) *
// scale + base[i], scale being scale[0] for the first S, scale[1] for the next S, scale[2] for the rest.
//   read[i] = 1 / (1 + exp(-a[i])) + eps                 write[i] = 2 * (1 / (1 + exp(-a[S + i])))
//   mix: C[p][q] = a[2 S + p S + q], from stream p into stream q. Of each row the softmax: e = exp(C - largest), sum in
//   order of q from +0, C = e / sum + eps. Then columns: sum in order of p from +0, C = C / (sum + eps); then rounds -
//   1 times the rows likewise, and the columns again.
// Without write and mix only read: logits, scale and base are S, 1 and S values then.
struct StreamFactorsArgs {
  const float* logits = nullptr;  // (stream_logit_count(streams)) products with the flattened streams
  float squares = 0;              // the streams' sum of squares, as dot_rows makes it
  int64_t cols = 0;               // values of all streams
  float norm_eps = 0;
  const float* scale = nullptr;
  const float* base = nullptr;
  int64_t streams = 0;  // 1 .. kMaxStreams
  int64_t rounds = 0;   // at least 1
  float eps = 0;
  float* read = nullptr;   // (streams)
  float* write = nullptr;  // (streams) or null, as mix
  float* mix = nullptr;    // (streams, streams), of the stream that is written to first: mix[q][p] = C[p][q]
};
using StreamFactorsFn = void (*)(const StreamFactorsArgs&);

// x[i] = act(x[i] * scale) * factor, in place; act is silu or sigmoid as in GateArgs.
struct SquashArgs {
  float* x = nullptr;
  int64_t count = 0;
  float scale = 1;
  GateKind kind = GateKind::kSilu;
  float factor = 1;
};
using SquashFn = void (*)(const SquashArgs&);

// How much of a value each stream takes, from the products of its key and query, in place: s = x[i] / root;
// a = sqrt(max(|s|, kStreamGateFloor)) with the sign of s, +0 where s is 0; x[i] = 1 / (1 + exp(-a)).
inline constexpr float kStreamGateFloor = 1e-6f;
struct StreamGatesArgs {
  float* x = nullptr;  // (streams)
  int64_t streams = 0;
  float root = 1;  // of a stream's width
};
using StreamGatesFn = void (*)(const StreamGatesArgs&);

}  // namespace ft
