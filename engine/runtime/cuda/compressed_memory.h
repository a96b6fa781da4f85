// What layers with compressed attention keep of every open sequence on a CUDA device (as CompressedCache of the host),
// and what a step's tokens need beside it: their new rows, and what a group of them attends to.
// Thread rule: one thread.
#pragma once

#include <vector>

#include "engine/runtime/backend_parts.h"
#include "kernels/cuda/compressed.h"
#include "kernels/cuda/device.h"

namespace ft {

class CompressedMemory {
 public:
  // Allocates nothing for a model without such layers.
  explicit CompressedMemory(const BackendParts& parts);

  cuda::CompressedLayerView layer(int index) const;
  bf16* fresh() const { return fresh_.as<bf16>(); }
  // Tokens that attend at a time.
  int64_t group_tokens() const { return group_tokens_; }
  cuda::CompressedGroup group(int64_t first, int64_t count) const;

  // What a sequence of another memory holds after `length` positions, which are all that it was fed.
  void copy_sequence(int sequence, const CompressedMemory& from, int from_sequence, int64_t length,
                     const cuda::Stream& stream);

 private:
  std::vector<CompressedLayer> layers_;
  int64_t positions_ = 0, group_tokens_ = 0, gathered_rows_ = 0, entries_ = 0;
  std::vector<int64_t> begins_, open_begins_;  // of each layer: elements, floats
  cuda::DeviceBuffer rows_, open_, fresh_, gathered_, scores_, chosen_, places_;
};

}  // namespace ft
