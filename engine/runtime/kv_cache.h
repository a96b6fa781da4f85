// Keys and values of every open sequence: [kv layer][sequence][position][keys then values][kv head][head_dim].
//
// One position's keys and values are neighbours, so appending a token writes one stretch; a sequence of one layer is
// contiguous, so attention walks it with a fixed stride. Serve mode keeps bf16 (append rounds to nearest even), the
// reference mode fp32. Lengths are the engine's business: this is storage.
// Thread rule: different (sequence, position, head) may be written by different threads.
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
  int64_t positions = 0;  // of one sequence: max_context
};

template <class Element>  // bf16 or float
class KvCache {
 public:
  KvCache() = default;
  explicit KvCache(const KvShape& shape, WorkerPool* pool = nullptr);

  int64_t stride(int kv_layer) const { return layer(kv_layer).elements(); }  // elements between positions
  // Position 0 of one head; position t at + t * stride(kv_layer). (head_dim) elements each.
  const Element* keys(int kv_layer, int sequence, int64_t kv_head) const;
  const Element* values(int kv_layer, int sequence, int64_t kv_head) const;
  // key, value: (head_dim) fp32.
  void append(int kv_layer, int sequence, int64_t position, int64_t kv_head, const float* key, const float* value);
  // The first `length` positions of a sequence of another cache. REQUIRES equal layers.
  void copy_sequence(int sequence, const KvCache& from, int from_sequence, int64_t length);

 private:
  const KvLayer& layer(int kv_layer) const { return shape_.layers[static_cast<size_t>(kv_layer)]; }
  int64_t offset(int kv_layer, int sequence) const;
  KvShape shape_;
  std::vector<int64_t> begins_;  // of each layer, elements
  HostBuffer memory_;
};

extern template class KvCache<bf16>;
extern template class KvCache<float>;

}  // namespace ft
