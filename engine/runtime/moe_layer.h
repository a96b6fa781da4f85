// One MoE layer on the host device: where each expert runs, in which order, and the merge.
//
// The same kernels run on the same packed blob wherever an expert's weights are (bank, slot, staging buffer), each
// expert sees only the rows routed to it, and outputs are merged in top-k order: the result is the same bits for every
// strategy, cache content and thread count. On the host device hits and CPU experts share the cores, so they are one
// group of work; only the link runs beside them.
//
// Decode: the slot table plans, fetches are enqueued, behind them what is prefetched for the next layer, then
// promotions; hits and CPU experts are computed while the link copies; fetched experts, and hits whose prefetch is
// still under way, follow as they arrive. Prefill: a prompt touches most experts of a layer once, so a short prompt
// would throw the decode cache out for blobs that are not used again. The table is therefore neither asked nor changed:
// experts that happen to be in slots are read there, the others run from the bank (cpu, hybrid) or are streamed through
// two staging buffers (offload). Thread rule: one thread calls. No allocation after the constructor.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_config.h"
#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/counters.h"
#include "engine/runtime/expert_pairs.h"
#include "engine/runtime/expert_slots.h"
#include "engine/runtime/expert_work.h"
#include "engine/runtime/worker_marks.h"
#include "kernels/registry.h"

namespace ft {

enum class MoePlacement : uint8_t {
  kDecode,   // by the slot table, which is updated
  kPrefill,  // slots read-only, the rest from bank or staging
  kGiven,    // by a plan from outside (layer_sweep); the table is not touched
  kAllHits,  // every expert from some slot, whatever it holds (dense)
};

// What is asked of one layer. Rows are the step's tokens.
struct MoeCall {
  int layer = 0;  // MoE layer
  int64_t tokens = 0;
  const uint32_t* const* x = nullptr;  // (tokens) packed activations of `hidden`
  const int32_t* ids = nullptr;        // (tokens, top_k); -1, trailing only: no expert
  const float* weights = nullptr;      // (tokens, top_k)
  // Null, or an expert's output for every token and its weights: merged after the routed ones.
  float* const* shared = nullptr;         // (tokens) rows of hidden
  const float* shared_weights = nullptr;  // (tokens)
  float* const* out = nullptr;            // (tokens) rows of hidden
  MoePlacement placement = MoePlacement::kDecode;
  const LayerPlan* given = nullptr;  // kGiven
  std::span<const int> predicted;    // kDecode: distinct experts that the next layer is expected to use, best first
};

struct MoeLayerOptions {
  int top_k = 0;
  int64_t max_tokens = 0;
  Strategy strategy = Strategy::kOffload;
  SplitTable fetch_of_misses;
  int64_t promote_bytes_per_layer = 0;
  CachePolicy cache_policy = CachePolicy::kLrfu;
  LookAhead look_ahead = LookAhead::kOff;
  int max_prefetches = 0;
};

class MoeLayer {
 public:
  MoeLayer(const MoeLayerOptions& options, const KernelTable& kernels, ExpertSlots& slots, WorkerPool& pool,
           WorkerMarks& marks);
  // The layer in two halves, so that something can be computed while the link copies: start places the experts and
  // enqueues copies, finish computes and merges. What `call` points to must be there in finish; ids already in start.
  void start(const MoeCall& call);
  void finish();
  // What misses do from the next decode step on; room for every split was made. Prefill's placement stays.
  void change_split(const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer);

  // Adds this layer's part: experts, bytes, misses, link waits. See EngineCounters.
  void add_counters(EngineCounters& counters) const;
  void reset_counters();

 private:
  struct Pending {  // in a slot that is still being filled
    int expert = -1;
    int64_t slot = -1;
    Link::Ticket ticket = Link::kNoTicket;
  };
  struct Group {
    size_t begin = 0, end = 0;
  };

  void place_by_plan(const LayerPlan& plan, std::span<const ExpertSlot> prefetches);
  void place_prefill();
  void place_all_hits();
  void add_item(int expert, const std::byte* blob, Link::Ticket ticket = Link::kNoTicket);
  void add_pending();
  void add_from_slot(int expert, int64_t slot);  // ready, or pending while its copy is under way
  void point_pairs();
  void count(const LayerPlan& plan);
  void prefetch();

  Group next_group(size_t begin);     // waits for the link
  void stage_ahead(size_t computed);  // keeps the staging buffers filling; items before `computed` are done
  void compute(int worker, int workers);
  void merge(int worker, int workers) const;

  MoeLayerOptions options_;
  const KernelTable& kernels_;
  ExpertSlots& slots_;
  WorkerPool& pool_;

  MoeCall call_;
  const ExpertLayout* layout_ = nullptr;  // of the current layer
  ExpertPairs pairs_;
  LayerPlan plan_;
  std::vector<ExpertSlot> prefetches_;
  std::vector<ExpertItem> items_;      // ready ones, then the pending ones in order of arrival
  std::vector<Link::Ticket> tickets_;  // of items_
  std::vector<Pending> pending_;       // of the layer being placed
  size_t ready_count_ = 0;
  size_t first_staged_ = 0;  // items from here on come through the staging buffers
  size_t staged_ = 0;        // of them, how many copies were enqueued
  double waited_ = 0;        // for the link, before this layer
  Group group_;              // written by worker 0 between barriers

  ExpertWork work_;                       // rows in order of experts
  RowBuffer<float> outputs_;              // (max_tokens * top_k) rows of hidden
  std::vector<const float*> y_of_token_;  // (max_tokens * top_k) in order of tokens: for the merge

  uint64_t hits_ = 0, fetched_ = 0, cpu_ = 0, promoted_ = 0, bytes_fetched_ = 0, bytes_cpu_ = 0;
  uint64_t predicted_ = 0, prefetched_ = 0, useful_ = 0, late_ = 0;
  double decode_link_wait_seconds_ = 0;
  std::array<uint64_t, kMissHistogramSize> misses_histogram_{};
};

}  // namespace ft
