// Rows of n-gram tables as inputs of a CUDA device's steps: the host looks them up before the step begins, from
// wherever the tables are, and the device reads them from pinned memory. Nothing of a table is copied to the device.
//
// The last tokens of every sequence, which n-grams reach back to, stay with the host. Thread rule: one thread.
#pragma once

#include <span>
#include <vector>

#include "engine/runtime/backend_parts.h"
#include "engine/runtime/state_cache.h"
#include "kernels/cuda/device.h"

namespace ft {

class NgramInputs {
 public:
  // Allocates nothing for a model without tables. Runs the family's forward pass once, silently.
  explicit NgramInputs(const BackendParts& parts);

  // A step's rows of all tables; the tokens are remembered, so it is called once a step, before it is launched and when
  // the one before has ended. Allocates nothing.
  void fill(const StepTokens& tokens);

  // (tokens, width) of a table, without gaps: host memory and what the device reads.
  const float* host_rows(RowTableId table) const { return rows_.as_host<float>() + begin(table); }
  const float* device_rows(RowTableId table) const { return rows_.as_device<float>() + begin(table); }
  int64_t width() const { return width_; }

  void copy_sequence(int sequence, const NgramInputs& from, int from_sequence);
  // A sequence's tokens to and from their places in its recurrent state (ModelGeometry::state_floats), of which the
  // device has the rest.
  void read_state(int sequence, std::span<float> state) const;
  void write_state(int sequence, std::span<const float> state);

 private:
  int64_t begin(RowTableId table) const;

  BackendParts parts_;
  int64_t width_ = 0;
  std::vector<NgramEmbedSpec> tables_;    // their state is in tokens_
  std::vector<int64_t> begins_in_state_;  // of each table
  StateCache tokens_;
  cuda::PinnedBuffer rows_;  // (tables, max_tokens, width)
};

}  // namespace ft
