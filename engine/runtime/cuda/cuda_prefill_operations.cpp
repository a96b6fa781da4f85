// The family's operations in a prefill chunk: launches of kernels/cuda/prefill.h in order on the main stream.
#include "engine/runtime/cuda/cuda_backend_impl.h"

namespace ft {

// Rows as packed bf16 in packed_, normed if `norm` has a weight.
void CudaBackend::prefill_pack(const float* x, int64_t width, int64_t tokens, const Norm& norm) {
  auto* words = packed_.as<uint32_t>();
  if (norm.weight.index < 0) {
    cuda::pack_activations({x, width, tokens, width, words}, main_.handle());
    return;
  }
  cuda::RmsnormPackArgs args;
  args.x = x;
  args.x_stride = width;
  args.w = (*weights_)[norm.weight];
  args.eps = norm.eps;
  args.tokens = tokens;
  args.cols = width;
  args.words = words;
  cuda::rmsnorm_pack(args, main_.handle());
}

// Of the rows in packed_.
void CudaBackend::prefill_product(const Linear& output, float* y, int64_t y_stride, int64_t tokens, bool add) {
  cuda::PrefillLinearArgs args;
  args.w = (*weights_)[output.weight];
  args.x = packed_.as<uint32_t>();
  args.tokens = tokens;
  args.bias = output.bias.index < 0 ? nullptr : (*weights_)[output.bias];
  args.y = y;
  args.y_stride = y_stride;
  args.add = add;
  cuda::prefill_linear(args, main_.handle());
}

void CudaBackend::prefill_linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  prefill_pack(rows(from).data, rows(from).width, count_, norm);
  for (const Linear& output : outputs) {
    prefill_product(output, rows(output.to).data, rows(output.to).width, count_, false);
  }
}

void CudaBackend::prefill_linear_add(Slot from, const Linear& output) {
  prefill_pack(rows(from).data, rows(from).width, count_, {});
  prefill_product(output, rows(output.to).data, rows(output.to).width, count_, true);
}

void CudaBackend::prefill_moe(const MoeSpec& spec) {
  const Rows x = rows(spec.from);
  prefill_pack(x.data, x.width, count_, spec.norm);
  const int64_t experts = parts_.family.geometry().expert.experts;
  prefill_product({spec.router.weight, {}, spec.from}, router_logits_.as<float>(), experts, count_, false);
  cuda::RouterArgs top;
  top.logits = router_logits_.as<float>();
  top.logits_stride = experts;
  top.tokens = count_;
  top.experts = experts;
  top.k = top_k_;
  top.renormalize = spec.router.renormalize;
  top.ids = ids_.as<int32_t>();
  top.weights = expert_weights_.as<float>();
  // Pinned: forced choices are read there, the router's written there when they are needed.
  int32_t* on_host = chosen_.as_host<int32_t>() + spec.moe_layer * parts_.max_tokens * top_k_;
  int32_t* from_device = chosen_.as_device<int32_t>() + spec.moe_layer * parts_.max_tokens * top_k_;
  top.forced = input<int32_t>(inputs().forced);
  top.forced_ids = from_device;
  if (prefill_.needs_ids()) top.record = from_device;
  cuda::router_top_k(top, main_.handle());
  if (prefill_.needs_ids()) main_.synchronize();

  CudaMoeCall call;
  call.layer = spec.moe_layer;
  call.tokens = count_;
  call.x = packed_.as<uint32_t>();
  call.ids = ids_.as<int32_t>();
  call.weights = expert_weights_.as<float>();
  call.residual = x.data;
  call.residual_stride = x.width;
  prefill_.layer(call, prefill_.needs_ids() ? on_host : nullptr);
}

void CudaBackend::prefill_logits(const LogitsSpec& spec) {
  const Rows x = rows(spec.from);
  const auto wanted = static_cast<int64_t>(tokens_->logits_tokens.size());
  if (wanted == 0) return;
  auto* taken = head_input_.as<float>();
  cuda::take_rows({x.data, x.width, input<int32_t>(inputs().rows), wanted, x.width, taken, x.width}, main_.handle());
  prefill_pack(taken, x.width, wanted, spec.norm);
  prefill_product({spec.head, {}, spec.from}, logits_.as<float>(), vocab_, wanted, false);
  cuda::copy_to_host(logits_host_.host(), logits_.data(), wanted * vocab_ * 4, main_.handle());
}

void CudaBackend::prefill_step(const StepBatch& batch) {
  int32_t* choices = chosen_.as_host<int32_t>();
  const bool forced = parts_.hooks.forced();
  for (int layer = 0; forced && layer < moe_layer_count_; ++layer) {
    parts_.hooks.choose(*tokens_, layer, choices + layer * parts_.max_tokens * top_k_);
  }
  cuda::copy_to_device(inputs_.data(), inputs_host_.host(), inputs().bytes, main_.handle());
  prefill_.begin_chunk(*tokens_, forced ? choices : nullptr);
  parts_.family.forward(*this, parts_.weights, batch);
  main_.synchronize();
}

}  // namespace ft
