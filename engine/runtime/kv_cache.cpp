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
KvCache<Element>::KvCache(const KvShape& shape, WorkerPool* pool)
    : shape_(shape),
      memory_(int64_t{shape.kv_layers} * shape.sequences * shape.positions * 2 * shape.kv_heads * shape.head_dim *
                  static_cast<int64_t>(sizeof(Element)),
              pool) {}

template <class Element>
int64_t KvCache<Element>::offset(int kv_layer, int sequence) const {
  return (int64_t{kv_layer} * shape_.sequences + sequence) * shape_.positions * stride();
}

template <class Element>
const Element* KvCache<Element>::keys(int kv_layer, int sequence, int64_t kv_head) const {
  return memory_.as<Element>() + offset(kv_layer, sequence) + kv_head * shape_.head_dim;
}

template <class Element>
const Element* KvCache<Element>::values(int kv_layer, int sequence, int64_t kv_head) const {
  return keys(kv_layer, sequence, shape_.kv_heads + kv_head);
}

template <class Element>
void KvCache<Element>::append(int kv_layer, int sequence, int64_t position, int64_t kv_head, const float* key,
                              const float* value) {
  Element* row = memory_.as<Element>() + offset(kv_layer, sequence) + position * stride();
  store(key, row + kv_head * shape_.head_dim, shape_.head_dim);
  store(value, row + (shape_.kv_heads + kv_head) * shape_.head_dim, shape_.head_dim);
}

template <class Element>
void KvCache<Element>::copy_sequence(int sequence, const KvCache& from, int from_sequence, int64_t length) {
  FT_CHECK(shape_.kv_layers == from.shape_.kv_layers && stride() == from.stride());
  FT_CHECK(sequence >= 0 && sequence < shape_.sequences && length <= shape_.positions);
  FT_CHECK(from_sequence >= 0 && from_sequence < from.shape_.sequences && length <= from.shape_.positions);
  for (int layer = 0; layer < shape_.kv_layers; ++layer) {
    std::copy_n(from.memory_.template as<Element>() + from.offset(layer, from_sequence), length * stride(),
                memory_.as<Element>() + offset(layer, sequence));
  }
}

template class KvCache<bf16>;
template class KvCache<float>;

}  // namespace ft
