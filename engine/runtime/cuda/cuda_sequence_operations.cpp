// Operations that look back in a sequence, on a CUDA device: attention and gated delta nets, in decode steps and in
// prompts.
#include "engine/runtime/cuda/cuda_backend_impl.h"
#include "kernels/base/error.h"

namespace ft {

cuda::AttentionPrepareArgs CudaBackend::prepare_args(const AttentionSpec& spec) const {
  const Rows q = rows(Slot::kQuery), k = rows(Slot::kKey), v = rows(Slot::kValue);
  const InputLayout in = inputs();
  FT_CHECK(spec.value_is_key || k.width == v.width);
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
  prepare.gated = spec.gated;
  prepare.v_norm = spec.v_norm;
  prepare.value_is_key = spec.value_is_key;
  prepare.q_norm = vector_or_null(spec.q_norm);
  prepare.k_norm = vector_or_null(spec.k_norm);
  prepare.norm_eps = spec.norm_eps;
  const SequenceMemory::Rotation& rotation = sequences_.rotation(spec.rope);
  prepare.cos = rotation.cos;
  prepare.sin = rotation.sin;
  prepare.rotary_half = rotation.half;
  prepare.sequence = input<int32_t>(in.sequence);
  prepare.position = input<int64_t>(in.position);
  prepare.kv = sequences_.kv(spec.kv_layer);
  return prepare;
}

void CudaBackend::attention(const AttentionSpec& spec) {
  const Rows out = rows(Slot::kAttention);
  const float* sinks = vector_or_null(spec.sinks);
  const cuda::AttentionPrepareArgs prepare = prepare_args(spec);
  if (decode_) {
    cuda::attention_decode(
        {prepare, spec.scale, spec.window, out.data, out.width, sequences_.scratch(spec.kv_layer), sinks},
        main_.handle());
    return;
  }
  cuda::attention_prepare(prepare, main_.handle());
  if (cuda::prefill_attention_takes(spec.head_dim)) return prefill_attend(spec);
  cuda::AttentionArgs attend;
  attend.q = prepare.q;
  attend.q_stride = prepare.q_stride;
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
  attend.gated = spec.gated;
  attend.sinks = sinks;
  cuda::attention(attend, main_.handle());
}

void CudaBackend::prefill_attend(const AttentionSpec& spec) {
  const Rows q = rows(Slot::kQuery), out = rows(Slot::kAttention);
  cuda::PrefillAttentionArgs args;
  args.q = q.data;
  args.q_stride = q.width;
  args.tiles = prefill_.queries();
  args.tile_count = prefill_.query_tiles();
  args.heads = spec.heads;
  args.kv_heads = spec.kv_heads;
  args.head_dim = spec.head_dim;
  args.scale = spec.scale;
  args.window = spec.window;
  args.kv = sequences_.kv(spec.kv_layer);
  args.out = out.data;
  args.out_stride = out.width;
  args.gated = spec.gated;
  args.sinks = vector_or_null(spec.sinks);
  cuda::prefill_attention(args, main_.handle());
}

void CudaBackend::delta_net(const DeltaNetSpec& spec) {
  const Rows x = rows(Slot::kDeltaMixed), gate = rows(Slot::kDeltaGate), out = rows(Slot::kAttention);
  const Rows write = rows(Slot::kDeltaWrite), decay = rows(Slot::kDeltaDecay);
  FT_CHECK(write.width == decay.width);
  cuda::DeltaNetArgs args;
  args.shape = spec.shape;
  args.x = x.data;
  args.x_stride = x.width;
  args.gate = gate.data;
  args.gate_stride = gate.width;
  args.write = write.data;
  args.decay = decay.data;
  args.write_stride = write.width;
  args.conv = (*weights_)[spec.conv];
  args.decay_log = (*weights_)[spec.decay_log];
  args.decay_bias = (*weights_)[spec.decay_bias];
  args.norm = (*weights_)[spec.norm.weight];
  args.norm_eps = spec.norm.eps;
  args.gate_kind = spec.gate;
  args.state = sequences_.state(spec.state_layer, spec.shape.layer_floats());
  args.sequence_floats = sequences_.state_floats();
  args.tokens = count_;
  args.sequence = input<int32_t>(inputs().sequence);
  args.position = input<int64_t>(inputs().position);
  args.out = out.data;
  args.out_stride = out.width;
  if (!decode_) {
    args.runs = prefill_.runs();
    args.run_count = static_cast<int>(tokens_->runs.size());
    args.ready = delta_ready_.bytes() > 0 ? delta_ready_.as<float>() : moe_.outputs();
  }
  cuda::delta_net(args, main_.handle());
}

}  // namespace ft
