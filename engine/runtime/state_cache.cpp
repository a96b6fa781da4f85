#include "engine/runtime/state_cache.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace ft {

float* StateCache::part(int sequence, int64_t begin, int64_t floats) {
  return const_cast<float*>(std::as_const(*this).part(sequence, begin, floats));
}

const float* StateCache::part(int sequence, int64_t begin, int64_t floats) const {
  FT_CHECK(sequence >= 0 && sequence < sequences_);
  FT_CHECK(begin >= 0 && begin + floats <= floats_);
  return memory_.as<float>() + sequence * floats_ + begin;
}

void StateCache::copy_sequence(int sequence, const StateCache& from, int from_sequence) {
  FT_CHECK(floats_ == from.floats_);
  FT_CHECK(sequence >= 0 && sequence < sequences_ && from_sequence >= 0 && from_sequence < from.sequences_);
  if (floats_ == 0) return;
  std::copy_n(from.memory_.as<float>() + from_sequence * floats_, floats_, memory_.as<float>() + sequence * floats_);
}

void StateCache::read(int sequence, std::span<float> state) const {
  FT_CHECK(sequence >= 0 && sequence < sequences_ && static_cast<int64_t>(state.size()) == floats_);
  std::copy_n(memory_.as<float>() + sequence * floats_, floats_, state.data());
}

void StateCache::write(int sequence, std::span<const float> state) {
  FT_CHECK(sequence >= 0 && sequence < sequences_ && static_cast<int64_t>(state.size()) == floats_);
  std::copy_n(state.data(), floats_, memory_.as<float>() + sequence * floats_);
}

}  // namespace ft
