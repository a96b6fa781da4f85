// Where the router's choices are looked at or replaced: recording of decode steps, and synthetic routing.
//
// With synthetic weights the router's logits mean nothing, so its choices come from a trace; the router kernel still
// runs (its time is part of a step) and its weights are kept. Both backends call apply() between router and experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/experts/routing_trace.h"
#include "engine/model/geometry.h"
#include "engine/runtime/step_tokens.h"

namespace ft {

class RoutingHooks {
 public:
  RoutingHooks(const ModelGeometry& geometry, int max_sequences);

  // Null: off. An empty trace takes the model's shape; another one must have it: throws Error(kFailed).
  // A trace is one sequence's, so of a batch the first run is recorded. Prefill is not recorded.
  void record_into(RoutingTrace* trace);
  // Null: the router decides. Throws Error(kFailed) when the trace has another shape than the model, or no token.
  void force(std::shared_ptr<const RoutingTrace> trace);
  bool forced() const { return forced_ != nullptr; }
  // A forced trace goes on by `tokens` for this sequence, whatever its positions; restart() takes that back.
  void advance(int sequence, int64_t tokens) { advanced_[static_cast<size_t>(sequence)] += tokens; }
  void restart(int sequence) { advanced_[static_cast<size_t>(sequence)] = 0; }
  // The same, but so that the sequence's token at `position` takes trace token `trace_token`, one of the forced trace.
  void place(int sequence, int64_t position, int64_t trace_token);
  // `sequence` goes on in a forced trace where `other_sequence` of `other` is: for a copied sequence.
  void continue_from(int sequence, const RoutingHooks& other, int other_sequence) {
    advanced_[static_cast<size_t>(sequence)] = other.advanced_[static_cast<size_t>(other_sequence)];
  }

  // ids: (tokens, top_k) of one MoE layer, best first; replaced when a trace is forced, then recorded.
  // The token of sequence s at position p takes the choices of trace token (p + s * tokens / max_sequences + what the
  // sequence was advanced by) mod tokens: sequences of a batch walk the trace apart from each other, and a replay
  // starts where a cache content says.
  void apply(const StepTokens& tokens, int layer, int32_t* ids) {
    if (forced()) choose(tokens, layer, ids);
    record(tokens, ids);
  }
  // The two halves, for a device that routes by itself: choices go in before the step, what it chose comes out after.
  void choose(const StepTokens& tokens, int layer, int32_t* ids) const;  // REQUIRES forced()
  void record(const StepTokens& tokens, const int32_t* ids);             // layer by layer
  bool recording() const { return record_ != nullptr; }

  // What the forced trace predicts for a layer, in place of the look-ahead's router: `predictions()` a token, best
  // first, -1 trailing; a token's ids are `stride` apart from the next one's. REQUIRES forced().
  int predictions() const { return forced_->predictions; }
  void predict(const StepTokens& tokens, int layer, int32_t* ids, int64_t stride) const;
  // Notes what was predicted for `layer`: (tokens, count) ids. Every decode step, layers in order from 1.
  void record_predictions(const StepTokens& tokens, int layer, int count, const int32_t* ids);
  void finish_step(const StepTokens& tokens);

 private:
  void check_shape(const RoutingTrace& trace) const;
  int64_t trace_token(const StepTokens& tokens, int64_t t) const;
  int64_t apart(int sequence) const { return sequence * forced_->tokens / max_sequences_; }

  int layers_ = 0, experts_ = 0, top_k_ = 0;
  int max_sequences_ = 0;
  std::vector<int64_t> advanced_;  // per sequence
  RoutingTrace* record_ = nullptr;
  std::shared_ptr<const RoutingTrace> forced_;
};

}  // namespace ft
