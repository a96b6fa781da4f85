// Launchers of residual streams (kernels/ops/streams.h), the bits of the CPU kernels. A token's streams stand one after
// another in a row.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/ops/streams.h"

namespace ft::cuda {

// ---- mixed streams

// to = the sum of read[p] * stream p, in order; two launches. The factors of what writes are kept.
struct StreamsReadArgs {
  const float* x = nullptr;  // (tokens, x_stride): streams * width
  int64_t x_stride = 0;
  int64_t tokens = 0;
  int streams = 0;
  int64_t width = 0;
  const float* fn = nullptr;  // (stream_logit_count(streams), streams * width); of what only reads (streams, ...)
  const float* scale = nullptr;
  const float* base = nullptr;
  bool writes = true;
  int rounds = 0;
  float eps = 0;
  float norm_eps = 0;
  float* logits = nullptr;  // (tokens, logits_stride): products, then the sum of squares
  int64_t logits_stride = 0;
  float* factors = nullptr;  // (tokens, factors_stride): read, write, mix
  int64_t factors_stride = 0;
  float* to = nullptr;  // (tokens, to_stride)
  int64_t to_stride = 0;
};
void streams_read(const StreamsReadArgs& args, StreamHandle stream);

// Every stream q = write[q] * from + the sum of mix[q][p] * stream p, in order.
struct StreamsWriteArgs {
  float* x = nullptr;  // (tokens, x_stride)
  int64_t x_stride = 0;
  int64_t tokens = 0;
  int streams = 0;
  int64_t width = 0;
  const float* factors = nullptr;  // as streams_read left them
  int64_t factors_stride = 0;
  const float* from = nullptr;  // (tokens, from_stride)
  int64_t from_stride = 0;
};
void streams_write(const StreamsWriteArgs& args, StreamHandle stream);

// ---- gated streams: what is beside the products of a site

// y = rmsnorm of each stream by itself, with its part of the weight.
struct NormStreamsArgs {
  const float* x = nullptr;  // (tokens, x_stride): streams * width
  int64_t x_stride = 0;
  int64_t tokens = 0;
  int streams = 0;
  int64_t width = 0;
  const float* w = nullptr;  // (streams * width)
  float eps = 0;
  float* y = nullptr;  // (tokens, y_stride)
  int64_t y_stride = 0;
};
void norm_streams(const NormStreamsArgs& args, StreamHandle stream);

// squash of two sets of rows, in place: the bottleneck, and what a site writes with.
struct SquashRows {
  float* x = nullptr;  // (tokens, stride)
  int64_t stride = 0;
  int64_t cols = 0;  // 0: there are none
  float scale = 1;
  GateKind kind = GateKind::kSilu;
  float factor = 1;
};
struct SquashStreamsArgs {
  SquashRows low, write;
  int64_t tokens = 0;
};
void squash_streams(const SquashStreamsArgs& args, StreamHandle stream);

// to = the mean over streams of normed * sigmoid(gate), in order.
struct GatedReadArgs {
  const float* normed = nullptr;  // (tokens, normed_stride): streams * width
  int64_t normed_stride = 0;
  const float* gate = nullptr;  // (tokens, gate_stride): likewise
  int64_t gate_stride = 0;
  int64_t tokens = 0;
  int streams = 0;
  int64_t width = 0;
  float* to = nullptr;  // (tokens, to_stride)
  int64_t to_stride = 0;
};
void gated_streams_read(const GatedReadArgs& args, StreamHandle stream);

// Every stream q = stream q + factors[q] * from. Arguments as above; factors: (tokens, factors_stride).
void gated_streams_write(const StreamsWriteArgs& args, StreamHandle stream);

}  // namespace ft::cuda
