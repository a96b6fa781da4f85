// The family operations on the host device in serve numerics: bf16 products over packed weights, work split over the
// pool. Arithmetic is per token (weights are decoded once for several), so prefill, decode, any batch and any chunking
// give the same bits; so do any thread count and ISA (DESIGN section 3).
//
// Thread rule: one thread calls. No allocation after the constructor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/experts/predicted_experts.h"
#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/backend_parts.h"
#include "engine/runtime/host_blocks.h"
#include "engine/runtime/host_compressed.h"
#include "engine/runtime/kv_cache.h"
#include "engine/runtime/moe_layer.h"
#include "engine/runtime/state_cache.h"
#include "engine/runtime/worker_marks.h"
#include "kernels/registry.h"

namespace ft {

class HostBackend final : public ServeBackend {
 public:
  // max_distinct: experts of one layer at the largest decode batch.
  HostBackend(const BackendParts& parts, const KernelTable& kernels, const MoeLayerOptions& moe, int64_t slots,
              int max_distinct);

  void step(const StepTokens& tokens, const StepBatch& batch) override;
  void dense_step(const StepTokens& tokens, const StepBatch& batch) override;
  void moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans, std::span<const MoeSpec> sites) override;
  const float* logits_rows() const override { return logits_.row(0); }

  SlotTable::Content cache_content() const override { return slots_.table().content(); }
  void restore_cache(const SlotTable::Content& content) override;
  void change_split(const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer) override {
    moe_layer_.change_split(fetch_of_misses, promote_bytes_per_layer);
  }
  void copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) override;
  void read_state(int sequence, std::span<float> state) const override { states_.read(sequence, state); }
  void write_state(int sequence, std::span<const float> state) override { states_.write(sequence, state); }

  void embed(const EmbedSpec& spec) override;
  void linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) override;
  void linear_add(Slot from, const Linear& output) override;
  void attention(const AttentionSpec& spec) override;
  void delta_net(const DeltaNetSpec& spec) override;
  void glu(const GluSpec& spec) override;
  void moe(const MoeSpec& spec) override;
  void logits(const LogitsSpec& spec) override;
  void norm(Slot from, const Norm& norm, Slot to) override;
  void add(const AddSpec& spec) override;
  void streams_read(const StreamsSpec& spec, Slot to) override;
  void streams_write(const StreamsSpec& spec, Slot from) override;
  void embed_ngrams(const NgramEmbedSpec& spec) override;
  void add_ngrams(const NgramAddSpec& spec) override;
  void compressed_attention(const CompressedAttentionSpec& spec) override;
  void grouped_linear(Slot from, MatrixId weight, int groups, Slot to) override;

  void add_counters(EngineCounters& counters) const override;
  void reset_counters() override;
  void describe(EngagedRecord& record) const override;

 private:
  // Below this many floats a row operation runs on the calling thread: starting the pool costs a few microseconds, the
  // time in which one core walks about this much.
  static constexpr int64_t kInlineFloats = 16384;

  // f(begin, end) over rows, on the pool when there is enough to do.
  template <class F>
  void for_rows(int64_t rows, int64_t work_per_row, F&& f) {
    if (rows * work_per_row <= kInlineFloats) {
      f(int64_t{0}, rows);
      return;
    }
    parts_.pool.run([&](int worker, int workers) {
      const Range part = split_range(rows, worker, workers);
      if (part.begin < part.end) f(part.begin, part.end);
    });
  }
  const RowBuffer<float>& normed(Slot from, const Norm& norm);
  void add_product(Slot into);
  void products(const RowBuffer<float>& from, std::initializer_list<Linear> outputs, const RowBuffer<float>* instead);
  void pack(const RowBuffer<float>& from, int64_t rows, int64_t cols);
  void multiply(const PackedMatrix& matrix, int64_t rows, Range tiles, const RowBuffer<float>& to);
  void multiply_split(const PackedMatrix& matrix, int64_t rows, const RowBuffer<float>& to);
  void route(const RouterSpec& router, int32_t* ids, float* weights);
  void route_by_score(const RouterSpec& router, int64_t row, int32_t* ids, float* weights);
  const int32_t* experts_of_token(const RouterSpec& router, int64_t token) const {
    return parts_.weights[router.by_token].row(tokens_->ids[static_cast<size_t>(token)]);
  }
  std::span<const int> predict_next(const MoeSpec& spec);
  const RowBuffer<float>& pack_rows(const MoeSpec& spec, const Norm& norm);
  void prepare_head(const AttentionSpec& spec, int64_t token, int64_t unit);
  const float* prepare_value(const AttentionSpec& spec, int64_t token, int64_t head);
  // Cached keys and values that follow each other: those of the sequence, or those that were gathered.
  struct KvRows {
    const bf16 *keys = nullptr, *values = nullptr;
    int64_t begin = 0, length = 0, ring = 0;
  };
  KvRows rows_in_cache(const AttentionSpec& spec, int64_t token, int64_t kv_head) const;
  KvRows gathered_rows(const AttentionSpec& spec, int64_t token, int64_t place, int64_t kv_head) const;
  void attend(const AttentionSpec& spec, int64_t token, int64_t first, int64_t last, const KvRows& rows);
  void attend_part(const AttentionSpec& spec, int64_t first_token, Range part, bool blocks);
  void attend_to_blocks(const AttentionSpec& spec, int worker, int workers);
  void gather(const AttentionSpec& spec, int64_t first, int64_t count, int worker, int workers);
  void convolve_head(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t head);
  void apply_delta_rule(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t head, int64_t column);
  void finish_delta_head(const DeltaNetSpec& spec, int64_t token, int64_t head);
  void run_shared_expert(const MoeSpec& spec, const RowBuffer<float>& x);
  void stream_products(const StreamsSpec& spec, int64_t count, int worker, int workers);
  void stream_factors(const StreamsSpec& spec, int64_t token);
  void norm_streams(const float* x, VectorId weight, int streams, float eps, float* y);
  void read_gated(const StreamsSpec& spec, int64_t token, int64_t column, int64_t cols, float* out);
  void read_gated_streams(const StreamsSpec& spec, Slot to);
  void gate_ngrams(const NgramAddSpec& spec, int64_t token);
  void convolve_ngrams(const NgramAddSpec& spec, const StepTokens::Run& run, int64_t channel);
  void write_streams(const StreamsSpec& spec, Slot from, int64_t token, int64_t column, int64_t cols);

  BackendParts parts_;
  const KernelTable& kernels_;
  std::vector<RopeTable> ropes_;
  ActivationBuffers buffers_;
  RowBuffer<uint32_t> packed_;         // (max_tokens) activations of the product at hand
  RowBuffer<float> normed_, product_;  // (max_tokens, hidden)
  std::optional<int> packed_by_;       // the norm of a MoE layer's rows in packed_
  std::vector<float> ones_;            // (max_head_dim) the weight of norms that have none
  RowBuffer<float> head_input_, logits_;
  RowBuffer<float> router_logits_, router_scratch_;
  int top_k_ = 0;
  std::vector<int32_t> ids_;    // (max_tokens, top_k)
  std::vector<float> weights_;  // (max_tokens, top_k)
  LookAhead look_ahead_ = LookAhead::kOff;
  std::vector<int32_t> predicted_ids_;  // (max_tokens, predictions) for the next layer
  PredictedExperts predicted_;
  std::vector<float> shared_weights_;  // (max_tokens)
  KvCache<bf16> kv_;
  StateCache states_;
  CompressedAttention<HostCompressedMath> compressed_;
  BlockIndex<HostBlockMath> index_;
  RowBuffer<bf16> gathered_;     // (tokens that choose blocks at a time) keys and values of theirs
  RowBuffer<uint32_t> grouped_;  // (groups * max_tokens) activations of a grouped product
  WorkerMarks marks_;
  ExpertSlots slots_;
  bool slots_dirty_ = false;  // filled behind the table's back
  MoeLayer moe_layer_;

  const StepTokens* tokens_ = nullptr;
  MoePlacement placement_ = MoePlacement::kDecode;
  const LayerPlan* given_ = nullptr;

  double cpu_wait_seconds_ = 0, attention_seconds_ = 0;  // of decode steps
};

}  // namespace ft
