// A family's MoE layers on a CUDA device: in a decode step CudaMoe's launches, in a prefill chunk those of
// kernels/cuda/prefill.h.
#include "engine/runtime/cuda/cuda_backend_impl.h"

namespace ft {

CudaSharedExpert CudaBackend::shared_expert(const MoeSpec& spec) const {
  CudaSharedExpert shared;
  if (spec.shared.down.index < 0) return shared;
  const Rows gate = rows(Slot::kGate), up = rows(Slot::kUp), block = rows(Slot::kBlock);
  shared.gate = (*weights_)[spec.shared.gate];
  shared.up = (*weights_)[spec.shared.up];
  shared.down = (*weights_)[spec.shared.down];
  if (spec.shared.token_gate.index >= 0) shared.token_gate = (*weights_)[spec.shared.token_gate];
  shared.glu = parts_.weights.bank.layout(spec.moe_layer).glu;
  shared.gate_rows = gate.data;
  shared.up_rows = up.data;
  shared.rows = block.data;
  shared.gate_stride = gate.width;
  shared.up_stride = up.width;
  shared.stride = block.width;
  shared.words = shared_packed_.as<uint32_t>();
  shared.token_logits = token_gates_.as<float>();
  return shared;
}

// Without logits, and where forced choices are and what was chosen is noted.
cuda::RouterArgs CudaBackend::router_choice(const RouterSpec& router) const {
  cuda::RouterArgs top;
  top.tokens = count_;
  top.k = top_k_;
  top.renormalize = router.renormalize;
  top.expert_scale = vector_or_null(router.expert_scale);
  top.by_score = router.kind == RouterKind::kSqrtSoftplus;
  top.scale = router.scale;
  top.choice_bias = vector_or_null(router.choice_bias);
  if (router.by_token.index >= 0) top.given = (*weights_)[router.by_token];
  top.token_ids = input<int32_t>(inputs().ids);
  top.forced = input<int32_t>(inputs().forced);
  top.ids = ids_.as<int32_t>();
  top.weights = expert_weights_.as<float>();
  return top;
}

// What decode and prefill have in common.
CudaMoeCall CudaBackend::moe_call(const MoeSpec& spec) const {
  const Rows from = rows(spec.from), to = rows(spec.to);
  const RouterSpec& router = spec.router;
  CudaMoeCall call;
  call.layer = spec.moe_layer;
  call.tokens = count_;
  call.placement = placement_;
  call.from = from.data;
  call.from_stride = from.width;
  call.to = to.data;
  call.to_stride = to.width;
  call.add = spec.add;
  call.norm_w = vector_or_null(router.norm.weight);
  call.norm_eps = router.norm.eps;
  if (router.norm.weight.index != spec.norm.weight.index) {
    call.experts_norm_w = vector_or_null(spec.norm.weight);
    call.experts_norm_eps = spec.norm.eps;
    call.router_x = router_packed_.as<uint32_t>();
  }
  call.router = (*weights_)[router.weight];
  call.router_bias = vector_or_null(router.bias);
  call.top = router_choice(router);
  call.shared = shared_expert(spec);
  call.x = packed_.as<uint32_t>();
  call.router_logits = router_logits_.as<float>();
  return call;
}

void CudaBackend::moe(const MoeSpec& spec) {
  if (!decode_) return prefill_moe(spec);
  const InputLayout in = inputs();
  CudaMoeCall call = moe_call(spec);
  call.top.record = chosen_.as_device<int32_t>() + spec.moe_layer * parts_.max_tokens * top_k_;
  call.top.forced_ids = input<int32_t>(in.choices) + spec.moe_layer * count_ * top_k_;
  if (predictions_ > 0 && spec.moe_layer + 1 < moe_layer_count_) {
    call.predicted = input<int32_t>(in.predicted) + (spec.moe_layer + 1) * count_ * predictions_;
  }
  moe_.decode(call);
}

// The chosen experts and their weights; on the host too where they are needed there.
void CudaBackend::prefill_route(const MoeSpec& spec, const CudaMoeCall& call) {
  const int64_t experts = call.router.layout.rows;
  prefill_pack(call.from, call.from_stride, count_, call.router.layout.cols, spec.router.norm);
  prefill_product(call.x, {call.router, call.router_bias, call.router_logits, experts, false}, count_);
  cuda::RouterArgs top = call.top;
  top.logits = call.router_logits;
  top.logits_stride = experts;
  top.experts = experts;
  // Pinned: forced choices are read there, the router's written there when they are needed.
  int32_t* pinned = chosen_.as_device<int32_t>() + spec.moe_layer * parts_.max_tokens * top_k_;
  top.forced_ids = pinned;
  if (prefill_.needs_ids()) top.record = pinned;
  cuda::router_top_k(top, main_.handle());
  if (prefill_.needs_ids()) main_.synchronize();
}

// Of the rows in packed_.
void CudaBackend::prefill_shared(const CudaSharedExpert& shared) {
  const auto* words = packed_.as<uint32_t>();
  prefill_product(words, {shared.gate, nullptr, shared.gate_rows, shared.gate_stride, false}, count_);
  prefill_product(words, {shared.up, nullptr, shared.up_rows, shared.up_stride, false}, count_);
  if (shared.token_gate.data != nullptr) {
    prefill_product(words, {shared.token_gate, nullptr, shared.token_logits, 1, false}, count_);
  }
  cuda::glu({.glu = shared.glu,
             .gate = shared.gate_rows,
             .up = shared.up_rows,
             .gate_stride = shared.gate_stride,
             .up_stride = shared.up_stride,
             .tokens = count_,
             .cols = shared.gate.layout.rows,
             .words = shared.words},
            main_.handle());
  prefill_product(shared.words, {shared.down, nullptr, shared.rows, shared.stride, false}, count_);
}

void CudaBackend::prefill_moe(const MoeSpec& spec) {
  const CudaMoeCall call = moe_call(spec);
  prefill_route(spec, call);
  if (call.experts_norm_w != nullptr) {
    prefill_pack(call.from, call.from_stride, count_, call.router.layout.cols, spec.norm);
  }
  if (call.shared.there()) prefill_shared(call.shared);
  const int32_t* on_host = chosen_.as_host<int32_t>() + spec.moe_layer * parts_.max_tokens * top_k_;
  prefill_.layer(call, prefill_.needs_ids() ? on_host : nullptr);
}

}  // namespace ft
