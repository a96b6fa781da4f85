// The recurrent state of every open sequence, fp32 in all numerics: [sequence][layer][floats of a layer]. What a layer
// keeps there is its operation's business (DeltaNetShape); it clears it where a sequence begins, at position 0.
// Thread rule: different parts may be written by different threads.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/host/host_memory.h"

namespace ft {

class StateCache {
 public:
  StateCache() = default;
  // floats: of one sequence, all layers (ModelGeometry::state_floats); 0 for models without such layers.
  StateCache(int64_t floats, int sequences, WorkerPool* pool = nullptr)
      : floats_(floats), sequences_(sequences), memory_(floats * sequences * int64_t{sizeof(float)}, pool) {}

  // The part of a layer. REQUIRES layers of layer_floats each.
  float* layer(int sequence, int state_layer, int64_t layer_floats) {
    return part(sequence, state_layer * layer_floats, layer_floats);
  }
  float* part(int sequence, int64_t begin, int64_t floats);
  const float* part(int sequence, int64_t begin, int64_t floats) const;
  // All of it: a state has no positions, so it is the one after everything that was fed.
  void copy_sequence(int sequence, const StateCache& from, int from_sequence);
  // Likewise of one sequence. REQUIRES as many floats.
  void read(int sequence, std::span<float> state) const;
  void write(int sequence, std::span<const float> state);

 private:
  int64_t floats_ = 0;
  int sequences_ = 0;
  HostBuffer memory_;
};

}  // namespace ft
