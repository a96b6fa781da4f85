// The family's operations on a CUDA device: each is one or a few launches on the main stream, captured or not.
#include <algorithm>

#include "engine/runtime/cuda/cuda_backend_impl.h"

namespace ft {

void CudaBackend::embed(TableId table, Slot to) {
  const EmbeddingTable& embedding = (*weights_)[table];
  const Rows out = rows(to);
  cuda::embed({embedding.rows, embedding.width, input<int32_t>(inputs().ids), count_, out.data, out.width},
              main_.handle());
}

void CudaBackend::pack(Slot from, const Norm& norm) {
  const Rows x = rows(from);
  auto* words = packed_.as<uint32_t>();
  if (norm.weight.index < 0) {
    cuda::pack_activations({x.data, x.width, count_, x.width, words}, main_.handle());
    return;
  }
  cuda::RmsnormPackArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  args.w = (*weights_)[norm.weight];
  args.eps = norm.eps;
  args.tokens = count_;
  args.cols = x.width;
  args.words = words;
  cuda::rmsnorm_pack(args, main_.handle());
}

// Of the rows in packed_.
void CudaBackend::product(const Linear& output, float* y, int64_t y_stride) {
  cuda::MatvecArgs args;
  args.w = (*weights_)[output.weight];
  args.x = packed_.as<uint32_t>();
  args.tokens = count_;
  args.bias = output.bias.index < 0 ? nullptr : (*weights_)[output.bias];
  args.y = y;
  args.y_stride = y_stride;
  cuda::matvec(args, main_.handle());
}

void CudaBackend::add_product(Slot into) {
  const Rows x = rows(into);
  cuda::add({x.data, product_.as<float>(), x.data, x.width, x.width, x.width, count_, x.width}, main_.handle());
}

void CudaBackend::linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  pack(from, norm);
  for (const Linear& output : outputs) {
    const Rows y = rows(output.to);
    product(output, y.data, y.width);
  }
}

void CudaBackend::linear_add(Slot from, const Linear& output) {
  pack(from, {});
  product(output, product_.as<float>(), rows(output.to).width);
  add_product(output.to);
}

void CudaBackend::attention(const AttentionSpec& spec) {
  const Rows q = rows(Slot::kQuery), k = rows(Slot::kKey), v = rows(Slot::kValue), out = rows(Slot::kAttention);
  const InputLayout in = inputs();
  cuda::AttentionPrepareArgs prepare;
  prepare.q = q.data;
  prepare.q_stride = q.width;
  prepare.k = k.data;
  prepare.v = v.data;
  prepare.kv_stride = k.width;
  prepare.tokens = count_;
  prepare.heads = spec.heads;
  prepare.kv_heads = spec.kv_heads;
  prepare.head_dim = spec.head_dim;
  prepare.q_norm = spec.q_norm.index < 0 ? nullptr : (*weights_)[spec.q_norm];
  prepare.k_norm = spec.k_norm.index < 0 ? nullptr : (*weights_)[spec.k_norm];
  prepare.norm_eps = spec.norm_eps;
  prepare.cos = rope_.as<float>();
  prepare.sin = rope_.as<float>() + rope_positions_ * rope_half_;
  prepare.rotary_half = rope_half_;
  prepare.sequence = input<int32_t>(in.sequence);
  prepare.position = input<int64_t>(in.position);
  prepare.kv = kv_layer(spec.kv_layer);
  cuda::attention_prepare(prepare, main_.handle());
  cuda::AttentionArgs attend;
  attend.q = q.data;
  attend.q_stride = q.width;
  attend.tokens = count_;
  attend.heads = spec.heads;
  attend.kv_heads = spec.kv_heads;
  attend.head_dim = spec.head_dim;
  attend.scale = spec.scale;
  attend.window = spec.window;
  attend.sequence = prepare.sequence;
  attend.position = prepare.position;
  attend.kv = prepare.kv;
  attend.out = out.data;
  attend.out_stride = out.width;
  cuda::attention(attend, main_.handle());
}

void CudaBackend::silu_mul(Slot gate, Slot up, Slot to) {
  const Rows a = rows(gate), b = rows(up), y = rows(to);
  cuda::silu_mul({a.data, b.data, y.data, a.width, b.width, y.width, count_, std::min(a.width, b.width)},
                 main_.handle());
}

void CudaBackend::moe(const MoeSpec& spec, Slot residual) {
  pack(residual, spec.norm);
  const InputLayout in = inputs();
  const int64_t experts = parts_.family.geometry().expert.experts;
  cuda::MatvecArgs router;
  router.w = (*weights_)[spec.router];
  router.x = packed_.as<uint32_t>();
  router.tokens = count_;
  router.y = router_logits_.as<float>();
  router.y_stride = experts;
  cuda::matvec(router, main_.handle());
  cuda::RouterArgs top;
  top.logits = router_logits_.as<float>();
  top.logits_stride = experts;
  top.tokens = count_;
  top.experts = experts;
  top.k = top_k_;
  top.renormalize = spec.renormalize;
  if (decode_) {
    top.forced = input<int32_t>(in.forced);
    top.forced_ids = input<int32_t>(in.choices) + spec.moe_layer * count_ * top_k_;
  }
  top.ids = ids_.as<int32_t>();
  top.weights = expert_weights_.as<float>();
  const int64_t chosen = spec.moe_layer * parts_.max_tokens * top_k_;
  top.record = chosen_.as_device<int32_t>() + chosen;
  cuda::router_top_k(top, main_.handle());

  CudaMoeCall call;
  call.layer = spec.moe_layer;
  call.tokens = count_;
  call.x = packed_.as<uint32_t>();
  call.ids = ids_.as<int32_t>();
  call.weights = expert_weights_.as<float>();
  call.out = product_.as<float>();
  call.out_stride = rows(residual).width;
  call.placement = placement_;
  if (decode_) {
    moe_.decode(call);
  } else {
    main_.synchronize();
    int32_t* ids = chosen_.as_host<int32_t>() + chosen;
    if (parts_.hooks.forced()) {
      parts_.hooks.choose(*tokens_, spec.moe_layer, ids);
      cuda::copy_to_device(ids_.data(), ids, count_ * top_k_ * 4, main_.handle());
    }
    prefill_.layer(call, ids);
  }
  add_product(residual);
}

void CudaBackend::logits(Slot from, const Norm& norm, MatrixId head) {
  const Rows x = rows(from);
  const auto cols = static_cast<int64_t>(parts_.weights[norm.weight].size());
  const int64_t wanted = decode_ ? count_ : static_cast<int64_t>(tokens_->logits_tokens.size());
  if (wanted == 0) return;
  cuda::RmsnormPackArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  if (!decode_) {
    cuda::take_rows({x.data, x.width, input<int32_t>(inputs().rows), wanted, cols, head_input_.as<float>(), cols},
                    main_.handle());
    args.x = head_input_.as<float>();
    args.x_stride = cols;
  }
  args.w = (*weights_)[norm.weight];
  args.eps = norm.eps;
  args.tokens = wanted;
  args.cols = cols;
  args.words = packed_.as<uint32_t>();
  cuda::rmsnorm_pack(args, main_.handle());
  cuda::MatvecArgs product;
  product.w = (*weights_)[head];
  product.x = packed_.as<uint32_t>();
  product.tokens = wanted;
  product.y = logits_.as<float>();
  product.y_stride = vocab_;
  cuda::matvec(product, main_.handle());
  cuda::copy_to_host(logits_host_.host(), logits_.data(), wanted * vocab_ * 4, main_.handle());
}

}  // namespace ft
