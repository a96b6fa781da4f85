// What layers with compressed attention keep of every open sequence on a CUDA device (as CompressedCache of the host),
// and what a step's tokens need beside it: their new rows, and what a group of them attends to. Likewise of an index of
// blocks of tokens, whose groups gather rows of the ordinary cache.
// Thread rule: one thread.
#pragma once

#include <vector>

#include "engine/runtime/backend_parts.h"
#include "kernels/cuda/compressed.h"
#include "kernels/cuda/device.h"

namespace ft {

class CompressedMemory {
 public:
  // Allocates nothing for a model without such layers. Uploads on `stream`, which has to be synchronized before use.
  CompressedMemory(const BackendParts& parts, const cuda::Stream& stream);

  cuda::CompressedLayerView layer(int index) const;
  bf16* fresh() const { return fresh_.as<bf16>(); }
  // Tokens that attend at a time.
  int64_t group_tokens() const { return group_tokens_; }
  cuda::CompressedGroup group(int64_t first, int64_t count) const;
  // The same where nothing is gathered: scores and choices take that memory, so that more tokens attend at a time.
  int64_t choosing_tokens() const { return choosing_tokens_; }
  cuda::CompressedGroup choosing_group(int64_t first, int64_t count) const;
  // Of an index of blocks, where all heads have one weight.
  float* index_weights() const { return index_weights_.as<float>(); }
  // Whether a token of that layer may ever have more blocks than it attends to.
  bool may_choose(int index) const {
    const CompressedLayer& shape = layers_[static_cast<size_t>(index)];
    return shape.entries(positions_) > shape.index_top_k;
  }

  // What a sequence of another memory holds after `length` positions, which are all that it was fed.
  void copy_sequence(int sequence, const CompressedMemory& from, int from_sequence, int64_t length,
                     const cuda::Stream& stream);

 private:
  void place_index_weights(const cuda::Stream& stream);

  std::vector<CompressedLayer> layers_;
  int64_t positions_ = 0, group_tokens_ = 0, choosing_tokens_ = 0, gathered_rows_ = 0, entries_ = 0;
  std::vector<int64_t> begins_, open_begins_;  // of each layer: elements, floats
  std::vector<float> weights_of_heads_;        // what is being uploaded
  cuda::DeviceBuffer rows_, open_, fresh_, gathered_, scores_, chosen_, places_, index_weights_;
};

}  // namespace ft
