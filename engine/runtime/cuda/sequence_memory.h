// What a CUDA device keeps of every open sequence, keys, values and recurrent states, and what attention needs beside
// them: rotation tables and scratch. As KvCache and StateCache of the host device, in device memory.
//
// Keys and values: [kv layer][sequence][row][keys then values][kv head][head_dim]; a layer with a window keeps its last
// positions in a ring (kv_positions). States: [sequence][layer][floats of a layer]; what a layer keeps there is its
// operation's business. Thread rule: one thread.
#pragma once

#include <span>
#include <vector>

#include "engine/runtime/backend_parts.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"

namespace ft {

class SequenceMemory {
 public:
  // Uploads the rotation tables on `stream`, which has to be synchronized before they are used.
  SequenceMemory(const BackendParts& parts, int max_batch, const cuda::Stream& stream);

  cuda::KvView kv(int kv_layer) const;
  // For attention_decode in a layer.
  std::byte* scratch(int kv_layer) const { return scratch_.data() + layers_[static_cast<size_t>(kv_layer)].scratch; }

  struct Rotation {
    const float* cos = nullptr;  // (positions, half)
    const float* sin = nullptr;
    int64_t half = 0;
  };
  const Rotation& rotation(int table) const { return rotations_[static_cast<size_t>(table)]; }

  // Of sequence 0; the others' follow at state_floats().
  float* state(int state_layer, int64_t layer_floats) const {
    return state_part(state_layer * layer_floats, layer_floats);
  }
  float* state_part(int64_t begin, int64_t floats) const;
  int64_t state_floats() const { return state_floats_; }

  // The first `length` positions of a sequence of another memory of the same model, of rings what both hold; of states,
  // which have no positions, all.
  void copy_sequence(int sequence, const SequenceMemory& from, int from_sequence, int64_t length,
                     const cuda::Stream& stream);
  // A sequence's states, all of them; until the stream is idle.
  void read_state(int sequence, std::span<float> state, const cuda::Stream& stream) const;
  void write_state(int sequence, std::span<const float> state, const cuda::Stream& stream);

 private:
  struct Layer {
    KvLayer shape;
    int64_t rows = 0;   // of one sequence
    int64_t begin = 0;  // elements
    int64_t scratch = 0;
  };
  bf16* rows_of(const Layer& layer, int sequence) const {
    return kv_.as<bf16>() + layer.begin + sequence * layer.rows * layer.shape.elements();
  }
  void place_scratch(const BackendParts& parts, int max_batch, const cuda::Stream& stream);
  void upload_rotations(const BackendParts& parts, const cuda::Stream& stream);

  int sequences_ = 0;
  int64_t positions_ = 0, state_floats_ = 0;
  std::vector<Layer> layers_;
  std::vector<RopeTable> tables_;  // what is being uploaded
  std::vector<Rotation> rotations_;
  cuda::DeviceBuffer kv_, states_, scratch_, rotation_memory_;
};

}  // namespace ft
