// Keys and values of every open sequence: [kv layer][sequence][position][keys then values][kv head][head_dim].
//
// One position's keys and values are neighbours, so appending a token writes one stretch; a sequence of one layer is
// contiguous, so attention walks it with a fixed stride. Serve mode keeps bf16 (append rounds to nearest even), the
// reference mode fp32. Lengths are the engine's business: this is storage.
// Thread rule: different (sequence, position, head) may be written by different threads.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"
#include "kernels/host/host_memory.h"

namespace ft {

struct KvShape {
  int kv_layers = 0;
  int sequences = 0;
  int64_t positions = 0;  // of one sequence: max_context
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

template <class Element>  // bf16 or float
class KvCache {
 public:
  KvCache() = default;
  explicit KvCache(const KvShape& shape, WorkerPool* pool = nullptr);

  int64_t stride() const { return 2 * shape_.kv_heads * shape_.head_dim; }  // elements between positions
  // Position 0 of one head; position t at + t * stride(). (head_dim) elements each.
  const Element* keys(int kv_layer, int sequence, int64_t kv_head) const;
  const Element* values(int kv_layer, int sequence, int64_t kv_head) const;
  // key, value: (head_dim) fp32.
  void append(int kv_layer, int sequence, int64_t position, int64_t kv_head, const float* key, const float* value);
  // The first `length` positions of a sequence of another cache. REQUIRES equal layers, heads and head_dim.
  void copy_sequence(int sequence, const KvCache& from, int from_sequence, int64_t length);

 private:
  int64_t offset(int kv_layer, int sequence) const;
  KvShape shape_;
  HostBuffer memory_;
};

extern template class KvCache<bf16>;
extern template class KvCache<float>;

}  // namespace ft
