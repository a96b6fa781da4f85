// The class behind make_cuda_backend (cuda_backend.h), shared by cuda_backend.cpp (steps) and the files with the
// family's operations as launches: cuda_operations.cpp, cuda_moe_operations.cpp,
// cuda_sequence_operations.cpp, cuda_compressed_operations.cpp, cuda_gated_operations.cpp, cuda_prefill_operations.cpp.
#pragma once

#include <array>
#include <vector>

#include "engine/runtime/cuda/compressed_memory.h"
#include "engine/runtime/cuda/cuda_backend.h"
#include "engine/runtime/cuda/cuda_moe.h"
#include "engine/runtime/cuda/cuda_prefill.h"
#include "engine/runtime/cuda/ngram_inputs.h"
#include "engine/runtime/cuda/sequence_memory.h"
#include "engine/runtime/worker_marks.h"
#include "kernels/cuda/blocks.h"

namespace ft {

// What a step reads, one block that is copied in at once. Offsets for `tokens` tokens, in this order; the choices that
// are forced, and with look-ahead what a trace predicts, come last and are copied for decode steps only.
struct InputLayout {
  int64_t position = 0, ids = 0, sequence = 0, rows = 0, forced = 0, choices = 0, predicted = 0, bytes = 0;

  InputLayout(int64_t tokens, int64_t layers_of_choices, int top_k, int predictions) {
    ids = tokens * 8;
    sequence = ids + tokens * 4;
    rows = sequence + tokens * 4;
    forced = rows + tokens * 4;
    choices = forced + 4;
    predicted = choices + layers_of_choices * tokens * top_k * 4;
    bytes = (predicted + layers_of_choices * tokens * predictions * 4 + 15) / 16 * 16;  // begin_step's unit
  }
};

class CudaBackend final : public ServeBackend {
 public:
  explicit CudaBackend(const CudaBackendParts& parts);
  ~CudaBackend() override;

  void step(const StepTokens& tokens, const StepBatch& batch) override;
  void dense_step(const StepTokens& tokens, const StepBatch& batch) override;
  void moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans, std::span<const MoeSpec> sites) override;
  const float* logits_rows() const override { return logits_host_.as_host<float>(); }
  const LargestLogit* largest_logits() const override {
    return decode_ ? largest_host_.as_host<LargestLogit>() : nullptr;
  }
  SlotTable::Content cache_content() const override { return moe_.content(); }
  void restore_cache(const SlotTable::Content& content) override {
    moe_.restore(content);
    slots_dirty_ = false;
  }
  void change_split(const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer) override;
  void copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) override;
  void read_state(int sequence, std::span<float> state) const override;
  void write_state(int sequence, std::span<const float> state) override;
  void add_counters(EngineCounters& counters) const override;
  void reset_counters() override;
  void describe(EngagedRecord& record) const override;

  void embed(const EmbedSpec& spec) override;
  void linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) override;
  void linear_add(Slot from, const Linear& output) override;
  void attention(const AttentionSpec& spec) override;
  void delta_net(const DeltaNetSpec& spec) override;
  void streams_read(const StreamsSpec& spec, Slot to) override;
  void streams_write(const StreamsSpec& spec, Slot from) override;
  void embed_ngrams(const NgramEmbedSpec& spec) override;
  void add_ngrams(const NgramAddSpec& spec) override;
  void compressed_attention(const CompressedAttentionSpec& spec) override;
  void grouped_linear(Slot from, MatrixId weight, int groups, Slot to) override;
  void glu(const GluSpec& spec) override;
  void moe(const MoeSpec& spec) override;
  void logits(const LogitsSpec& spec) override;
  void norm(Slot from, const Norm& norm, Slot to) override;
  void add(const AddSpec& spec) override;

 private:
  struct Rows {
    float* data = nullptr;
    int64_t width = 0;
  };
  Rows rows(Slot slot) const { return slots_[static_cast<size_t>(slot)]; }
  InputLayout inputs() const {
    return {count_, placement_ == cuda::Placement::kTable && !decode_ ? 0 : moe_layer_count_, top_k_, predictions_};
  }
  template <class T>
  T* input(int64_t offset) const {
    return reinterpret_cast<T*>(inputs_.data() + offset);
  }
  template <class T>
  T* host_input(int64_t offset) const {
    return reinterpret_cast<T*>(inputs_host_.host() + offset);
  }
  cuda::AttentionPrepareArgs prepare_args(const AttentionSpec& spec) const;
  cuda::CompressedArgs compressed_args(const CompressedAttentionSpec& spec) const;
  cuda::CompressedArgs compressed_step(int layer, int rope, float norm_eps) const;
  cuda::BlocksArgs blocks_args(const AttentionSpec& spec) const;
  cuda::AttentionArgs attention_of(const cuda::CompressedGroup& group) const;
  void attend_to_cache(const AttentionSpec& spec, const cuda::AttentionPrepareArgs& prepare);
  void attend_to_blocks(const AttentionSpec& spec);
  void attend_to_gathered(const AttentionSpec& spec, const cuda::BlocksArgs& args, int64_t first, int64_t end);
  void read_gated_streams(const StreamsSpec& spec, Slot to);
  cuda::MatvecInput input_of(Slot from, const Norm& norm) const;
  cuda::MatvecOutput output_of(const Linear& output, bool add) const;
  const float* vector_or_null(VectorId id) const { return id.index < 0 ? nullptr : (*weights_)[id]; }
  void softcap(int64_t rows, float cap);  // of the logits
  // cuda_moe_operations.cpp
  cuda::RouterArgs router_choice(const RouterSpec& router) const;
  CudaMoeCall moe_call(const MoeSpec& spec) const;
  CudaSharedExpert shared_expert(const MoeSpec& spec) const;
  void prefill_moe(const MoeSpec& spec);
  void prefill_route(const MoeSpec& spec, const CudaMoeCall& call);
  void prefill_shared(const CudaSharedExpert& shared);

  void begin(const StepTokens& tokens, bool decode, cuda::Placement placement);
  void fill_inputs(bool forced);
  void fill_choices();
  void launch_forward();
  void launch_end(int64_t rows);
  void launch_layers(std::span<const MoeSpec> sites, std::span<const LayerPlan> plans);
  void capture_steps();
  cuda::Graph capture_forward(int64_t tokens, cuda::Placement placement);
  // As finish_step counts: 0 is skipped when the number wraps.
  void next_step() { step_number_ = step_number_ == UINT32_MAX ? 1 : step_number_ + 1; }
  void run(const cuda::Graph& graph);
  void require_answered();
  void wait_until_finished();
  // cuda_prefill_operations.cpp
  void prefill_step(const StepBatch& batch);
  void prefill_pack(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, const Norm& norm);
  void prefill_linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs);
  void prefill_linear_add(Slot from, const Linear& output);
  void prefill_product(const uint32_t* words, const cuda::MatvecOutput& output, int64_t tokens);
  void prefill_attend(const AttentionSpec& spec);
  void prefill_logits(const LogitsSpec& spec);
  void keep_wanted_logits();

  BackendParts parts_;
  const EngineConfig& config_;
  std::shared_ptr<const DeviceWeights> weights_;
  cuda::Stream main_;
  WorkerMarks marks_;
  int top_k_ = 0;
  int predictions_ = 0;  // per token and layer, kMaxPlanTopK with look-ahead
  int64_t moe_layer_count_ = 0, vocab_ = 0;

  cuda::DeviceBuffer router_packed_, shared_packed_, token_gates_;  // of MoE layers with two norms; of shared experts
  cuda::DeviceBuffer activations_, packed_, head_input_, logits_, router_logits_, ids_, expert_weights_, end_words_;
  cuda::DeviceBuffer delta_ready_;
  cuda::PinnedBuffer largest_host_;
  cuda::DeviceBuffer inputs_;
  cuda::PinnedBuffer inputs_host_, logits_host_, chosen_;  // chosen_: (layers, max_tokens, top_k)
  std::array<Rows, kSlotCount> slots_{};
  SequenceMemory sequences_;
  CompressedMemory compressed_;
  NgramInputs ngrams_;
  CudaMoe moe_;
  CudaPrefill prefill_;

  // The step at hand.
  const StepTokens* tokens_ = nullptr;
  StepBatch batch_;
  int64_t count_ = 0;
  bool decode_ = false;
  cuda::Placement placement_ = cuda::Placement::kTable;
  bool slots_dirty_ = false;
  uint32_t step_number_ = 0;

  std::vector<cuda::Graph> graphs_, dense_graphs_, sweep_graphs_;  // by tokens - 1
};

}  // namespace ft
