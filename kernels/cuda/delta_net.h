// Launchers of the gated delta net (kernels/ops/delta_net.h), with the bits of the CPU kernels in decode steps and in
// prompts alike: tokens go in order, heads and columns of the state side by side.
//
// A sequence's state of a layer is DeltaNetShape::layer_floats as on the host, but for the convolution's history, which
// is a ring of `taps` rows: the input of position p is row p mod taps, so that a step's newest input goes over none
// that the step reads. At position 0 nothing of it is read.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/ops/delta_net.h"
#include "kernels/ops/rows.h"

namespace ft::cuda {

// Consecutive tokens of one sequence.
struct SequenceRun {
  int64_t position = 0;  // of the first token
  int32_t token = 0;     // its row
  int32_t count = 0;
  int32_t sequence = 0;
  int32_t reserved = 0;
};

struct DeltaNetArgs {
  DeltaNetShape shape;
  const float* x = nullptr;  // (tokens, channels), before the convolution: stays as it is
  int64_t x_stride = 0;
  const float* gate = nullptr;  // (tokens, value_width)
  int64_t gate_stride = 0;
  const float* write = nullptr;  // (tokens, value_heads), before delta_gates
  const float* decay = nullptr;
  int64_t write_stride = 0;          // of both
  const float* conv = nullptr;       // (taps, channels)
  const float* decay_log = nullptr;  // (value_heads)
  const float* decay_bias = nullptr;
  const float* norm = nullptr;  // (value_dim)
  float norm_eps = 0;
  GateKind gate_kind = GateKind::kSilu;
  float* state = nullptr;       // of the layer in sequence 0
  int64_t sequence_floats = 0;  // from a sequence's state to the next one's
  // Runs in device memory, all of different sequences, with `tokens` tokens in all; or null: every token is a run of
  // its own, at position[token] of sequence[token].
  const SequenceRun* runs = nullptr;
  int run_count = 0;
  int64_t tokens = 0;
  const int32_t* sequence = nullptr;
  const int64_t* position = nullptr;
  float* out = nullptr;  // (tokens, value_width): normed and gated
  int64_t out_stride = 0;
  // (tokens, 2 * key_width) that is overwritten, REQUIRED with runs: queries and keys convolved and normed, which
  // several blocks read.
  float* ready = nullptr;
};

// Without runs a decode step: one launch where the device has clusters and value_dim <= 256, else two. Positions,
// sequences, weights and the state are read before the kernel before this one in the stream has ended (launch.cuh).
// With runs: four launches in order.
void delta_net(const DeltaNetArgs& args, StreamHandle stream);

}  // namespace ft::cuda
