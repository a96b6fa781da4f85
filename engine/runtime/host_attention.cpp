// Attention on the host device.
#include <algorithm>

#include "engine/runtime/host_backend.h"
#include "kernels/base/clock.h"

namespace ft {

// The values of a key head, before the key is normed and rotated.
const float* HostBackend::prepare_value(const AttentionSpec& spec, int64_t token, int64_t head) {
  float* value = buffers_[Slot::kValue].row(token) + head * spec.head_dim;
  if (spec.value_is_key) {
    std::copy_n(buffers_[Slot::kKey].row(token) + head * spec.head_dim, spec.head_dim, value);
  }
  if (spec.v_norm) {
    kernels_.rmsnorm({value, spec.head_dim, value, spec.head_dim, 1, spec.head_dim, ones_.data(), spec.norm_eps});
  }
  return value;
}

// Unit < heads: a query head, normed, rotated and rounded to bf16. Otherwise a key head with its value: normed,
// rotated, appended.
void HostBackend::prepare_head(const AttentionSpec& spec, int64_t token, int64_t unit) {
  const auto index = static_cast<size_t>(token);
  const int64_t position = tokens_->position[index];
  const bool query = unit < spec.heads;
  const int64_t head = query ? unit : unit - spec.heads;
  float* x = buffers_[query ? Slot::kQuery : Slot::kKey].row(token) + head * spec.head_dim;
  const float* value = query ? nullptr : prepare_value(spec, token, head);
  if (query && spec.gated) {  // the gates stay where they are
    const float* given = buffers_[Slot::kQuery].row(token) + 2 * head * spec.head_dim;
    x = buffers_[Slot::kAttention].row(token) + head * spec.head_dim;
    std::copy_n(given, spec.head_dim, x);
  }
  const VectorId norm = query ? spec.q_norm : spec.k_norm;
  HeadNormRopeArgs args;
  args.x = x;
  args.heads = 1;
  args.head_dim = spec.head_dim;
  args.w = norm.index >= 0 ? parts_.weights[norm].data() : nullptr;
  args.eps = spec.norm_eps;
  const RopeTable& rope = ropes_[static_cast<size_t>(spec.rope)];
  args.cos = rope.cos.data() + position * rope.half;
  args.sin = rope.sin.data() + position * rope.half;
  args.rotary_half = rope.half;
  kernels_.head_norm_rope(args);
  if (query) {
    for (int64_t i = 0; i < spec.head_dim; ++i) x[i] = round_to_bf16(x[i]);
    return;
  }
  kv_.append(spec.kv_layer, tokens_->sequence[index], position, head, x, value);
}

// Query heads [first, last) of one token, all of one key/value head: they share one walk over the cache.
void HostBackend::attend(const AttentionSpec& spec, int64_t token, int64_t first, int64_t last) {
  const auto index = static_cast<size_t>(token);
  const int64_t kv_head = first / (spec.heads / spec.kv_heads);
  const int sequence = tokens_->sequence[index];
  AttentionArgs args;
  args.q = buffers_[spec.gated ? Slot::kAttention : Slot::kQuery].row(token) + first * spec.head_dim;
  args.k = kv_.keys(spec.kv_layer, sequence, kv_head);
  args.v = kv_.values(spec.kv_layer, sequence, kv_head);
  args.kv_stride = kv_.stride(spec.kv_layer);
  args.ring = kv_.ring(spec.kv_layer);
  args.length = tokens_->position[index] + 1;
  args.begin = spec.window > 0 ? std::max<int64_t>(0, args.length - spec.window) : 0;
  args.head_dim = spec.head_dim;
  args.scale = spec.scale;
  args.out = buffers_[Slot::kAttention].row(token) + first * spec.head_dim;
  args.heads = last - first;
  if (spec.sinks.index >= 0) args.sinks = parts_.weights[spec.sinks].data() + first;
  kernels_.attention(args);
  for (int64_t head = first; spec.gated && head < last; ++head) {
    const float* gate = buffers_[Slot::kQuery].row(token) + (2 * head + 1) * spec.head_dim;
    kernels_.gate({args.out + (head - first) * spec.head_dim, gate, spec.head_dim, GateKind::kSigmoid});
  }
}

void HostBackend::attention(const AttentionSpec& spec) {
  const double begin = now_seconds();
  const int64_t rows = tokens_->count();
  const int64_t units = spec.heads + spec.kv_heads;
  const int64_t group = spec.heads / spec.kv_heads;
  parts_.pool.run([&](int worker, int workers) {
    const Range prepared = split_range(rows * units, worker, workers);
    for (int64_t task = prepared.begin; task < prepared.end; ++task) prepare_head(spec, task / units, task % units);
    parts_.pool.barrier();  // a token sees the keys of the tokens before it in the same step
    const Range attended = split_range(rows * spec.heads, worker, workers);
    for (int64_t task = attended.begin; task < attended.end;) {
      const int64_t first = task % spec.heads;
      const int64_t last = std::min((first / group + 1) * group, first + attended.end - task);
      attend(spec, task / spec.heads, first, last);
      task += last - first;
    }
  });
  if (placement_ == MoePlacement::kDecode) attention_seconds_ += now_seconds() - begin;
}

}  // namespace ft
