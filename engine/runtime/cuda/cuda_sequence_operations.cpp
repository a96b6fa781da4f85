// Operations that look back in a sequence, on a CUDA device: attention and gated delta nets, in decode steps and in
// prompts.
#include <algorithm>

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
  if (spec.index.layer >= 0) return attend_to_blocks(spec);
  attend_to_cache(spec, prepare_args(spec));
}

// To everything in the cache.
void CudaBackend::attend_to_cache(const AttentionSpec& spec, const cuda::AttentionPrepareArgs& prepare) {
  const Rows out = rows(Slot::kAttention);
  const float* sinks = vector_or_null(spec.sinks);
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

cuda::BlocksArgs CudaBackend::blocks_args(const AttentionSpec& spec) const {
  cuda::BlocksArgs args;
  args.step = compressed_step(spec.index.layer, spec.rope, spec.norm_eps);
  args.step.index_weight = {compressed_.index_weights(), 0};  // the same for every token
  args.step.index_norm = (*weights_)[spec.index.entry_norm];
  args.query_norm = (*weights_)[spec.index.query_norm];
  args.kv = sequences_.kv(spec.kv_layer);
  args.row_elements = parts_.family.geometry().kv[static_cast<size_t>(spec.kv_layer)].elements();
  return args;
}

// A captured step serves every position, so that it always gathers where a token may ever choose; what a token that
// does not choose attends to is the cache as it is. In a prompt such tokens have the arithmetic of any other prompt,
// and those that choose that of a decode step: a function of the position.
void CudaBackend::attend_to_blocks(const AttentionSpec& spec) {
  FT_CHECK(spec.window == 0);
  const cuda::BlocksArgs args = blocks_args(spec);
  const cuda::AttentionPrepareArgs prepare = prepare_args(spec);
  const bool may_choose = compressed_.may_choose(spec.index.layer);
  const cuda::CompressedLayerView& layer = args.step.layer;
  const int64_t first_choosing = (int64_t{layer.index_top_k} + 1) * layer.ratio - 1;  // position
  const auto run_position = [&](const StepTokens::Run& run) {
    return tokens_->position[static_cast<size_t>(run.first)];
  };
  cuda::blocks_prepare(args, main_.handle());
  if (decode_ && may_choose) {
    cuda::attention_prepare(prepare, main_.handle());
    attend_to_gathered(spec, args, 0, count_);
    return;
  }
  const bool all_choose = !decode_ && std::all_of(tokens_->runs.begin(), tokens_->runs.end(),
                                                  [&](const auto& run) { return run_position(run) >= first_choosing; });
  if (all_choose) {
    cuda::attention_prepare(prepare, main_.handle());
  } else {
    attend_to_cache(spec, prepare);
  }
  if (decode_) return;
  for (const StepTokens::Run& run : tokens_->runs) {
    const int64_t before = std::clamp<int64_t>(first_choosing - run_position(run), 0, run.count);
    attend_to_gathered(spec, args, run.first + before, run.first + run.count);
  }
  cuda::blocks_keep(args, main_.handle());
}

// Tokens [first, end), in groups.
void CudaBackend::attend_to_gathered(const AttentionSpec& spec, const cuda::BlocksArgs& args, int64_t first,
                                     int64_t end) {
  for (; first < end; first += compressed_.group_tokens()) {
    const cuda::CompressedGroup group = compressed_.group(first, std::min(compressed_.group_tokens(), end - first));
    cuda::compressed_choose(args.step, group, main_.handle());
    cuda::blocks_gather(args, group, main_.handle());
    cuda::AttentionArgs attend = attention_of(group);
    attend.heads = spec.heads;
    attend.kv_heads = spec.kv_heads;
    attend.head_dim = spec.head_dim;
    attend.scale = spec.scale;
    attend.gated = spec.gated;
    attend.sinks = vector_or_null(spec.sinks);
    cuda::attention(attend, main_.handle());
  }
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
