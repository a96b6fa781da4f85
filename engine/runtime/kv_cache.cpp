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
    elements += layer.elements() * shape.sequences * shape.positions;
  }
  memory_ = HostBuffer(elements * static_cast<int64_t>(sizeof(Element)), pool);
}

template <class Element>
int64_t KvCache<Element>::offset(int kv_layer, int sequence) const {
  return begins_[static_cast<size_t>(kv_layer)] + sequence * shape_.positions * stride(kv_layer);
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
  Element* row = memory_.as<Element>() + offset(kv_layer, sequence) + position * stride(kv_layer);
  store(key, row + kv_head * shape.head_dim, shape.head_dim);
  store(value, row + (shape.kv_heads + kv_head) * shape.head_dim, shape.head_dim);
}

template <class Element>
void KvCache<Element>::copy_sequence(int sequence, const KvCache& from, int from_sequence, int64_t length) {
  FT_CHECK(shape_.layers == from.shape_.layers);
  FT_CHECK(sequence >= 0 && sequence < shape_.sequences && length <= shape_.positions);
  FT_CHECK(from_sequence >= 0 && from_sequence < from.shape_.sequences && length <= from.shape_.positions);
  for (int index = 0; index < static_cast<int>(shape_.layers.size()); ++index) {
    std::copy_n(from.memory_.template as<Element>() + from.offset(index, from_sequence), length * stride(index),
                memory_.as<Element>() + offset(index, sequence));
  }
}

template class KvCache<bf16>;
template class KvCache<float>;

}  // namespace ft
