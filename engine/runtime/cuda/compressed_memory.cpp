#include "engine/runtime/cuda/compressed_memory.h"

#include <algorithm>
#include <cmath>

#include "engine/experts/memory_plan.h"
#include "kernels/base/error.h"

namespace ft {

CompressedMemory::CompressedMemory(const BackendParts& parts, const cuda::Stream& stream)
    : layers_(parts.family.geometry().compressed), positions_(parts.max_context) {
  if (layers_.empty()) return;
  const std::vector<KvLayer>& kv = parts.family.geometry().kv;
  int64_t elements = 0, floats = 0, dim = 0, top_k = 1, row_elements = 0;
  for (size_t index = 0; index < layers_.size(); ++index) {
    const CompressedLayer& layer = layers_[index];
    begins_.push_back(elements);
    open_begins_.push_back(floats);
    elements += layer.elements(positions_) * parts.sequences;
    floats += layer.open_floats() * parts.sequences;
    dim = std::max(dim, layer.head_dim);
    if (layer.blocks && !may_choose(static_cast<int>(index))) continue;
    row_elements = std::max(row_elements, layer.blocks ? kv[index].elements() : 2 * layer.head_dim);
    gathered_rows_ = std::max(gathered_rows_, layer.attended(positions_));
    if (layer.index_dim == 0) continue;
    entries_ = std::max(entries_, layer.entries(positions_));
    top_k = std::max(top_k, layer.index_top_k);
  }
  group_tokens_ = std::min(parts.max_tokens, compressed_group_tokens(parts.family.geometry(), positions_));
  rows_ = cuda::DeviceBuffer(elements * int64_t{sizeof(bf16)});
  open_ = cuda::DeviceBuffer(floats * int64_t{sizeof(float)});
  fresh_ = cuda::DeviceBuffer(parts.max_tokens * dim * int64_t{sizeof(bf16)});
  const int64_t gathered_bytes = group_tokens_ * gathered_rows_ * row_elements * int64_t{sizeof(bf16)};
  gathered_ = cuda::DeviceBuffer(gathered_bytes);
  scores_ = cuda::DeviceBuffer(group_tokens_ * entries_ * int64_t{sizeof(float)});
  chosen_ = cuda::DeviceBuffer(group_tokens_ * top_k * int64_t{sizeof(int32_t)});
  const int64_t of_token = entries_ * int64_t{sizeof(float)} + top_k * int64_t{sizeof(int32_t)};
  choosing_tokens_ = std::max(group_tokens_, std::min<int64_t>(parts.max_tokens, gathered_bytes / of_token));
  places_ = cuda::DeviceBuffer(group_tokens_ * int64_t{sizeof(int64_t) + sizeof(int32_t)});
  place_index_weights(stream);
}

// All layers have an index of one shape.
void CompressedMemory::place_index_weights(const cuda::Stream& stream) {
  const CompressedLayer& layer = layers_.front();
  if (!layer.blocks) return;
  weights_of_heads_.assign(static_cast<size_t>(layer.index_heads),
                           static_cast<float>(1.0 / std::sqrt(static_cast<double>(layer.index_dim))));
  const auto bytes = static_cast<int64_t>(weights_of_heads_.size() * sizeof(float));
  index_weights_ = cuda::DeviceBuffer(bytes);
  cuda::copy_to_device(index_weights_.data(), weights_of_heads_.data(), bytes, stream.handle());
}

cuda::CompressedLayerView CompressedMemory::layer(int index) const {
  const CompressedLayer& shape = layers_[static_cast<size_t>(index)];
  cuda::CompressedLayerView view;
  view.head_dim = static_cast<int>(shape.head_dim);
  view.window = static_cast<int>(shape.window);
  view.ratio = static_cast<int>(shape.ratio);
  view.overlap = shape.overlap;
  view.index_dim = static_cast<int>(shape.index_dim);
  view.index_heads = shape.index_dim > 0 ? static_cast<int>(shape.index_heads) : 0;
  view.index_top_k = static_cast<int>(shape.index_top_k);
  view.blocks = shape.blocks;
  view.ring_rows = static_cast<int>(shape.ring_rows(positions_));
  view.entries = static_cast<int>(shape.entries(positions_));
  view.open_ring = static_cast<int>(shape.open_ring());
  view.rows = rows_.as<bf16>() + begins_[static_cast<size_t>(index)];
  view.sequence_elements = shape.elements(positions_);
  view.open = open_.as<float>() + open_begins_[static_cast<size_t>(index)];
  view.sequence_floats = shape.open_floats();
  return view;
}

cuda::CompressedGroup CompressedMemory::group(int64_t first, int64_t count) const {
  FT_CHECK(count <= group_tokens_);
  cuda::CompressedGroup group;
  group.first = first;
  group.count = count;
  group.scores = scores_.as<float>();
  group.chosen = chosen_.as<int32_t>();
  group.gathered = gathered_.as<bf16>();
  group.gathered_rows = gathered_rows_;
  group.position = places_.as<int64_t>();
  group.sequence = reinterpret_cast<int32_t*>(group.position + group_tokens_);
  return group;
}

cuda::CompressedGroup CompressedMemory::choosing_group(int64_t first, int64_t count) const {
  if (count <= group_tokens_) return group(first, count);
  FT_CHECK(count <= choosing_tokens_);
  cuda::CompressedGroup group;
  group.first = first;
  group.count = count;
  group.scores = gathered_.as<float>();
  group.chosen = reinterpret_cast<int32_t*>(group.scores + choosing_tokens_ * entries_);
  return group;
}

namespace {

// Rows of positions [length - rows, length) between two rings.
template <class T>
void copy_ring(T* to, int64_t to_rows, const T* from, int64_t from_rows, int64_t width, int64_t length,
               const cuda::Stream& stream) {
  if (width == 0) return;
  for (int64_t p = std::max<int64_t>(0, length - std::min(to_rows, from_rows)); p < length;) {
    const int64_t at = p % to_rows, from_at = p % from_rows;  // up to the end of either ring
    const int64_t count = std::min({length - p, to_rows - at, from_rows - from_at});
    cuda::copy_on_device(to + at * width, from + from_at * width, count * width * int64_t{sizeof(T)}, stream.handle());
    p += count;
  }
}

}  // namespace

void CompressedMemory::copy_sequence(int sequence, const CompressedMemory& from, int from_sequence, int64_t length,
                                     const cuda::Stream& stream) {
  FT_CHECK(layers_ == from.layers_ && length <= positions_ && length <= from.positions_);
  for (int index = 0; index < static_cast<int>(layers_.size()); ++index) {
    const CompressedLayer& shape = layers_[static_cast<size_t>(index)];
    const cuda::CompressedLayerView to = layer(index), source = from.layer(index);
    bf16* rows = to.rows + sequence * to.sequence_elements;
    const bf16* from_rows = source.rows + from_sequence * source.sequence_elements;
    copy_ring(rows, to.ring_rows, from_rows, source.ring_rows, shape.head_dim, length, stream);
    if (shape.ratio == 0) continue;
    const int64_t entries = length / shape.ratio;
    const auto copy = [&](int64_t at, int64_t from_at, int64_t count) {
      if (count == 0) return;
      cuda::copy_on_device(rows + at, from_rows + from_at, count * int64_t{sizeof(bf16)}, stream.handle());
    };
    copy(to.ring_rows * shape.head_dim, source.ring_rows * shape.head_dim, entries * shape.head_dim);
    copy((to.ring_rows + to.entries) * shape.head_dim, (source.ring_rows + source.entries) * shape.head_dim,
         entries * shape.index_dim);
    copy_ring(to.open + sequence * to.sequence_floats, to.open_ring,
              static_cast<const float*>(source.open) + from_sequence * source.sequence_floats, source.open_ring,
              shape.open_row_floats(), length, stream);
  }
}

}  // namespace ft
