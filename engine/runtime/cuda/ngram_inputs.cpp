#include "engine/runtime/cuda/ngram_inputs.h"

#include <algorithm>

#include "engine/model/ngram_hash.h"
#include "engine/runtime/ngram_rows.h"
#include "kernels/base/error.h"

namespace ft {

NgramInputs::NgramInputs(const BackendParts& parts)
    : parts_(parts), width_(parts.family.width(Slot::kNgram)), tables_(ngram_tables(parts.family, parts.weights)) {
  if (tables_.empty()) return;
  int64_t floats = 0;
  for (NgramEmbedSpec& spec : tables_) {
    FT_CHECK(spec.hash->heads() * parts.weights[spec.table].width() == width_);
    begins_in_state_.push_back(spec.state_begin);
    spec.state_begin = floats;
    floats += ngram_state_floats(spec.hash->size());
  }
  tokens_ = StateCache(floats, parts.sequences);
  const auto tables = static_cast<int64_t>(tables_.size());
  rows_ = cuda::PinnedBuffer(tables * parts.max_tokens * width_ * int64_t{sizeof(float)});
}

int64_t NgramInputs::begin(RowTableId table) const {
  const auto at = std::find_if(tables_.begin(), tables_.end(),
                               [&](const NgramEmbedSpec& spec) { return spec.table.index == table.index; });
  FT_CHECK(at != tables_.end());
  return (at - tables_.begin()) * parts_.max_tokens * width_;
}

void NgramInputs::fill(const StepTokens& tokens) {
  for (const NgramEmbedSpec& spec : tables_) {
    embed_ngrams(spec, parts_.weights, parts_.pool, tokens, tokens_,
                 {rows_.as_host<float>() + begin(spec.table), width_});
  }
}

void NgramInputs::copy_sequence(int sequence, const NgramInputs& from, int from_sequence) {
  if (!tables_.empty()) tokens_.copy_sequence(sequence, from.tokens_, from_sequence);
}

void NgramInputs::read_state(int sequence, std::span<float> state) const {
  for (size_t i = 0; i < tables_.size(); ++i) {
    const int64_t floats = ngram_state_floats(tables_[i].hash->size());
    FT_CHECK(begins_in_state_[i] + floats <= static_cast<int64_t>(state.size()));
    std::copy_n(tokens_.part(sequence, tables_[i].state_begin, floats), floats, state.data() + begins_in_state_[i]);
  }
}

void NgramInputs::write_state(int sequence, std::span<const float> state) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    const int64_t floats = ngram_state_floats(tables_[i].hash->size());
    FT_CHECK(begins_in_state_[i] + floats <= static_cast<int64_t>(state.size()));
    std::copy_n(state.data() + begins_in_state_[i], floats, tokens_.part(sequence, tables_[i].state_begin, floats));
  }
}

}  // namespace ft
