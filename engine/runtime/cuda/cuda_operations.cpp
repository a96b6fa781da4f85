// The family's operations on a CUDA device: each is one or a few launches on the main stream, captured or not.
#include <algorithm>

#include "engine/runtime/cuda/cuda_backend_impl.h"
#include "kernels/base/error.h"

namespace ft {

void CudaBackend::embed(const EmbedSpec& spec) {
  FT_CHECK(spec.scale == 1);
  const EmbeddingTable& embedding = (*weights_)[spec.table];
  const Rows out = rows(spec.to);
  if (decode_) {  // the first operation of a step: the inputs come with it
    const InputLayout in = inputs();
    const auto* ids = reinterpret_cast<const int32_t*>(inputs_host_.device() + in.ids);
    cuda::begin_step({inputs_host_.device(),
                      inputs_.data(),
                      in.bytes,
                      {embedding.rows, embedding.width, ids, count_, out.data, out.width}},
                     main_.handle());
    return;
  }
  cuda::embed({embedding.rows, embedding.width, input<int32_t>(inputs().ids), count_, out.data, out.width},
              main_.handle());
}

// Rows of a slot, normed if `norm` has a weight, as the input of products.
cuda::MatvecInput CudaBackend::input_of(Slot from, const Norm& norm) const {
  const Rows x = rows(from);
  cuda::MatvecInput input;
  input.x = x.data;
  input.x_stride = x.width;
  input.norm_w = norm.weight.index < 0 ? nullptr : (*weights_)[norm.weight];
  input.norm_eps = norm.eps;
  input.scratch = packed_.as<uint32_t>();
  return input;
}

cuda::MatvecOutput CudaBackend::output_of(const Linear& output, bool add) const {
  const Rows y = rows(output.to);
  const float* bias = output.bias.index < 0 ? nullptr : (*weights_)[output.bias];
  return {(*weights_)[output.weight], bias, y.data, y.width, add};
}

void CudaBackend::linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  if (!decode_) return prefill_linear(from, norm, outputs);
  FT_CHECK(outputs.size() <= cuda::kMaxMatvecOutputs);
  cuda::MatvecArgs args;
  args.input = input_of(from, norm);
  args.tokens = count_;
  for (const Linear& output : outputs) args.outputs[args.output_count++] = output_of(output, false);
  cuda::matvec(args, main_.handle());
}

void CudaBackend::linear_add(Slot from, const Linear& output) {
  if (!decode_) return prefill_linear_add(from, output);
  cuda::MatvecArgs args;
  args.input = input_of(from, {});
  args.tokens = count_;
  args.outputs[args.output_count++] = output_of(output, true);
  cuda::matvec(args, main_.handle());
}

void CudaBackend::glu(const GluSpec& spec) {
  FT_CHECK(spec.glu.kind == GluKind::kSilu);
  const Rows a = rows(spec.gate), b = rows(spec.up), y = rows(spec.to);
  cuda::silu_mul({a.data, b.data, y.data, a.width, b.width, y.width, count_, spec.width}, main_.handle());
}

void CudaBackend::moe(const MoeSpec& spec) {
  if (!decode_) return prefill_moe(spec);
  const Rows x = rows(spec.from);
  const InputLayout in = inputs();
  CudaMoeCall call;
  call.layer = spec.moe_layer;
  call.tokens = count_;
  call.placement = placement_;
  call.residual = x.data;
  call.residual_stride = x.width;
  call.norm_w = (*weights_)[spec.norm.weight];
  call.norm_eps = spec.norm.eps;
  call.router = (*weights_)[spec.router.weight];
  call.renormalize = spec.router.renormalize;
  call.x = packed_.as<uint32_t>();
  call.router_logits = router_logits_.as<float>();
  call.ids = ids_.as<int32_t>();
  call.weights = expert_weights_.as<float>();
  call.record = chosen_.as_device<int32_t>() + spec.moe_layer * parts_.max_tokens * top_k_;
  call.forced = input<int32_t>(in.forced);
  call.forced_ids = input<int32_t>(in.choices) + spec.moe_layer * count_ * top_k_;
  if (predictions_ > 0 && spec.moe_layer + 1 < moe_layer_count_) {
    call.predicted = input<int32_t>(in.predicted) + (spec.moe_layer + 1) * count_ * predictions_;
  }
  moe_.decode(call);
}

void CudaBackend::logits(const LogitsSpec& spec) {
  if (!decode_) return prefill_logits(spec);
  cuda::MatvecArgs args;
  args.input = input_of(spec.from, spec.norm);
  args.tokens = count_;
  args.outputs[args.output_count++] = {(*weights_)[spec.head], nullptr, logits_.as<float>(), vocab_, false};
  cuda::matvec(args, main_.handle());  // launch_end brings the rows to the host
}

}  // namespace ft
