// The MoE layer in reference numerics.
#include <algorithm>
#include <cmath>

#include "engine/runtime/reference_backend.h"
#include "engine/runtime/reference_math.h"

namespace ft {

using namespace reference_math;

// Softmax over all experts, the top_k largest, ties to the lower index.
void ReferenceBackend::route(const RouterSpec& router, int64_t token) {
  float* p = router_logits_.row(token);
  const int64_t experts = parts_.weights[router.weight].layout.rows;
  const float largest = *std::max_element(p, p + experts);
  double sum = 0;
  for (int64_t i = 0; i < experts; ++i) sum += p[i] = std::exp(p[i] - largest);
  int32_t* ids = ids_.data() + token * top_k_;
  float* weights = weights_.data() + token * top_k_;
  double chosen = 0;
  for (int slot = 0; slot < top_k_; ++slot) {
    const float* best = std::max_element(p, p + experts);
    ids[slot] = static_cast<int32_t>(best - p);
    weights[slot] = static_cast<float>(*best / sum);
    chosen += static_cast<double>(weights[slot]);
    p[ids[slot]] = -1.0f;  // below every probability
  }
  const float* scale = router.expert_scale.index < 0 ? nullptr : parts_.weights[router.expert_scale].data();
  for (int slot = 0; slot < top_k_; ++slot) {
    if (router.renormalize) weights[slot] = static_cast<float>(weights[slot] / chosen);
    if (scale != nullptr) weights[slot] *= scale[ids[slot]];
  }
}

void ReferenceBackend::gate_up_row(const ExpertLayout& layout, int expert, int64_t row, const RowBuffer<float>& x,
                                   int worker) {
  const std::byte* blob = parts_.weights.bank.blob(moe_index_, expert);
  float *gate = decoded(worker, 0), *up = decoded(worker, 1);
  const PackedMatrix gates = expert_gate(layout, blob), ups = expert_up(layout, blob);
  decode(gates, row, gate);
  decode(ups, row, up);
  for (const int64_t pair : pairs_.of(expert)) {
    const float* input = x.row(pair / top_k_);
    const auto g = static_cast<float>(dot(gate, input, layout.hidden) + bias_at(gates, row));
    const auto u = static_cast<float>(dot(up, input, layout.hidden) + bias_at(ups, row));
    activated_.row(pair)[row] = glu_value(layout.glu, g, u);
  }
}

void ReferenceBackend::down_row(const ExpertLayout& layout, int expert, int64_t row, int worker) {
  float* w = decoded(worker, 0);
  const PackedMatrix downs = expert_down(layout, parts_.weights.bank.blob(moe_index_, expert));
  decode(downs, row, w);
  for (const int64_t pair : pairs_.of(expert)) {
    outputs_.row(pair)[row] =
        static_cast<float>(dot(w, activated_.row(pair), layout.intermediate) + bias_at(downs, row));
  }
}

// The output in kBlock, scaled by the token's gate.
void ReferenceBackend::run_shared_expert(const SharedExpert& shared, const Glu& how, const RowBuffer<float>& x) {
  const int64_t rows = tokens_->count();
  const RowBuffer<float>&gate = buffers_[Slot::kGate], &up = buffers_[Slot::kUp], &out = buffers_[Slot::kBlock];
  multiply(parts_.weights[shared.gate], x, rows, gate);
  multiply(parts_.weights[shared.up], x, rows, up);
  glu({how, Slot::kGate, Slot::kUp, Slot::kGate, parts_.weights[shared.gate].layout.rows});
  multiply(parts_.weights[shared.down], gate, rows, out);
  if (shared.token_gate.index < 0) return;
  multiply(parts_.weights[shared.token_gate], x, rows, router_logits_);
  const int64_t width = parts_.weights[shared.down].layout.rows;
  for (int64_t token = 0; token < rows; ++token) {
    const float logit = *router_logits_.row(token);
    for (int64_t i = 0; i < width; ++i) out.row(token)[i] = gated_value(GateKind::kSigmoid, out.row(token)[i], logit);
  }
}

void ReferenceBackend::moe(const MoeSpec& spec) {
  moe_index_ = spec.moe_layer;
  const VectorId bias = spec.router.bias;
  multiply(parts_.weights[spec.router.weight], normed(spec.from, spec.router.norm), tokens_->count(), router_logits_,
           bias.index >= 0 ? parts_.weights[bias].data() : nullptr);
  for (int64_t token = 0; token < tokens_->count(); ++token) route(spec.router, token);
  parts_.hooks.apply(*tokens_, spec.moe_layer, ids_.data());
  pairs_.group(ids_.data(), tokens_->count());
  const RowBuffer<float>& x = normed(spec.from, spec.norm);
  const ExpertLayout& layout = parts_.weights.bank.layout(moe_index_);
  const std::span<const int> distinct = pairs_.distinct();
  const auto experts = static_cast<int64_t>(distinct.size());
  split(parts_.pool, experts * layout.intermediate, [&](int64_t task, int worker) {
    gate_up_row(layout, distinct[static_cast<size_t>(task / layout.intermediate)], task % layout.intermediate, x,
                worker);
  });
  split(parts_.pool, experts * layout.hidden, [&](int64_t task, int worker) {
    down_row(layout, distinct[static_cast<size_t>(task / layout.hidden)], task % layout.hidden, worker);
  });
  const bool shares = spec.shared.down.index >= 0;
  if (shares) run_shared_expert(spec.shared, layout.glu, x);
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    float* out = (spec.add ? product_ : buffers_[spec.to]).row(token);
    for (int64_t i = 0; i < layout.hidden; ++i) {
      double sum = shares ? static_cast<double>(buffers_[Slot::kBlock].row(token)[i]) : 0.0;
      for (int64_t pair = token * top_k_; pair < (token + 1) * top_k_; ++pair) {
        sum += static_cast<double>(weights_[static_cast<size_t>(pair)]) * static_cast<double>(outputs_.row(pair)[i]);
      }
      out[i] = static_cast<float>(sum);
    }
  }
  if (spec.add) add_product(spec.to);
}

}  // namespace ft
