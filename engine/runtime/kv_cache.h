// Keys and values of every open sequence: [kv layer][sequence][position][keys then values][kv head][head_dim].
//
// One position's keys and values are neighbours, so appending a token writes one stretch; a sequence of one layer is
// contiguous, so attention walks it with a fixed stride. A layer with a window keeps its last positions only, in a ring
// (kv_positions of engine/model/geometry.h): position p is at row p mod ring. Serve mode keeps bf16 (append rounds to
// nearest even), the reference mode fp32. Lengths are the engine's business: this is storage. Thread rule: different
// (sequence, position, head) may be written by different threads.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/geometry.h"
#include "kernels/base/bf16.h"
#include "kernels/host/host_memory.h"

namespace ft {

struct KvShape {
  std::vector<KvLayer> layers;
  int sequences = 0;
  int64_t positions = 0;    // of one sequence: max_context
  int64_t step_tokens = 0;  // that one step appends, at most
};

template <class Element>  // bf16 or float
class KvCache {
 public:
  KvCache() = default;
  explicit KvCache(const KvShape& shape, WorkerPool* pool = nullptr);

  int64_t stride(int kv_layer) const { return layer(kv_layer).elements(); }  // elements between positions
  // Rows that a layer's positions go round in, a multiple of kAttentionSplit; 0: every position has a row of its own.
  int64_t ring(int kv_layer) const {
    const int64_t rows = rows_[static_cast<size_t>(kv_layer)];
    return rows < shape_.positions ? rows : 0;
  }
  // Row 0 of one head; row t at + t * stride(kv_layer). (head_dim) elements each.
  const Element* keys(int kv_layer, int sequence, int64_t kv_head) const;
  const Element* values(int kv_layer, int sequence, int64_t kv_head) const;
  // key, value: (head_dim) fp32.
  void append(int kv_layer, int sequence, int64_t position, int64_t kv_head, const float* key, const float* value);
  // The first `length` positions of a sequence of another cache, of rings what both hold. REQUIRES equal layers.
  void copy_sequence(int sequence, const KvCache& from, int from_sequence, int64_t length);

 private:
  const KvLayer& layer(int kv_layer) const { return shape_.layers[static_cast<size_t>(kv_layer)]; }
  int64_t offset(int kv_layer, int sequence) const;
  KvShape shape_;
  std::vector<int64_t> rows_;    // of each layer and sequence
  std::vector<int64_t> begins_;  // of each layer, elements
  HostBuffer memory_;
};

extern template class KvCache<bf16>;
extern template class KvCache<float>;

}  // namespace ft
