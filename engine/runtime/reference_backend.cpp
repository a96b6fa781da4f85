#include "engine/runtime/reference_backend.h"

#include <algorithm>
#include <cmath>

#include "engine/runtime/reference_math.h"
#include "kernels/base/error.h"

namespace ft {

using namespace reference_math;

namespace {

int64_t widest_input(const BackendParts& parts) {
  const ExpertGeometry& expert = parts.family.geometry().expert;
  int64_t cols = std::max(expert.hidden, expert.intermediate);
  for (const PackedMatrix& matrix : parts.weights.matrices) cols = std::max(cols, matrix.layout.cols);
  return cols;
}

ReferenceCompressedMath compressed_math(const BackendParts& parts) {
  int64_t attended = 0;
  for (const CompressedLayer& layer : parts.family.geometry().compressed) {
    if (layer.blocks) continue;
    attended = std::max(attended, layer.attended(parts.max_context));
  }
  if (attended == 0) return {};
  return {parts.pool.threads(), attended, parts.family.geometry().max_head_dim(), parts.deepseek_arithmetic};
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
      decoded_(parts.pool.threads() * int64_t{2}, widest_input(parts)),
      scores_(parts.pool.threads(), parts.max_context + parts.family.geometry().max_head_dim()),
      kv_({parts.family.geometry().kv, parts.sequences, parts.max_context, parts.max_tokens}),
      states_(parts.family.geometry().state_floats, parts.sequences),
      compressed_(parts, compressed_math(parts)),
      index_(parts, {}),
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
    float* out = buffers_[spec.to].row(token);
    std::transform(row, row + embedding.width, out, [&](bf16 value) { return to_float(value) * spec.scale; });
    for (int copy = 1; copy < spec.copies; ++copy) std::copy_n(out, embedding.width, out + copy * embedding.width);
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

void ReferenceBackend::norm(Slot from, const Norm& norm, Slot to) {
  const std::span<const float> w = parts_.weights[norm.weight];
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    rmsnorm_row(buffers_[from].row(token), w.data(), norm.eps, static_cast<int64_t>(w.size()), buffers_[to].row(token));
  }
}

void ReferenceBackend::add(const AddSpec& spec) {
  const RowBuffer<float>&from = normed(spec.from, spec.norm), &to = buffers_[spec.to];
  FT_CHECK(from.width() == to.width());
  const float scale = spec.scale.index < 0 ? 1.0f : parts_.weights[spec.scale].front();
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    for (int64_t i = 0; i < to.width(); ++i) to.row(token)[i] = (to.row(token)[i] + from.row(token)[i]) * scale;
  }
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

void ReferenceBackend::glu(const GluSpec& spec) {
  const RowBuffer<float>&g = buffers_[spec.gate], &u = buffers_[spec.up], &y = buffers_[spec.to];
  for (int64_t token = 0; token < tokens_->count(); ++token) {
    for (int64_t i = 0; i < spec.width; ++i) y.row(token)[i] = glu_value(spec.glu, g.row(token)[i], u.row(token)[i]);
  }
}

void ReferenceBackend::logits(const LogitsSpec& spec) {
  const int64_t cols = head_input_.width();
  const auto rows = static_cast<int64_t>(tokens_->logits_tokens.size());
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = buffers_[spec.from].row(tokens_->logits_tokens[static_cast<size_t>(row)]);
    if (spec.norm.weight.index < 0) {
      std::copy_n(x, cols, head_input_.row(row));
    } else {
      rmsnorm_row(x, parts_.weights[spec.norm.weight].data(), spec.norm.eps, cols, head_input_.row(row));
    }
  }
  multiply(parts_.weights[spec.head], head_input_, rows, logits_);
  if (spec.softcap == 0) return;
  const std::span<float> all(logits_.row(0), static_cast<size_t>(rows * logits_.width()));  // rows without a gap
  for (float& x : all) x = spec.softcap * std::tanh(x / spec.softcap);
}

}  // namespace ft
