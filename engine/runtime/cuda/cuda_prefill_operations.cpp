// The family's operations in a prefill chunk: launches of kernels/cuda/prefill.h in order on the main stream.
#include "engine/runtime/cuda/cuda_backend_impl.h"

namespace ft {

// Rows as packed bf16 in packed_, normed if `norm` has a weight.
void CudaBackend::prefill_pack(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, const Norm& norm) {
  auto* words = packed_.as<uint32_t>();
  if (norm.weight.index < 0) {
    cuda::pack_activations({x, x_stride, tokens, cols, words}, main_.handle());
    return;
  }
  cuda::RmsnormPackArgs args;
  args.x = x;
  args.x_stride = x_stride;
  args.w = (*weights_)[norm.weight];
  args.eps = norm.eps;
  args.tokens = tokens;
  args.cols = cols;
  args.words = words;
  cuda::rmsnorm_pack(args, main_.handle());
}

void CudaBackend::prefill_product(const uint32_t* words, const cuda::MatvecOutput& output, int64_t tokens) {
  cuda::prefill_linear({output.w, words, tokens, output.bias, output.y, output.y_stride, output.add}, main_.handle());
}

void CudaBackend::prefill_linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  const int64_t cols = (*weights_)[outputs.begin()->weight].layout.cols;
  prefill_pack(rows(from).data, rows(from).width, count_, cols, norm);
  for (const Linear& output : outputs) prefill_product(packed_.as<uint32_t>(), output_of(output, false), count_);
}

void CudaBackend::prefill_linear_add(Slot from, const Linear& output) {
  prefill_pack(rows(from).data, rows(from).width, count_, (*weights_)[output.weight].layout.cols, {});
  prefill_product(packed_.as<uint32_t>(), output_of(output, true), count_);
}

void CudaBackend::prefill_logits(const LogitsSpec& spec) {
  const Rows x = rows(spec.from);
  const auto wanted = static_cast<int64_t>(tokens_->logits_tokens.size());
  if (wanted == 0) return;
  auto* taken = head_input_.as<float>();
  cuda::take_rows({x.data, x.width, input<int32_t>(inputs().rows), wanted, x.width, taken, x.width}, main_.handle());
  prefill_pack(taken, x.width, wanted, x.width, spec.norm);
  prefill_product(packed_.as<uint32_t>(), {(*weights_)[spec.head], nullptr, logits_.as<float>(), vocab_, false},
                  wanted);
  softcap(wanted, spec.softcap);
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
