#include "engine/runtime/routing_hooks.h"

#include <algorithm>
#include <string>

#include "kernels/base/error.h"

namespace ft {

RoutingHooks::RoutingHooks(const ModelGeometry& geometry, int max_sequences)
    : layers_(static_cast<int>(geometry.moe_layers.size())),
      experts_(geometry.expert.experts),
      top_k_(geometry.expert.top_k),
      max_sequences_(max_sequences),
      advanced_(static_cast<size_t>(max_sequences), 0) {}

void RoutingHooks::check_shape(const RoutingTrace& trace) const {
  const auto shape = [](int layers, int experts, int top_k) {
    return std::to_string(layers) + " layers, " + std::to_string(experts) + " experts, top " + std::to_string(top_k);
  };
  if (trace.layers != layers_ || trace.experts != experts_ || trace.top_k != top_k_) {
    throw Error(ErrorKind::kFailed,
                {"routing trace does not fit the model", shape(trace.layers, trace.experts, trace.top_k),
                 shape(layers_, experts_, top_k_), "record or generate one for this model"});
  }
}

void RoutingHooks::record_into(RoutingTrace* trace) {
  if (trace != nullptr && trace->tokens == 0 && trace->ids.empty()) {
    trace->layers = layers_;
    trace->experts = experts_;
    trace->top_k = top_k_;
  }
  if (trace != nullptr) check_shape(*trace);
  record_ = trace;
}

void RoutingHooks::force(std::shared_ptr<const RoutingTrace> trace) {
  if (trace != nullptr) {
    check_shape(*trace);
    if (trace->tokens < 1) {
      throw Error(ErrorKind::kFailed, {"routing trace is empty", "0 tokens", "at least 1", "generate a longer one"});
    }
  }
  forced_ = std::move(trace);
}

// Token of the forced trace for the step's token t.
int64_t RoutingHooks::trace_token(const StepTokens& tokens, int64_t t) const {
  const auto token = static_cast<size_t>(t);
  const int sequence = tokens.sequence[token];
  const int64_t at = tokens.position[token] + apart(sequence) + advanced_[static_cast<size_t>(sequence)];
  const int64_t wrapped = at % forced_->tokens;
  return wrapped < 0 ? wrapped + forced_->tokens : wrapped;  // a sequence may have been placed behind its position
}

void RoutingHooks::place(int sequence, int64_t position, int64_t trace_token) {
  FT_CHECK(forced() && trace_token >= 0 && trace_token < forced_->tokens);
  advanced_[static_cast<size_t>(sequence)] = trace_token - position - apart(sequence);
}

void RoutingHooks::choose(const StepTokens& tokens, int layer, int32_t* ids) const {
  for (int64_t t = 0; t < tokens.count(); ++t) {
    const auto choices = forced_->at(trace_token(tokens, t), layer);
    for (int slot = 0; slot < top_k_; ++slot) ids[t * top_k_ + slot] = choices[static_cast<size_t>(slot)];
  }
}

void RoutingHooks::predict(const StepTokens& tokens, int layer, int32_t* ids, int64_t stride) const {
  for (int64_t t = 0; t < tokens.count(); ++t) {
    const auto predicted = forced_->predicted_at(trace_token(tokens, t), layer);
    std::copy(predicted.begin(), predicted.end(), ids + t * stride);
  }
}

void RoutingHooks::record_predictions(const StepTokens& tokens, int layer, int count, const int32_t* ids) {
  if (record_ == nullptr || !tokens.decode) return;
  std::vector<int16_t>& predicted = record_->predicted;
  if (record_->predictions == 0) record_->predictions = count;
  if (layer == 1) predicted.insert(predicted.end(), static_cast<size_t>(count), int16_t{-1});  // of layer 0
  for (int i = 0; i < count; ++i) predicted.push_back(static_cast<int16_t>(ids[i]));
}

void RoutingHooks::record(const StepTokens& tokens, const int32_t* ids) {
  if (record_ == nullptr || !tokens.decode) return;
  for (int slot = 0; slot < top_k_; ++slot) record_->ids.push_back(static_cast<int16_t>(ids[slot]));
}

void RoutingHooks::finish_step(const StepTokens& tokens) {
  if (record_ != nullptr && tokens.decode) ++record_->tokens;
}

}  // namespace ft
