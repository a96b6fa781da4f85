#include "engine/runtime/kv_cache.h"

#include <algorithm>
#include <type_traits>

#include "kernels/base/error.h"

namespace ft {
namespace {

template <class Element>
void store(const float* from, Element* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Element, bf16>) {
      to[i] = to_bf16(from[i]);
    } else {
      to[i] = from[i];
    }
  }
}

}  // namespace

template <class Element>
KvCache<Element>::KvCache(const KvShape& shape, WorkerPool* pool) : shape_(shape) {
  int64_t elements = 0;
  for (const KvLayer& layer : shape.layers) {
    begins_.push_back(elements);
    rows_.push_back(kv_positions(layer, shape.positions, shape.step_tokens));
    elements += layer.elements() * shape.sequences * rows_.back();
  }
  memory_ = HostBuffer(elements * static_cast<int64_t>(sizeof(Element)), pool);
}

template <class Element>
int64_t KvCache<Element>::offset(int kv_layer, int sequence) const {
  const auto index = static_cast<size_t>(kv_layer);
  return begins_[index] + sequence * rows_[index] * stride(kv_layer);
}

template <class Element>
const Element* KvCache<Element>::keys(int kv_layer, int sequence, int64_t kv_head) const {
  return memory_.as<Element>() + offset(kv_layer, sequence) + kv_head * layer(kv_layer).head_dim;
}

template <class Element>
const Element* KvCache<Element>::values(int kv_layer, int sequence, int64_t kv_head) const {
  return keys(kv_layer, sequence, layer(kv_layer).kv_heads + kv_head);
}

template <class Element>
void KvCache<Element>::append(int kv_layer, int sequence, int64_t position, int64_t kv_head, const float* key,
                              const float* value) {
  const KvLayer& shape = layer(kv_layer);
  const int64_t at = position % rows_[static_cast<size_t>(kv_layer)];
  Element* row = memory_.as<Element>() + offset(kv_layer, sequence) + at * stride(kv_layer);
  store(key, row + kv_head * shape.head_dim, shape.head_dim);
  store(value, row + (shape.kv_heads + kv_head) * shape.head_dim, shape.head_dim);
}

template <class Element>
void KvCache<Element>::copy_sequence(int sequence, const KvCache& from, int from_sequence, int64_t length) {
  FT_CHECK(shape_.layers == from.shape_.layers);
  FT_CHECK(sequence >= 0 && sequence < shape_.sequences && length <= shape_.positions);
  FT_CHECK(from_sequence >= 0 && from_sequence < from.shape_.sequences && length <= from.shape_.positions);
  for (int index = 0; index < static_cast<int>(shape_.layers.size()); ++index) {
    const int64_t rows = rows_[static_cast<size_t>(index)], from_rows = from.rows_[static_cast<size_t>(index)];
    const Element* source = from.memory_.template as<Element>() + from.offset(index, from_sequence);
    Element* target = memory_.as<Element>() + offset(index, sequence);
    for (int64_t p = std::max<int64_t>(0, length - std::min(rows, from_rows)); p < length;) {
      const int64_t at = p % rows, from_at = p % from_rows;  // up to the end of either ring
      const int64_t count = std::min({length - p, rows - at, from_rows - from_at});
      std::copy_n(source + from_at * stride(index), count * stride(index), target + at * stride(index));
      p += count;
    }
  }
}

template class KvCache<bf16>;
template class KvCache<float>;

}  // namespace ft
