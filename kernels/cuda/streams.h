// Launchers of mixed residual streams (kernels/ops/streams.h), the bits of the CPU kernels. A token's streams stand one
// after another in a row.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/ops/streams.h"

namespace ft::cuda {

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

}  // namespace ft::cuda
