#include "engine/runtime/step_tokens.h"

#include "kernels/base/error.h"

namespace ft {

StepTokens::StepTokens(int64_t max_tokens) {
  const auto capacity = static_cast<size_t>(max_tokens);
  ids.reserve(capacity);
  sequence.reserve(capacity);
  position.reserve(capacity);
  logits_tokens.reserve(capacity);
  runs.reserve(capacity);
}

void StepTokens::assign(const StepBatch& batch) {
  FT_CHECK(static_cast<size_t>(batch.tokens) <= ids.capacity());
  ids.clear();
  sequence.clear();
  position.clear();
  logits_tokens.clear();
  runs.clear();
  decode = batch.decode;
  for (const TokenRun& run : batch.runs) {
    if (!run.ids.empty()) runs.push_back({run.sequence, count(), static_cast<int64_t>(run.ids.size())});
    for (size_t i = 0; i < run.ids.size(); ++i) {
      const bool last = i + 1 == run.ids.size();
      if (run.logits_for_all || (last && run.last_logits)) logits_tokens.push_back(count());
      ids.push_back(run.ids[i]);
      sequence.push_back(run.sequence);
      position.push_back(run.position + static_cast<int64_t>(i));
    }
  }
  FT_CHECK(count() == batch.tokens);
  FT_CHECK(static_cast<int64_t>(logits_tokens.size()) == batch.logits_rows);
}

}  // namespace ft
