#include "engine/runtime/host_backend.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/host/flush_denormals.h"

namespace ft {
namespace {

// Widest input of any product: the rows of packed_ hold it.
int64_t widest_input(const Family& family, const ModelWeights& weights) {
  int64_t cols = family.geometry().hidden;
  for (const PackedMatrix& matrix : weights.matrices) cols = std::max(cols, matrix.layout.cols);
  return cols;
}

// Keys and values of the tokens that one token attends to.
int64_t gathered_width(const BackendParts& parts, int64_t attended) {
  int64_t widest = 0;
  for (const KvLayer& layer : parts.family.geometry().kv) widest = std::max(widest, layer.elements());
  return attended * widest;
}

KvShape kv_shape(const BackendParts& parts) {
  const ModelGeometry& geometry = parts.family.geometry();
  return {geometry.kv, parts.sequences, parts.max_context, parts.max_tokens};
}

}  // namespace

HostBackend::HostBackend(const BackendParts& parts, const KernelTable& kernels, const MoeLayerOptions& moe,
                         int64_t slots, int max_distinct)
    : parts_(parts),
      kernels_(kernels),
      ropes_(parts.family.make_ropes(parts.max_context)),
      buffers_(parts.family, parts.max_tokens),
      packed_(parts.max_tokens, activation_words(widest_input(parts.family, parts.weights))),
      normed_(parts.max_tokens, parts.family.geometry().hidden),
      product_(parts.max_tokens, parts.family.geometry().hidden),
      ones_(static_cast<size_t>(parts.family.geometry().max_head_dim()), 1.0f),
      head_input_(parts.logits_rows, parts.family.geometry().hidden),
      logits_(parts.logits_rows, parts.family.geometry().vocab, nullptr, true),
      router_logits_(parts.max_tokens, parts.family.geometry().expert.experts),
      router_scratch_(parts.max_tokens, parts.family.geometry().expert.experts),
      top_k_(parts.family.geometry().expert.top_k),
      ids_(static_cast<size_t>(parts.max_tokens * top_k_)),
      weights_(ids_.size()),
      look_ahead_(moe.look_ahead),
      predicted_ids_(static_cast<size_t>(parts.max_tokens * std::max(top_k_, kMaxTracePredictions))),
      predicted_(parts.family.geometry().expert.experts),
      shared_weights_(static_cast<size_t>(parts.max_tokens)),
      kv_(kv_shape(parts), &parts.pool),
      states_(parts.family.geometry().state_floats, parts.sequences, &parts.pool),
      compressed_(parts, {kernels, parts.family.geometry().max_head_dim(), parts.deepseek_arithmetic}),
      index_(parts, {kernels, parts.family.geometry()}),
      gathered_(index_.group(), gathered_width(parts, index_.attended()), &parts.pool),
      grouped_(parts.family.geometry().output_groups * parts.max_tokens,
               activation_words(parts.family.geometry().output_group_width)),
      marks_(parts.pool.threads()),
      slots_(parts.weights.bank, slots,
             make_slot_policy(moe.cache_policy, parts.weights.bank.layers(), slots, max_distinct), moe.max_prefetches,
             moe.strategy == Strategy::kOffload, parts.pool),
      moe_layer_(moe, kernels, slots_, parts.pool, marks_) {
  if (moe.strategy != Strategy::kResident) return;
  slots_.table().fill_in_order();
  slots_.refill();
}

// Serve numerics flush denormals in every operation, those that run on this thread alone included.
void HostBackend::step(const StepTokens& tokens, const StepBatch& batch) {
  if (slots_dirty_) {
    slots_.refill();
    slots_dirty_ = false;
  }
  const FlushDenormals flush;
  tokens_ = &tokens;
  placement_ = tokens.decode ? MoePlacement::kDecode : MoePlacement::kPrefill;
  const double waited = parts_.pool.caller_wait_seconds();
  parts_.family.forward(*this, parts_.weights, batch);
  if (tokens.decode) cpu_wait_seconds_ += parts_.pool.caller_wait_seconds() - waited;
}

void HostBackend::dense_step(const StepTokens& tokens, const StepBatch& batch) {
  slots_.link().drain();  // any slot may be read: none may be under way
  const FlushDenormals flush;
  tokens_ = &tokens;
  placement_ = MoePlacement::kAllHits;
  parts_.family.forward(*this, parts_.weights, batch);
}

void HostBackend::moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans,
                             std::span<const MoeSpec> sites) {
  const FlushDenormals flush;
  tokens_ = &tokens;
  placement_ = MoePlacement::kGiven;
  for (const LayerPlan& plan : plans) {
    given_ = &plan;
    slots_dirty_ = slots_dirty_ || !given_->fetches.empty() || !given_->promotions.empty();
    moe(sites[static_cast<size_t>(plan.layer)]);
  }
}

void HostBackend::restore_cache(const SlotTable::Content& content) {
  slots_.table().restore(content);
  slots_.refill();
  slots_dirty_ = false;
}

void HostBackend::copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) {
  const auto* other = dynamic_cast<const HostBackend*>(&from);
  FT_CHECK(other != nullptr);
  kv_.copy_sequence(sequence, other->kv_, from_sequence, length);
  compressed_.copy_sequence(sequence, other->compressed_, from_sequence, length);
  index_.copy_sequence(sequence, other->index_, from_sequence, length);
  states_.copy_sequence(sequence, other->states_, from_sequence);
}

void HostBackend::embed(const EmbedSpec& spec) {
  const EmbeddingTable& embedding = parts_.weights[spec.table];
  const RowBuffer<float>& target = buffers_[spec.to];
  const float scale = round_to_bf16(spec.scale);
  for_rows(tokens_->count(), embedding.width, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const bf16* row = embedding.rows + tokens_->ids[static_cast<size_t>(token)] * embedding.width;
      float* out = target.row(token);
      for (int64_t i = 0; i < embedding.width; ++i) out[i] = to_float(row[i]) * scale;
      for (int copy = 1; copy < spec.copies; ++copy) std::copy_n(out, embedding.width, out + copy * embedding.width);
    }
  });
}

// The rows of `from`, or what the norm makes of them.
const RowBuffer<float>& HostBackend::normed(Slot from, const Norm& norm) {
  const RowBuffer<float>& source = buffers_[from];
  if (norm.weight.index < 0) return source;
  const std::span<const float> w = parts_.weights[norm.weight];
  const auto cols = static_cast<int64_t>(w.size());
  FT_CHECK(cols <= normed_.width());
  for_rows(tokens_->count(), cols, [&](int64_t begin, int64_t end) {
    kernels_.rmsnorm({source.row(begin), source.stride(), normed_.row(begin), normed_.stride(), end - begin, cols,
                      w.data(), norm.eps});
  });
  return normed_;
}

void HostBackend::norm(Slot from, const Norm& norm, Slot to) {
  const RowBuffer<float>&source = buffers_[from], &target = buffers_[to];
  const std::span<const float> w = parts_.weights[norm.weight];
  const auto cols = static_cast<int64_t>(w.size());
  for_rows(tokens_->count(), cols, [&](int64_t begin, int64_t end) {
    kernels_.rmsnorm({source.row(begin), source.stride(), target.row(begin), target.stride(), end - begin, cols,
                      w.data(), norm.eps});
  });
}

void HostBackend::add(const AddSpec& spec) {
  const RowBuffer<float>&from = normed(spec.from, spec.norm), &to = buffers_[spec.to];
  FT_CHECK(from.width() == to.width());
  const float scale = spec.scale.index < 0 ? 1.0f : parts_.weights[spec.scale].front();
  for_rows(tokens_->count(), to.width(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) kernels_.add({to.row(row), from.row(row), to.width(), scale});
  });
}

void HostBackend::pack(const RowBuffer<float>& from, int64_t rows, int64_t cols) {
  for_rows(rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.pack_activations({from.row(row), from.stride(), 1, cols, packed_.row(row)});
    }
  });
}

void HostBackend::multiply(const PackedMatrix& matrix, int64_t rows, Range tiles, const RowBuffer<float>& to) {
  MatvecArgs args;
  args.w = &matrix;
  args.x = const_cast<const uint32_t* const*>(packed_.rows());
  args.tokens = rows;
  args.tile_begin = tiles.begin;
  args.tile_end = tiles.end;
  args.y = to.rows();
  kernels_.matvec[static_cast<int>(matrix.layout.format)](args);
}

void HostBackend::multiply_split(const PackedMatrix& matrix, int64_t rows, const RowBuffer<float>& to) {
  parts_.pool.run([&](int worker, int workers) {
    const Range tiles = split_range(matrix.layout.row_tiles, worker, workers);
    if (tiles.begin == tiles.end) return;
    marks_.mark(worker);
    multiply(matrix, rows, tiles, to);
  });
}

void HostBackend::linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  products(normed(from, norm), outputs, nullptr);
}

void HostBackend::linear_add(Slot from, const Linear& output) {
  products(buffers_[from], {output}, &product_);
  add_product(output.to);
}

// One packed input, the row tiles of all outputs in one line, cut into contiguous parts. Results go to the outputs'
// slots, or to `instead`.
void HostBackend::products(const RowBuffer<float>& from, std::initializer_list<Linear> outputs,
                           const RowBuffer<float>* instead) {
  const int64_t rows = tokens_->count();
  int64_t total = 0;
  for (const Linear& output : outputs) total += parts_.weights[output.weight].layout.row_tiles;
  pack(from, rows, parts_.weights[outputs.begin()->weight].layout.cols);
  parts_.pool.run([&](int worker, int workers) {
    const Range part = split_range(total, worker, workers);
    int64_t base = 0;
    for (const Linear& output : outputs) {
      const PackedMatrix& matrix = parts_.weights[output.weight];
      const int64_t count = matrix.layout.row_tiles;
      const Range tiles{std::clamp<int64_t>(part.begin - base, 0, count),
                        std::clamp<int64_t>(part.end - base, 0, count)};
      base += count;
      if (tiles.begin == tiles.end) continue;
      marks_.mark(worker);
      const RowBuffer<float>& to = instead != nullptr ? *instead : buffers_[output.to];
      multiply(matrix, rows, tiles, to);
      if (output.bias.index < 0) continue;
      const std::span<const float> bias = parts_.weights[output.bias];
      const int64_t first = tiles.begin * kRowsPerTile;
      const int64_t last = std::min(tiles.end * kRowsPerTile, matrix.layout.rows);
      for (int64_t token = 0; token < rows; ++token) {
        kernels_.add({to.row(token) + first, bias.data() + first, last - first});
      }
    }
  });
}

void HostBackend::glu(const GluSpec& spec) {
  const RowBuffer<float>&g = buffers_[spec.gate], &u = buffers_[spec.up], &y = buffers_[spec.to];
  for_rows(tokens_->count(), spec.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.glu({g.row(row), u.row(row), y.row(row), spec.width, spec.glu});
    }
  });
}

void HostBackend::add_product(Slot into) {
  const RowBuffer<float>& x = buffers_[into];
  FT_CHECK(x.width() == product_.width());
  for_rows(tokens_->count(), x.width(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) kernels_.add({x.row(row), product_.row(row), x.width()});
  });
}

void HostBackend::logits(const LogitsSpec& spec) {
  const int64_t cols = head_input_.width();
  const auto rows = static_cast<int64_t>(tokens_->logits_tokens.size());
  if (rows == 0) return;
  const RowBuffer<float>& source = buffers_[spec.from];
  for_rows(rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = source.row(tokens_->logits_tokens[static_cast<size_t>(row)]);
      if (spec.norm.weight.index < 0) {
        std::copy_n(x, cols, head_input_.row(row));
      } else {
        kernels_.rmsnorm(
            {x, cols, head_input_.row(row), cols, 1, cols, parts_.weights[spec.norm.weight].data(), spec.norm.eps});
      }
    }
  });
  pack(head_input_, rows, cols);
  multiply_split(parts_.weights[spec.head], rows, logits_);
  if (spec.softcap == 0) return;
  for_rows(rows * logits_.width(), 1, [&](int64_t begin, int64_t end) {  // rows without a gap: one line of logits
    kernels_.softcap({logits_.row(0) + begin, end - begin, spec.softcap});
  });
}

void HostBackend::add_counters(EngineCounters& counters) const {
  moe_layer_.add_counters(counters);
  counters.cpu_wait_seconds += cpu_wait_seconds_;
  counters.attention_seconds += attention_seconds_;
}

void HostBackend::reset_counters() {
  cpu_wait_seconds_ = attention_seconds_ = 0;
  marks_.clear();
  moe_layer_.reset_counters();
}

void HostBackend::describe(EngagedRecord& record) const {
  record.threads_worked = marks_.count();
  record.slots = slots_.slots();
  record.mechanism = record.slots > 0 ? "copy thread" : "none";
}

}  // namespace ft
