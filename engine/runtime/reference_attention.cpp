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
  const float* cos = rope.cos.data() + tokens_->position[index] * rope.half;
  const float* sin = rope.sin.data() + tokens_->position[index] * rope.half;
  for (int64_t j = 0; j < rope.half; ++j) {
    const float a = x[j], b = x[j + rope.half];
    x[j] = a * cos[j] - b * sin[j];
    x[j + rope.half] = b * cos[j] + a * sin[j];
  }
  if (query) return;
  kv_.append(spec.kv_layer, tokens_->sequence[index], tokens_->position[index], head, x, value);
}

void ReferenceBackend::attend(const AttentionSpec& spec, int64_t token, int64_t head, double* scores) {
  const auto index = static_cast<size_t>(token);
  const int64_t kv_head = head / (spec.heads / spec.kv_heads);
  const float* q = buffers_[spec.gated ? Slot::kAttention : Slot::kQuery].row(token) + head * spec.head_dim;
  const float* keys = kv_.keys(spec.kv_layer, tokens_->sequence[index], kv_head);
  const float* values = kv_.values(spec.kv_layer, tokens_->sequence[index], kv_head);
  const int64_t stride = kv_.stride(spec.kv_layer), ring = kv_.ring(spec.kv_layer);
  const auto row_of = [&](int64_t position) { return (ring > 0 ? position % ring : position) * stride; };
  const int64_t length = tokens_->position[index] + 1;
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

void ReferenceBackend::attention(const AttentionSpec& spec) {
  const int64_t units = spec.heads + spec.kv_heads;
  split(parts_.pool, tokens_->count() * units,
        [&](int64_t task, int) { prepare_head(spec, task / units, task % units); });
  split(parts_.pool, tokens_->count() * spec.heads,
        [&](int64_t task, int worker) { attend(spec, task / spec.heads, task % spec.heads, scores_.row(worker)); });
}

}  // namespace ft
