// The experts of a decode step on the device: slots and their table, per-layer work, the mailbox to the CPU arm.
//
// One layer is: plan; beside each other the copies on the link stream, hits on the main stream and experts of the CPU
// arm; then what was fetched, the wait for the CPU, the merge in slot order. A layer's nodes depend on the layer before
// through the residual stream only, and promotions go on behind later layers in link-stream order.
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
#include "kernels/cuda/moe.h"

namespace ft {

// One layer's call: device pointers.
struct CudaMoeCall {
  int layer = 0;
  int64_t tokens = 0;
  const uint32_t* x = nullptr;   // (tokens) packed rows of hidden
  const int32_t* ids = nullptr;  // (tokens, top_k)
  const float* weights = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  cuda::Placement placement = cuda::Placement::kTable;
};

class CudaMoe {
 public:
  CudaMoe(const CudaBackendParts& parts, cuda::Stream& main, WorkerMarks& marks);

  void decode(const CudaMoeCall& call);
  // Last launches of a step: the link stream joins, then the host is told.
  void finish();

  // Plans from outside for the next kGiven calls: copied to the device on the main stream by upload_given, which may be
  // captured; set_given writes the pinned side.
  void set_given(std::span<const LayerPlan> plans);
  void upload_given();

  // Answers what the device has posted, if anything: true.
  bool serve_posted();
  uint32_t finished() const;
  void abandon();
  // Throws Error(kFailed) when a wait for the CPU gave up, or was told to by abandon(), since the last call.
  void require_answered();

  SlotTable::Content content() const;
  void restore(const SlotTable::Content& content);
  const std::byte* slot(int64_t index) const { return slots_.data() + index * slot_bytes_; }
  int64_t slot_bytes() const { return slot_bytes_; }
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
  void make_work();
  void make_mailbox();
  // What a layer may do, decided when its nodes are launched: an arm that never has work has no nodes.
  struct Arms {
    bool slots = false, fetches = false, promotions = false, cpu = false;
  };
  Arms arms_of(const CudaMoeCall& call) const;
  cuda::PlanArgs plan_of(const CudaMoeCall& call) const;
  void start_copies(const Arms& arms, const cuda::LayerWork& work, int64_t blob_bytes);
  void compute_slots(const Arms& arms, const CudaMoeCall& call, const cuda::LayerWork& work);
  void compute(const cuda::ExpertArgs& args);

  const EngineConfig& config_;
  const DeviceWeights& weights_;
  const ExpertBank& bank_;
  cuda::Stream& main_;
  cuda::Stream link_;
  cuda::Event forked_, fetched_, joined_;
  bool link_used_ = false;  // since the last finish()

  int top_k_ = 0, max_distinct_ = 0;
  int64_t max_pairs_ = 0, hidden_ = 0;
  int64_t slot_bytes_ = 0;
  cuda::DeviceBuffer slots_, table_memory_, work_memory_, split_, counters_memory_, step_number_;
  cuda::DeviceBuffer activated_, outputs_;
  cuda::SlotTableView table_;
  std::vector<cuda::LayerWork> work_;  // per MoE layer
  cuda::PinnedBuffer slot_mirror_;

  cuda::PinnedBuffer box_memory_, ids_in_, x_in_, y_out_;
  cuda::CpuMailbox* box_ = nullptr;  // host side
  uint32_t answered_ = 0;
  bool abandoned_ = false;
  std::unique_ptr<CpuArm> cpu_;

  cuda::PinnedBuffer given_host_;
  cuda::DeviceBuffer given_;
  int64_t given_stride_ = 0;  // int32 per layer: experts, slots, 4 counts
};

}  // namespace ft
