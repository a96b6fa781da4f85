// Launchers of n-gram embeddings: rows that the host looked up, and what they add to residual streams, the bits of the
// CPU kernels (kernels/ops/{rows,streams,delta_net}.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/delta_net.h"
#include "kernels/cuda/device.h"

namespace ft::cuda {

// Rows from pinned memory, which the host wrote before the step began: read before the kernel before this one in the
// stream has ended (launch.cuh), so that the link's latency is hidden behind it.
struct PinnedRowsArgs {
  const float* pinned = nullptr;  // (tokens, cols) without gaps; device address
  int64_t tokens = 0, cols = 0;
  float* to = nullptr;  // (tokens, to_stride)
  int64_t to_stride = 0;
};
void read_pinned_rows(const PinnedRowsArgs& args, StreamHandle stream);

// Per stream s of a token: u = stream_gates(rmsnorm(key) . rmsnorm(x)) * value, and x = x + (u + causal_conv of
// rmsnorm(u) over time), norms being over the stream by itself.
//
// What a sequence keeps is a ring of (taps - 1) * dilation rows, the normed u of position p in row p modulo their
// number. At position 0 nothing of it is read.
struct NgramAddArgs {
  float* x = nullptr;  // (tokens, x_stride): streams * width
  int64_t x_stride = 0;
  int64_t tokens = 0;
  int streams = 0;
  int64_t width = 0;
  float* key = nullptr;  // (tokens, key_stride): streams * width; becomes u
  int64_t key_stride = 0;
  const float* value = nullptr;  // (tokens, value_stride): width
  int64_t value_stride = 0;
  float* normed = nullptr;  // (tokens, normed_stride): streams * width, overwritten
  int64_t normed_stride = 0;
  const float* key_norm = nullptr;  // (streams * width)
  const float* query_norm = nullptr;
  const float* conv_norm = nullptr;
  float norm_eps = 0;
  const float* conv = nullptr;  // (taps, streams * width), the last tap is the token itself
  int taps = 0, dilation = 0;
  float* history = nullptr;     // of sequence 0
  int64_t sequence_floats = 0;  // from a sequence's history to the next one's
  // Runs in device memory, all of different sequences, with `tokens` tokens in all; or null: every token is a run of
  // its own, at position[token] of sequence[token].
  const SequenceRun* runs = nullptr;
  int run_count = 0;
  const int32_t* sequence = nullptr;
  const int64_t* position = nullptr;
};
// Two launches, three with runs.
void add_ngrams(const NgramAddArgs& args, StreamHandle stream);

}  // namespace ft::cuda
