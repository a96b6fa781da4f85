// What layers with compressed attention keep of every open sequence (CompressedLayer): a ring of the last rows, the
// entries, the index entries, and the tokens of windows that may still become part of an entry, in a ring too. Serve
// mode keeps bf16 rows and entries, reference mode fp32; open tokens are fp32 in both. Lengths are the engine's
// business: this is storage, and what a position's place held before does not matter.
// Thread rule: different rows may be written by different threads.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/geometry.h"
#include "kernels/base/bf16.h"
#include "kernels/host/host_memory.h"

namespace ft {

template <class Element>  // bf16 or float
class CompressedCache {
 public:
  CompressedCache() = default;
  // positions: of one sequence, max_context
  CompressedCache(const std::vector<CompressedLayer>& layers, int sequences, int64_t positions,
                  WorkerPool* pool = nullptr);

  const CompressedLayer& layer(int index) const { return layers_[static_cast<size_t>(index)]; }
  int64_t ring_rows(int index) const { return layer(index).ring_rows(positions_); }
  // (head_dim) the place of a position's row in the ring
  Element* row(int index, int sequence, int64_t position) const;
  // (head_dim) and (index_dim); entries follow each other without a gap.
  Element* entry(int index, int sequence, int64_t entry) const;
  Element* index_entry(int index, int sequence, int64_t entry) const;
  // (open_row_floats) of a position: values, logits (halves * head_dim each), then those of the index.
  float* open_row(int index, int sequence, int64_t position) const;

  // What a sequence of another cache holds after `length` positions, which are all that it was fed. REQUIRES equal
  // layers.
  void copy_sequence(int sequence, const CompressedCache& from, int from_sequence, int64_t length);

 private:
  Element* begin(int index, int sequence) const;

  std::vector<CompressedLayer> layers_;
  int sequences_ = 0;
  int64_t positions_ = 0;
  std::vector<int64_t> begins_, open_begins_;  // of each layer: elements, floats
  HostBuffer memory_, open_;
  Element* elements_ = nullptr;  // in memory_
  float* floats_ = nullptr;      // in open_
};

extern template class CompressedCache<bf16>;
extern template class CompressedCache<float>;

}  // namespace ft
