// The experts of a decode step on the device: slots and their table, per-layer work, the mailbox to the CPU arm.
//
// One layer is a chain on the main stream: route and plan; gate and up of all experts; down; the merge in slot order
// and the addition to the residual stream, which where there is a CPU arm waits for its answer. An expert that all
// tokens share is computed beside gate, up and down, on a stream of its own that joins before the merge. What is
// fetched is copied by the first blocks of the gate_up launch, or by the copy engine, to which they post it; blocks of
// fetched experts wait for the units of their slot (kernels/cuda/arrival.h), so an expert is computed when it is there.
//
// Promotions and prefetches go through a queue that plans append to. Its copier runs on the link stream for the whole
// step and yields to fetches; the step's end joins it. A promoted slot is not read in its step: its key belongs to a
// layer that has been planned already. A prefetched one has an arrival, as a fetched one has. Neither is overwritten
// before it is used or the step ends: SlotTable holds it. Their victims are no slots that a layer of this step still
// reads: the plan is behind all earlier layers' experts, holds its own layer's, and later layers find the victims' keys
// gone.
//
// A step that failed may leave slots without their bytes: its owner restores the table's content before the next one.
// Thread rule: one thread. decode() only launches; serve_posted() is the host's side of the mailbox.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/experts/slot_table.h"
#include "engine/runtime/cuda/cpu_arm.h"
#include "engine/runtime/cuda/cuda_backend.h"
#include "engine/runtime/cuda/device_weights_cuda.h"
#include "kernels/cuda/copy_proxy.h"
#include "kernels/cuda/step.h"

namespace ft {

// The expert that every token uses, and where it stands: device pointers. gate.data null: there is none.
struct CudaSharedExpert {
  PackedMatrix gate, up, down, token_gate;  // token_gate.data null: its weight is 1
  Glu glu;
  float *gate_rows = nullptr, *up_rows = nullptr, *rows = nullptr;  // (tokens), rows: its output
  int64_t gate_stride = 0, up_stride = 0, stride = 0;
  uint32_t* words = nullptr;      // (tokens) packed rows of its intermediate size
  float* token_logits = nullptr;  // (tokens)

  bool there() const { return gate.data != nullptr; }
  // For the merge.
  cuda::SharedRows merged() const {
    if (!there()) return {};
    return {rows, stride, token_gate.data == nullptr ? nullptr : token_logits};
  }
};

// One layer's call: device pointers.
struct CudaMoeCall {
  int layer = 0;
  int64_t tokens = 0;
  cuda::Placement placement = cuda::Placement::kTable;
  const float* from = nullptr;  // (tokens) rows of hidden
  int64_t from_stride = 0;
  float* to = nullptr;  // (tokens) rows of hidden: added to, or without `add` written
  int64_t to_stride = 0;
  bool add = true;
  // The router, and how it norms the rows that it multiplies. Experts that norm them otherwise have a norm and packed
  // rows of their own.
  const float* norm_w = nullptr;
  float norm_eps = 0;
  const float* experts_norm_w = nullptr;  // null: one norm
  float experts_norm_eps = 0;
  PackedMatrix router;
  const float* router_bias = nullptr;
  cuda::RouterArgs top;  // all but the logits
  CudaSharedExpert shared;
  // Written on the way.
  uint32_t* x = nullptr;         // (tokens) packed rows of hidden, as experts multiply them
  uint32_t* router_x = nullptr;  // and as the router does, with two norms
  float* router_logits = nullptr;
  const int32_t* predicted = nullptr;  // (tokens, kMaxPlanTopK) of the next layer; null: no look-ahead
};

class CudaMoe {
 public:
  CudaMoe(const CudaBackendParts& parts, cuda::Stream& main, WorkerMarks& marks);

  void decode(const CudaMoeCall& call);
  // Around a step, launches included: the copy engine's thread is awake.
  void begin_step();
  void end_step();
  // Before the last launch of a step: the copier ends and its stream joins, if it was used: true.
  bool join();
  // What the last launch tells the host by.
  cuda::EndStepArgs end_of_step() const;

  // The split of misses from the next step on; which arms a step has is fixed when its graph is captured.
  void upload_split(const SplitTable& fetch_of_misses);

  // Plans from outside for the next kGiven calls: copied to the device on the main stream by upload_given, which may be
  // captured; set_given writes the pinned side.
  void set_given(std::span<const LayerPlan> plans);
  void upload_given();

  // Answers what the device has posted, if anything: true.
  bool serve_posted();
  uint32_t finished() const;
  void abandon();
  // Throws Error(kFailed) when a wait for the CPU, for an expert's bytes or for a copier gave up, or was told to by
  // abandon(), since the last call.
  void require_answered();

  SlotTable::Content content() const;
  void restore(const SlotTable::Content& content);
  const std::byte* slot(int64_t index) const { return slots_.data() + index * slot_bytes_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  // How blobs reach slots: EngagedRecord::mechanism.
  std::string mechanism() const;
  int64_t slot_count() const { return table_.slots; }
  // slot_of_key as it is now, in pinned memory until the next call: for prefill. Synchronizes.
  const int32_t* slots_of_keys();

  cuda::StepCounters counters() const;
  void reset_counters();

  uint32_t* activated() const { return activated_.as<uint32_t>(); }
  float* outputs() const { return outputs_.as<float>(); }

 private:
  SlotPolicy slot_policy() const;
  void make_table();
  void make_queue();
  void make_work();
  void make_mailbox();
  // What a layer may do, decided when its nodes are launched: an arm that never has work has no nodes.
  struct Arms {
    bool slots = false, fetches = false, promotions = false, prefetches = false, cpu = false;
  };
  Arms arms_of(const CudaMoeCall& call) const;
  static bool merges_apart(const Arms& arms, const CudaMoeCall& call) { return arms.cpu || call.shared.there(); }
  cuda::RouteArgs route_of(const CudaMoeCall& call) const;
  cuda::PlanArgs plan_of(const CudaMoeCall& call) const;
  cuda::ExpertArgs experts_of(const Arms& arms, const CudaMoeCall& call) const;
  cuda::VictimSearch victim_search(const CudaMoeCall& call) const;
  cuda::CopierArgs copier() const;
  void start_copier(const Arms& arms);
  void compute(const Arms& arms, const CudaMoeCall& call);
  void start_shared(const CudaMoeCall& call);
  void wait_and_merge(const CudaMoeCall& call);

  const EngineConfig& config_;
  const DeviceWeights& weights_;
  const ExpertBank& bank_;
  cuda::Stream& main_;
  cuda::Stream link_;  // the copier's
  cuda::Event forked_, joined_;
  bool copier_runs_ = false;  // since the last join()
  cuda::Stream beside_;       // of shared experts
  cuda::Event shared_forked_, shared_done_;

  int top_k_ = 0, max_distinct_ = 0;
  int64_t max_pairs_ = 0, hidden_ = 0;
  int64_t slot_bytes_ = 0;
  cuda::DeviceBuffer slots_, table_memory_, queue_memory_, work_memory_, split_, counters_memory_, step_number_,
      arrived_, victims_;
  cuda::DeviceBuffer activated_, outputs_;
  cuda::SlotTableView table_;
  cuda::LinkQueue queue_;
  std::vector<cuda::LayerWork> work_;  // per MoE layer
  cuda::PinnedBuffer slot_mirror_;

  cuda::PinnedBuffer box_memory_, ids_in_, x_in_, y_out_;
  cuda::CpuMailbox* box_ = nullptr;  // host side
  uint32_t answered_ = 0;
  bool abandoned_ = false;
  std::unique_ptr<CpuArm> cpu_;
  std::unique_ptr<cuda::CopyProxy> proxy_;  // FetchMechanism::kCopyEngine

  cuda::PinnedBuffer given_host_;
  cuda::DeviceBuffer given_;
  int64_t given_stride_ = 0;  // int32 per layer: experts, slots, 4 counts
};

}  // namespace ft
