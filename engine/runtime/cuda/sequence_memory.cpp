#include "engine/runtime/cuda/sequence_memory.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {

SequenceMemory::SequenceMemory(const BackendParts& parts, int max_batch, const cuda::Stream& stream)
    : sequences_(parts.sequences), positions_(parts.max_context), state_floats_(parts.family.geometry().state_floats) {
  int64_t elements = 0;
  for (const KvLayer& shape : parts.family.geometry().kv) {
    const int64_t rows = kv_positions(shape, parts.max_context, parts.max_tokens);
    layers_.push_back({shape, rows, elements, 0});
    elements += shape.elements() * rows * sequences_;
  }
  kv_ = cuda::DeviceBuffer(elements * int64_t{sizeof(bf16)});
  if (state_floats_ > 0) {
    states_ = cuda::DeviceBuffer(state_floats_ * sequences_ * int64_t{sizeof(float)});
    cuda::fill_zero(states_.data(), states_.bytes(), stream.handle());
  }
  place_scratch(parts, max_batch, stream);
  upload_rotations(parts, stream);
}

// One for all layers of a shape: what a launch leaves there for the next one is its shape's.
void SequenceMemory::place_scratch(const BackendParts& parts, int max_batch, const cuda::Stream& stream) {
  int64_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KvLayer& shape = layers_[i].shape;
    const auto before = std::find_if(layers_.begin(), layers_.begin() + static_cast<int64_t>(i), [&](const Layer& l) {
      return l.shape.kv_heads == shape.kv_heads && l.shape.head_dim == shape.head_dim;
    });
    layers_[i].scratch = before->scratch;
    if (before != layers_.begin() + static_cast<int64_t>(i)) continue;
    layers_[i].scratch = bytes;
    bytes += cuda::attention_decode_scratch_bytes(
        max_batch, static_cast<int>(parts.family.geometry().widest_heads / shape.head_dim),
        static_cast<int>(shape.kv_heads), shape.head_dim, parts.max_context);
  }
  if (bytes == 0) return;
  scratch_ = cuda::DeviceBuffer(bytes);
  cuda::fill_zero(scratch_.data(), scratch_.bytes(), stream.handle());
}

void SequenceMemory::upload_rotations(const BackendParts& parts, const cuda::Stream& stream) {
  tables_ = parts.family.make_ropes(parts.max_context);
  int64_t floats = 0;
  for (const RopeTable& table : tables_) floats += static_cast<int64_t>(table.cos.size() + table.sin.size());
  rotation_memory_ = cuda::DeviceBuffer(floats * int64_t{sizeof(float)});
  float* at = rotation_memory_.as<float>();
  const auto upload = [&](const std::vector<float>& values) {
    cuda::copy_to_device(at, values.data(), static_cast<int64_t>(values.size() * sizeof(float)), stream.handle());
    const float* begin = at;
    at += values.size();
    return begin;
  };
  for (const RopeTable& table : tables_) {
    const float* cos = upload(table.cos);
    rotations_.push_back({cos, upload(table.sin), table.half});
  }
}

cuda::KvView SequenceMemory::kv(int kv_layer) const {
  const Layer& layer = layers_[static_cast<size_t>(kv_layer)];
  return {rows_of(layer, 0), layer.rows, layer.rows < positions_ ? layer.rows : 0};
}

float* SequenceMemory::state_part(int64_t begin, int64_t floats) const {
  FT_CHECK(begin >= 0 && begin + floats <= state_floats_);
  return states_.as<float>() + begin;
}

void SequenceMemory::copy_sequence(int sequence, const SequenceMemory& from, int from_sequence, int64_t length,
                                   const cuda::Stream& stream) {
  FT_CHECK(layers_.size() == from.layers_.size() && state_floats_ == from.state_floats_);
  FT_CHECK(sequence >= 0 && sequence < sequences_ && from_sequence >= 0 && from_sequence < from.sequences_);
  FT_CHECK(length <= positions_ && length <= from.positions_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer &to = layers_[i], &source = from.layers_[i];
    FT_CHECK(to.shape == source.shape);
    const int64_t stride = to.shape.elements();
    for (int64_t p = std::max<int64_t>(0, length - std::min(to.rows, source.rows)); p < length;) {
      const int64_t at = p % to.rows, from_at = p % source.rows;  // up to the end of either ring
      const int64_t count = std::min({length - p, to.rows - at, source.rows - from_at});
      cuda::copy_on_device(rows_of(to, sequence) + at * stride, from.rows_of(source, from_sequence) + from_at * stride,
                           count * stride * int64_t{sizeof(bf16)}, stream.handle());
      p += count;
    }
  }
  if (state_floats_ == 0) return;
  cuda::copy_on_device(states_.as<float>() + sequence * state_floats_,
                       from.states_.as<float>() + from_sequence * state_floats_, state_floats_ * int64_t{sizeof(float)},
                       stream.handle());
}

void SequenceMemory::read_state(int sequence, std::span<float> state, const cuda::Stream& stream) const {
  FT_CHECK(sequence >= 0 && sequence < sequences_ && static_cast<int64_t>(state.size()) == state_floats_);
  if (state_floats_ == 0) return;
  cuda::copy_to_host(state.data(), states_.as<float>() + sequence * state_floats_,
                     state_floats_ * int64_t{sizeof(float)}, stream.handle());
}

void SequenceMemory::write_state(int sequence, std::span<const float> state, const cuda::Stream& stream) {
  FT_CHECK(sequence >= 0 && sequence < sequences_ && static_cast<int64_t>(state.size()) == state_floats_);
  if (state_floats_ == 0) return;
  cuda::copy_to_device(states_.as<float>() + sequence * state_floats_, state.data(),
                       state_floats_ * int64_t{sizeof(float)}, stream.handle());
}

}  // namespace ft
