// Experts and attention of a prefill chunk on the device: what the whole chunk needs is laid out before its first
// launch, so that no layer waits for the host.
//
// The slot table is neither asked nor changed: experts that were in slots when the chunk began are read there, the
// others come through two staging halves, which the copy engine fills from the bank in order of layers while the tensor
// cores work. A chunk with many tokens uses nearly every expert, so all of a layer's are brought without knowing the
// choices, layer after layer; a short one, or one whose choices are forced, brings only those that are chosen, which
// for a router's choices costs a synchronization per layer. What is brought and from where never changes the
// arithmetic. Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/runtime/cuda/cuda_moe.h"
#include "kernels/cuda/delta_net.h"
#include "kernels/cuda/prefill.h"

namespace ft {

class CudaPrefill {
 public:
  CudaPrefill(const CudaBackendParts& parts, cuda::Stream& main, CudaMoe& moe);
  ~CudaPrefill();

  // Looks at what is in slots, and starts to upload. `forced_ids`: the choices of every MoE layer, (max_tokens, top_k)
  // each, or null: the router's.
  void begin_chunk(const StepTokens& tokens, const int32_t* forced_ids);
  // The router's choices have to be on the host when layer() is called.
  bool needs_ids() const { return needs_ids_; }
  // The layer's experts, merged with the shared expert's rows into call.to. host_ids: (tokens, top_k) as call.ids has
  // them; null unless needs_ids().
  void layer(const CudaMoeCall& call, const int32_t* host_ids);

  // Query rows of the chunk for prefill_attention.
  const cuda::PrefillQueries* queries() const { return reinterpret_cast<cuda::PrefillQueries*>(upload_.data()); }
  int query_tiles() const { return query_tiles_; }
  // The chunk's runs, for delta_net.
  const cuda::SequenceRun* runs() const {
    return reinterpret_cast<const cuda::SequenceRun*>(upload_.data() + runs_offset_);
  }

 private:
  struct Half {
    cuda::Event arrived, computed;
    bool used = false;
  };
  // Items of one layer: experts in slots, then those that are streamed, then those that nothing goes through.
  struct LayerItems {
    int in_slots = 0;
    int64_t first_group = 0;  // of the engine's life: the staging half goes by it
    std::vector<int> streamed;
  };
  void lay_out_queries(const StepTokens& tokens);
  void lay_out_layer(int layer, const int32_t* ids, int64_t pairs);
  void upload_layer(int layer);
  void stream_group(const cuda::PrefillExpertArgs& args, int layer, int64_t group, size_t begin, size_t end);
  void compute(cuda::PrefillExpertArgs args, size_t begin, size_t end);
  const std::byte* staged(int layer, size_t index) const;

  int64_t layer_bytes() const {  // on 16 bytes
    return (bank_.experts() * static_cast<int64_t>(sizeof(std::byte*) + sizeof(int32_t)) + 15) / 16 * 16;
  }
  int64_t layer_offset(int layer) const { return queries_bytes_ + layer * layer_bytes(); }

  const DeviceWeights& weights_;
  const ExpertBank& bank_;
  cuda::Stream& main_;
  cuda::Stream copies_;
  CudaMoe& moe_;
  int top_k_ = 0;
  int64_t max_tokens_ = 0, max_pairs_ = 0;
  int64_t half_bytes_ = 0;
  const int32_t* slots_of_keys_ = nullptr;
  bool needs_ids_ = false;
  int query_tiles_ = 0;
  int64_t next_group_ = 0;
  std::vector<LayerItems> items_;  // per MoE layer
  std::vector<uint8_t> chosen_;    // per expert
  cuda::DeviceBuffer staging_;
  std::array<Half, 2> halves_;

  // [query tiles][runs][layer: blobs, then experts, by item]
  int64_t runs_offset_ = 0, queries_bytes_ = 0;  // queries_bytes_: tiles and runs
  cuda::PinnedBuffer upload_host_;
  cuda::DeviceBuffer upload_, lists_memory_;
  cuda::PrefillLists lists_;
};

}  // namespace ft
