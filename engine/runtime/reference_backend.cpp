#include "engine/runtime/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/runtime/reference_math.h"
#include "kernels/base/error.h"

namespace ft {

using reference_math::decode;
using reference_math::dot;
using reference_math::glu_value;
using reference_math::rmsnorm_row;
using reference_math::split;

namespace {

int64_t widest_input(const BackendParts& parts) {
  const ExpertGeometry& expert = parts.family.geometry().expert;
  int64_t cols = std::max(expert.hidden, expert.intermediate);
  for (const PackedMatrix& matrix : parts.weights.matrices) cols = std::max(cols, matrix.layout.cols);
  return cols;
}

}  // namespace

ReferenceBackend::ReferenceBackend(const BackendParts& parts)
    : parts_(parts),
      ropes_(parts.family.make_ropes(parts.max_context)),
      buffers_(parts.family, parts.max_tokens),
      normed_(parts.max_tokens, parts.family.geometry().hidden),
      product_(parts.max_tokens, parts.family.geometry().hidden),
      head_input_(parts.logits_rows, parts.family.geometry().hidden),
      logits_(parts.logits_rows, parts.family.geometry().vocab, nullptr, true),
      router_logits_(parts.max_tokens, parts.family.geometry().expert.experts),
      decoded_(parts.pool.threads() * 2, widest_input(parts)),
      scores_(parts.pool.threads(), parts.max_context + parts.family.geometry().max_head_dim()),
      kv_({parts.family.geometry().kv, parts.sequences, parts.max_context}),
      top_k_(parts.family.geometry().expert.top_k),
      pairs_(parts.family.geometry().expert.experts, top_k_, parts.max_tokens),
      ids_(static_cast<size_t>(parts.max_tokens * top_k_)),
      weights_(ids_.size()),
      activated_(parts.max_tokens * top_k_, parts.family.geometry().expert.intermediate),
      outputs_(parts.max_tokens * top_k_, parts.family.geometry().expert.hidden) {}

void ReferenceBackend::embed(const EmbedSpec& spec) {
  const EmbeddingTable& embedding = parts_.weights[spec.table];
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    const bf16* row = embedding.rows + tokens_->ids[static_cast<size_t>(token)] * embedding.width;
    std::transform(row, row + embedding.width, buffers_[spec.to].row(token),
                   [&](bf16 value) { return to_float(value) * spec.scale; });
  }
}

// The rows of `from`, or what the norm makes of them.
const RowBuffer<float>& ReferenceBackend::normed(Slot from, const Norm& norm) {
  if (norm.weight.index < 0) return buffers_[from];
  const std::span<const float> w = parts_.weights[norm.weight];
  const auto cols = static_cast<int64_t>(w.size());
  FT_CHECK(cols <= normed_.width());
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    rmsnorm_row(buffers_[from].row(token), w.data(), norm.eps, cols, normed_.row(token));
  }
  return normed_;
}

void ReferenceBackend::add_product(Slot into) {
  const RowBuffer<float>& x = buffers_[into];
  FT_CHECK(x.width() == product_.width());
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    for (int64_t i = 0; i < x.width(); ++i) x.row(token)[i] += product_.row(token)[i];
  }
}

void ReferenceBackend::multiply(const PackedMatrix& matrix, const RowBuffer<float>& x, int64_t rows,
                                const RowBuffer<float>& y, const float* bias) {
  split(parts_.pool, matrix.layout.rows, [&](int64_t row, int worker) {
    float* w = decoded(worker, 0);
    decode(matrix, row, w);
    for (int64_t token = 0; token < rows; ++token) {
      const double sum = dot(w, x.row(token), matrix.layout.cols);
      y.row(token)[row] = static_cast<float>(bias != nullptr ? sum + bias[row] : sum);
    }
  });
}

void ReferenceBackend::linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  const RowBuffer<float>& x = normed(from, norm);
  for (const Linear& output : outputs) {
    multiply(parts_.weights[output.weight], x, tokens_->count(), buffers_[output.to], bias_of(output));
  }
}

void ReferenceBackend::linear_add(Slot from, const Linear& output) {
  multiply(parts_.weights[output.weight], buffers_[from], tokens_->count(), product_, bias_of(output));
  add_product(output.to);
}

void ReferenceBackend::prepare_head(const AttentionSpec& spec, int64_t token, int64_t unit) {
  const auto index = static_cast<size_t>(token);
  const bool query = unit < spec.heads;
  const int64_t head = query ? unit : unit - spec.heads;
  float* x = buffers_[query ? Slot::kQuery : Slot::kKey].row(token) + head * spec.head_dim;
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
  const float* value = buffers_[Slot::kValue].row(token) + head * spec.head_dim;
  kv_.append(spec.kv_layer, tokens_->sequence[index], tokens_->position[index], head, x, value);
}

void ReferenceBackend::attend(const AttentionSpec& spec, int64_t token, int64_t head, double* scores) {
  const auto index = static_cast<size_t>(token);
  const int64_t kv_head = head / (spec.heads / spec.kv_heads);
  const float* q = buffers_[Slot::kQuery].row(token) + head * spec.head_dim;
  const float* keys = kv_.keys(spec.kv_layer, tokens_->sequence[index], kv_head);
  const float* values = kv_.values(spec.kv_layer, tokens_->sequence[index], kv_head);
  const int64_t stride = kv_.stride(spec.kv_layer);
  const int64_t length = tokens_->position[index] + 1;
  const int64_t begin = spec.window > 0 ? std::max<int64_t>(0, length - spec.window) : 0;
  double largest = -HUGE_VAL, sum = 0;
  for (int64_t t = begin; t < length; ++t) {
    scores[t] = dot(q, keys + t * stride, spec.head_dim) * static_cast<double>(spec.scale);
    largest = std::max(largest, scores[t]);
  }
  for (int64_t t = begin; t < length; ++t) sum += scores[t] = std::exp(scores[t] - largest);
  double* mixed = scores + parts_.max_context;  // (head_dim)
  std::fill_n(mixed, spec.head_dim, 0.0);
  for (int64_t t = begin; t < length; ++t) {
    const float* value = values + t * stride;
    for (int64_t d = 0; d < spec.head_dim; ++d) mixed[d] += scores[t] * static_cast<double>(value[d]);
  }
  float* out = buffers_[Slot::kAttention].row(token) + head * spec.head_dim;
  for (int64_t d = 0; d < spec.head_dim; ++d) out[d] = static_cast<float>(mixed[d] / sum);
}

void ReferenceBackend::attention(const AttentionSpec& spec) {
  const int64_t units = spec.heads + spec.kv_heads;
  split(parts_.pool, tokens_->count() * units,
        [&](int64_t task, int) { prepare_head(spec, task / units, task % units); });
  split(parts_.pool, tokens_->count() * spec.heads,
        [&](int64_t task, int worker) { attend(spec, task / spec.heads, task % spec.heads, scores_.row(worker)); });
}

void ReferenceBackend::glu(const GluSpec& spec) {
  const RowBuffer<float>&g = buffers_[spec.gate], &u = buffers_[spec.up], &y = buffers_[spec.to];
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    for (int64_t i = 0; i < spec.width; ++i) y.row(token)[i] = glu_value(spec.glu, g.row(token)[i], u.row(token)[i]);
  }
}

void ReferenceBackend::logits(const LogitsSpec& spec) {
  const std::span<const float> w = parts_.weights[spec.norm.weight];
  const auto rows = static_cast<int64_t>(tokens_->logits_tokens.size());
  for (int64_t row = 0; row < rows; ++row) {
    rmsnorm_row(buffers_[spec.from].row(tokens_->logits_tokens[static_cast<size_t>(row)]), w.data(), spec.norm.eps,
                static_cast<int64_t>(w.size()), head_input_.row(row));
  }
  multiply(parts_.weights[spec.head], head_input_, rows, logits_);
}

}  // namespace ft
