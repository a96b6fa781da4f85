// The family operations in reference numerics: fp32 activations that are never rounded to bf16, weights decoded to
// fp32, dot products summed in double, std::exp, an fp32 KV cache. What is compared with Hugging Face transformers in
// float32. Runs from the banks: strategies and slots do not exist here.
//
// A weight row is decoded once per step, for all its tokens, by the thread that owns it.
// Thread rule: one thread calls. No allocation after the constructor.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/backend_parts.h"
#include "engine/runtime/expert_pairs.h"
#include "engine/runtime/kv_cache.h"
#include "engine/runtime/reference_blocks.h"
#include "engine/runtime/reference_compressed.h"
#include "engine/runtime/state_cache.h"

namespace ft {

class ReferenceBackend final : public StepBackend {
 public:
  explicit ReferenceBackend(const BackendParts& parts);

  void step(const StepTokens& tokens, const StepBatch& batch) override {
    tokens_ = &tokens;
    parts_.family.forward(*this, parts_.weights, batch);
  }
  const float* logits_rows() const override { return logits_.row(0); }

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

 private:
  const RowBuffer<float>& normed(Slot from, const Norm& norm);
  void add_product(Slot into);
  void multiply(const PackedMatrix& matrix, const RowBuffer<float>& x, int64_t rows, const RowBuffer<float>& y,
                const float* bias = nullptr);
  const float* bias_of(const Linear& output) const {
    return output.bias.index >= 0 ? parts_.weights[output.bias].data() : nullptr;
  }
  void prepare_head(const AttentionSpec& spec, int64_t token, int64_t unit);
  const float* prepare_value(const AttentionSpec& spec, int64_t token, int64_t head);
  void attend(const AttentionSpec& spec, int64_t token, int64_t head, int64_t place, double* scores);
  void attend_to_blocks(const AttentionSpec& spec);
  void convolve(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t channel);
  void run_delta_head(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t head);
  void run_shared_expert(const SharedExpert& shared, const Glu& glu, const RowBuffer<float>& x);
  void stream_factors(const StreamsSpec& spec, int64_t token);
  void norm_streams(const float* x, VectorId weight, int streams, float eps, float* y);
  void read_gated_streams(const StreamsSpec& spec, Slot to);
  void write_gated_streams(const StreamsSpec& spec, Slot from);
  void gate_ngrams(const NgramAddSpec& spec, int64_t token);
  void convolve_ngrams(const NgramAddSpec& spec, const StepTokens::Run& run, int64_t channel);
  void route(const RouterSpec& router, int64_t token);
  void route_by_score(const RouterSpec& router, int64_t token);
  void gate_up_row(const ExpertLayout& layout, int expert, int64_t row, const RowBuffer<float>& x, int worker);
  void down_row(const ExpertLayout& layout, int expert, int64_t row, int worker);
  float* decoded(int worker, int index) { return decoded_.row(worker * 2 + index); }

  BackendParts parts_;
  std::vector<RopeTable> ropes_;
  ActivationBuffers buffers_;
  RowBuffer<float> normed_, product_;  // (max_tokens, hidden)
  RowBuffer<float> head_input_, logits_, router_logits_;
  RowBuffer<float> decoded_;  // (threads * 2) rows of the widest matrix
  RowBuffer<double> scores_;  // (threads) scores of max_context positions, then sums of head_dim
  KvCache<float> kv_;
  StateCache states_;
  CompressedAttention<ReferenceCompressedMath> compressed_;
  BlockIndex<ReferenceBlockMath> index_;
  int top_k_ = 0;
  ExpertPairs pairs_;
  std::vector<int32_t> ids_;              // (max_tokens, top_k)
  std::vector<float> weights_;            // (max_tokens, top_k)
  RowBuffer<float> activated_, outputs_;  // per pair: intermediate, hidden
  int moe_index_ = 0;                     // MoE layer at hand
  const StepTokens* tokens_ = nullptr;
};

}  // namespace ft
