#include "engine/runtime/compressed_cache.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {

template <class Element>
CompressedCache<Element>::CompressedCache(const std::vector<CompressedLayer>& layers, int sequences, int64_t positions,
                                          WorkerPool* pool)
    : layers_(layers), sequences_(sequences), positions_(positions) {
  int64_t elements = 0, floats = 0;
  for (const CompressedLayer& layer : layers) {
    begins_.push_back(elements);
    open_begins_.push_back(floats);
    elements += layer.elements(positions) * sequences;
    floats += layer.open_floats() * sequences;
  }
  memory_ = HostBuffer(elements * static_cast<int64_t>(sizeof(Element)), pool);
  open_ = HostBuffer(floats * static_cast<int64_t>(sizeof(float)), pool);
  elements_ = memory_.template as<Element>();
  floats_ = open_.as<float>();
}

template <class Element>
Element* CompressedCache<Element>::begin(int index, int sequence) const {
  FT_CHECK(sequence >= 0 && sequence < sequences_);
  return elements_ + begins_[static_cast<size_t>(index)] + sequence * layer(index).elements(positions_);
}

template <class Element>
Element* CompressedCache<Element>::row(int index, int sequence, int64_t position) const {
  return begin(index, sequence) + position % ring_rows(index) * layer(index).head_dim;
}

template <class Element>
Element* CompressedCache<Element>::entry(int index, int sequence, int64_t entry) const {
  return begin(index, sequence) + (ring_rows(index) + entry) * layer(index).head_dim;
}

template <class Element>
Element* CompressedCache<Element>::index_entry(int index, int sequence, int64_t entry) const {
  const CompressedLayer& shape = layer(index);
  return begin(index, sequence) + (ring_rows(index) + shape.entries(positions_)) * shape.head_dim +
         entry * shape.index_dim;
}

template <class Element>
float* CompressedCache<Element>::open_row(int index, int sequence, int64_t position) const {
  const CompressedLayer& shape = layer(index);
  return floats_ + open_begins_[static_cast<size_t>(index)] + sequence * shape.open_floats() +
         position % shape.open_ring() * shape.open_row_floats();
}

template <class Element>
void CompressedCache<Element>::copy_sequence(int sequence, const CompressedCache& from, int from_sequence,
                                             int64_t length) {
  FT_CHECK(layers_ == from.layers_ && length <= positions_ && length <= from.positions_);
  for (int index = 0; index < static_cast<int>(layers_.size()); ++index) {
    const CompressedLayer& shape = layer(index);
    const int64_t rows = std::min(ring_rows(index), from.ring_rows(index));
    for (int64_t t = std::max<int64_t>(0, length - rows); t < length; ++t) {
      std::copy_n(from.row(index, from_sequence, t), shape.head_dim, row(index, sequence, t));
    }
    if (shape.ratio == 0) continue;
    const int64_t entries = length / shape.ratio;
    std::copy_n(from.entry(index, from_sequence, 0), entries * shape.head_dim, entry(index, sequence, 0));
    std::copy_n(from.index_entry(index, from_sequence, 0), entries * shape.index_dim, index_entry(index, sequence, 0));
    for (int64_t t = std::max<int64_t>(0, length - shape.open_ring()); t < length; ++t) {
      std::copy_n(from.open_row(index, from_sequence, t), shape.open_row_floats(), open_row(index, sequence, t));
    }
  }
}

template class CompressedCache<bf16>;
template class CompressedCache<float>;

}  // namespace ft
