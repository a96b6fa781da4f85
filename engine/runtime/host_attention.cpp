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

HostBackend::KvRows HostBackend::rows_in_cache(const AttentionSpec& spec, int64_t token, int64_t kv_head) const {
  const auto index = static_cast<size_t>(token);
  KvRows rows;
  rows.keys = kv_.keys(spec.kv_layer, tokens_->sequence[index], kv_head);
  rows.values = kv_.values(spec.kv_layer, tokens_->sequence[index], kv_head);
  rows.ring = kv_.ring(spec.kv_layer);
  rows.length = tokens_->position[index] + 1;
  rows.begin = spec.window > 0 ? std::max<int64_t>(0, rows.length - spec.window) : 0;
  return rows;
}

HostBackend::KvRows HostBackend::gathered_rows(const AttentionSpec& spec, int64_t token, int64_t place,
                                               int64_t kv_head) const {
  KvRows rows;
  rows.keys = gathered_.row(place) + kv_head * spec.head_dim;
  rows.values = rows.keys + spec.kv_heads * spec.head_dim;
  rows.length = index_.count(token);
  return rows;
}

// Query heads [first, last) of one token, all of one key/value head: they share one walk over the rows.
void HostBackend::attend(const AttentionSpec& spec, int64_t token, int64_t first, int64_t last, const KvRows& rows) {
  AttentionArgs args;
  args.q = buffers_[spec.gated ? Slot::kAttention : Slot::kQuery].row(token) + first * spec.head_dim;
  args.k = rows.keys;
  args.v = rows.values;
  args.kv_stride = kv_.stride(spec.kv_layer);
  args.ring = rows.ring;
  args.length = rows.length;
  args.begin = rows.begin;
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

// Heads of tokens from first_token on; with `blocks` these are one group, whose rows are gathered.
void HostBackend::attend_part(const AttentionSpec& spec, int64_t first_token, Range part, bool blocks) {
  const int64_t group = spec.heads / spec.kv_heads;
  for (int64_t task = part.begin; task < part.end;) {
    const int64_t first = task % spec.heads, place = task / spec.heads, token = first_token + place;
    const int64_t last = std::min((first / group + 1) * group, first + part.end - task);
    const bool gathered = blocks && index_.chooses(token);
    attend(spec, token, first, last,
           gathered ? gathered_rows(spec, token, place, first / group) : rows_in_cache(spec, token, first / group));
    task += last - first;
  }
}

// Keys and values of the blocks that the tokens of a group chose, one after another.
void HostBackend::gather(const AttentionSpec& spec, int64_t first, int64_t count, int worker, int workers) {
  constexpr int64_t kRows = 64;  // of one task
  const int64_t stride = kv_.stride(spec.kv_layer), blocks = (index_.attended() + kRows - 1) / kRows;
  const Range part = split_range(count * blocks, worker, workers);
  for (int64_t task = part.begin; task < part.end; ++task) {
    const int64_t place = task / blocks, token = first + place, begin = task % blocks * kRows;
    if (!index_.chooses(token)) continue;
    const bf16* cached = kv_.keys(spec.kv_layer, tokens_->sequence[static_cast<size_t>(token)], 0);
    const int64_t end = std::min(begin + kRows, index_.count(token));
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(cached + index_.attended_position(token, place, row) * stride, stride,
                  gathered_.row(place) + row * stride);
    }
  }
}

// Tokens take turns in groups of one a thread. Places in the gathered rows depend on the token's position alone.
void HostBackend::attend_to_blocks(const AttentionSpec& spec, int worker, int workers) {
  index_.close(worker, workers);
  for (int64_t first = 0; first < tokens_->count(); first += index_.group()) {
    parts_.pool.barrier();
    const int64_t count = std::min(index_.group(), tokens_->count() - first);
    index_.score(first, count, worker, workers);
    parts_.pool.barrier();
    index_.choose(first, count, worker, workers);
    parts_.pool.barrier();
    gather(spec, first, count, worker, workers);
    parts_.pool.barrier();
    attend_part(spec, first, split_range(count * spec.heads, worker, workers), true);
  }
}

void HostBackend::attention(const AttentionSpec& spec) {
  const double begin = now_seconds();
  const int64_t rows = tokens_->count();
  const bool indexed = spec.index.layer >= 0;
  if (indexed) index_.start(spec, *tokens_, buffers_, ropes_[static_cast<size_t>(spec.rope)]);
  const int64_t heads = spec.heads + spec.kv_heads, units = heads + (indexed ? index_.heads() : 0);
  parts_.pool.run([&](int worker, int workers) {
    const Range prepared = split_range(rows * units, worker, workers);
    for (int64_t task = prepared.begin; task < prepared.end; ++task) {
      const int64_t token = task / units, unit = task % units;
      if (unit < heads) {
        prepare_head(spec, token, unit);
      } else {
        index_.prepare_query(token, unit - heads);
      }
    }
    parts_.pool.barrier();  // a token sees the keys of the tokens before it in the same step
    if (indexed && index_.any_chosen()) {
      attend_to_blocks(spec, worker, workers);
    } else {
      if (indexed) index_.close(worker, workers);
      attend_part(spec, 0, split_range(rows * spec.heads, worker, workers), false);
    }
    if (!indexed) return;
    parts_.pool.barrier();  // entries are made of what the ring held before
    index_.keep(worker, workers);
  });
  if (placement_ == MoePlacement::kDecode) attention_seconds_ += now_seconds() - begin;
}

}  // namespace ft
