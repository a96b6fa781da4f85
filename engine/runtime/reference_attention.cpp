// Attention of the reference backend.
#include <algorithm>
#include <cmath>

#include "engine/runtime/reference_backend.h"
#include "engine/runtime/reference_math.h"

namespace ft {

using namespace reference_math;

// The values of a key head, before the key is normed and rotated.
const float* ReferenceBackend::prepare_value(const AttentionSpec& spec, int64_t token, int64_t head) {
  float* value = buffers_[Slot::kValue].row(token) + head * spec.head_dim;
  if (spec.value_is_key) {
    std::copy_n(buffers_[Slot::kKey].row(token) + head * spec.head_dim, spec.head_dim, value);
  }
  if (spec.v_norm) rmsnorm_row(value, nullptr, spec.norm_eps, spec.head_dim, value);
  return value;
}

void ReferenceBackend::prepare_head(const AttentionSpec& spec, int64_t token, int64_t unit) {
  const auto index = static_cast<size_t>(token);
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
  if (norm.index >= 0) rmsnorm_row(x, parts_.weights[norm].data(), spec.norm_eps, spec.head_dim, x);
  const RopeTable& rope = ropes_[static_cast<size_t>(spec.rope)];
  const int64_t row = tokens_->position[index] * rope.half;
  rotate_halves(x, rope.cos.data() + row, rope.sin.data() + row, rope.half);
  if (query) return;
  kv_.append(spec.kv_layer, tokens_->sequence[index], tokens_->position[index], head, x, value);
}

// place: of a token that chooses blocks in its group; otherwise -1.
void ReferenceBackend::attend(const AttentionSpec& spec, int64_t token, int64_t head, int64_t place, double* scores) {
  const auto index = static_cast<size_t>(token);
  const int64_t kv_head = head / (spec.heads / spec.kv_heads);
  const float* q = buffers_[spec.gated ? Slot::kAttention : Slot::kQuery].row(token) + head * spec.head_dim;
  const float* keys = kv_.keys(spec.kv_layer, tokens_->sequence[index], kv_head);
  const float* values = kv_.values(spec.kv_layer, tokens_->sequence[index], kv_head);
  const int64_t stride = kv_.stride(spec.kv_layer), ring = kv_.ring(spec.kv_layer);
  const auto row_of = [&](int64_t t) {
    const int64_t position = place >= 0 ? index_.attended_position(token, place, t) : t;
    return (ring > 0 ? position % ring : position) * stride;
  };
  const int64_t length = place >= 0 ? index_.count(token) : tokens_->position[index] + 1;
  const int64_t begin = spec.window > 0 ? std::max<int64_t>(0, length - spec.window) : 0;
  double largest = -HUGE_VAL, sum = 0;
  for (int64_t t = begin; t < length; ++t) {
    scores[t] = dot(q, keys + row_of(t), spec.head_dim) * static_cast<double>(spec.scale);
    largest = std::max(largest, scores[t]);
  }
  if (spec.sinks.index >= 0) {
    const double sink = parts_.weights[spec.sinks][static_cast<size_t>(head)];
    largest = std::max(largest, sink);
    sum = std::exp(sink - largest);
  }
  for (int64_t t = begin; t < length; ++t) sum += scores[t] = std::exp(scores[t] - largest);
  double* mixed = scores + parts_.max_context;  // (head_dim)
  std::fill_n(mixed, spec.head_dim, 0.0);
  for (int64_t t = begin; t < length; ++t) {
    const float* value = values + row_of(t);
    for (int64_t d = 0; d < spec.head_dim; ++d) mixed[d] += scores[t] * static_cast<double>(value[d]);
  }
  float* out = buffers_[Slot::kAttention].row(token) + head * spec.head_dim;
  for (int64_t d = 0; d < spec.head_dim; ++d) out[d] = static_cast<float>(mixed[d] / sum);
  if (!spec.gated) return;
  const float* gate = buffers_[Slot::kQuery].row(token) + (2 * head + 1) * spec.head_dim;
  for (int64_t d = 0; d < spec.head_dim; ++d) out[d] = gated_value(GateKind::kSigmoid, out[d], gate[d]);
}

// Tokens in groups of as many as there are threads: those that choose find their blocks first.
void ReferenceBackend::attend_to_blocks(const AttentionSpec& spec) {
  index_.start(spec, *tokens_, buffers_, ropes_[static_cast<size_t>(spec.rope)]);
  parts_.pool.run([&](int worker, int workers) {
    const int64_t heads = index_.heads();
    const Range prepared = split_range(tokens_->count() * heads, worker, workers);
    for (int64_t task = prepared.begin; task < prepared.end; ++task) index_.prepare_query(task / heads, task % heads);
    parts_.pool.barrier();
    index_.close(worker, workers);
    for (int64_t first = 0; first < tokens_->count(); first += index_.group()) {
      parts_.pool.barrier();
      const int64_t count = std::min(index_.group(), tokens_->count() - first);
      index_.score(first, count, worker, workers);
      parts_.pool.barrier();
      index_.choose(first, count, worker, workers);
      parts_.pool.barrier();
      const Range part = split_range(count * spec.heads, worker, workers);
      for (int64_t task = part.begin; task < part.end; ++task) {
        const int64_t place = task / spec.heads, token = first + place;
        attend(spec, token, task % spec.heads, index_.chooses(token) ? place : -1, scores_.row(worker));
      }
    }
    parts_.pool.barrier();
    index_.keep(worker, workers);
  });
}

void ReferenceBackend::attention(const AttentionSpec& spec) {
  const int64_t units = spec.heads + spec.kv_heads;
  split(parts_.pool, tokens_->count() * units,
        [&](int64_t task, int) { prepare_head(spec, task / units, task % units); });
  if (spec.index.layer >= 0) {
    attend_to_blocks(spec);
    return;
  }
  split(parts_.pool, tokens_->count() * spec.heads,
        [&](int64_t task, int worker) { attend(spec, task / spec.heads, task % spec.heads, -1, scores_.row(worker)); });
}

}  // namespace ft
