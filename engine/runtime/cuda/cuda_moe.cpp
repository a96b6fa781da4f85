// A layer's launches and the host's side of a step; what is kept between steps is in cuda_moe_state.cpp.
#include "engine/runtime/cuda/cuda_moe.h"

#include <algorithm>
#include <atomic>

#include "kernels/base/error.h"

namespace ft {
namespace {

// A layer's experts take milliseconds on a slow CPU; ten seconds is a machine that has stopped.
constexpr uint64_t kAnswerTimeoutNs = 10'000'000'000;
// Between a step's promotions or prefetches: longer than the host's watchdog.
constexpr uint64_t kCopierTimeoutNs = 60'000'000'000;

// Pinned words that the device writes or reads while the host does.
uint32_t load_acquire(const uint32_t& word) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
}
void store_release(uint32_t& word, uint32_t value) {
  std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

}  // namespace

cuda::RouteArgs CudaMoe::route_of(const CudaMoeCall& call) const {
  cuda::RouteArgs route;
  route.x = call.from;
  route.x_stride = call.from_stride;
  route.norm_w = call.norm_w;
  route.norm_eps = call.norm_eps;
  route.router = call.router;
  route.bias = call.router_bias;
  route.words = call.x;
  if (call.experts_norm_w != nullptr) {
    route.words = call.router_x;
    route.experts_words = call.x;
    route.experts_norm_w = call.experts_norm_w;
    route.experts_norm_eps = call.experts_norm_eps;
  }
  route.logits = call.router_logits;
  route.arrived = arrived_.as<uint32_t>();
  route.top = call.top;
  return route;
}

cuda::PlanArgs CudaMoe::plan_of(const CudaMoeCall& call) const {
  const ExpertLayout& layout = bank_.layout(call.layer);
  const int32_t* given = given_.as<int32_t>() + call.layer * given_stride_;
  cuda::PlanArgs plan;
  plan.table = table_;
  plan.placement = call.placement;
  plan.given = {given, given + max_distinct_, given + 3 * int64_t{max_distinct_}, given + 2 * int64_t{max_distinct_}};
  plan.layer = call.layer;
  plan.tokens = call.tokens;
  plan.top_k = top_k_;
  plan.max_distinct = max_distinct_;
  plan.ids = call.top.ids;
  plan.fetch_of_misses = split_.as<int32_t>();
  const Arms arms = arms_of(call);
  plan.queue = queue_;
  plan.victims = victim_search(call).to;
  if (arms.promotions) plan.promotions = PromotionRate::of_bytes(config_.promote_bytes_per_layer, layout.bytes);
  if (call.placement == cuda::Placement::kTable && call.predicted != nullptr) {
    plan.predicted = call.predicted;
    plan.predicted_ranks = cuda::kMaxPlanTopK;
    plan.max_prefetches = config_.max_prefetches_per_layer;
    plan.next_bank = weights_.bank(call.layer + 1);
    plan.next_blob_bytes = bank_.layout(call.layer + 1).bytes;
    plan.next_units = cuda::blob_units(bank_.layout(call.layer + 1));
  }
  plan.bank = weights_.bank(call.layer);
  plan.blob_bytes = layout.bytes;
  plan.units = cuda::blob_units(layout);
  plan.slots = slots_.data();
  plan.slot_bytes = slot_bytes_;
  plan.work = work_[static_cast<size_t>(call.layer)];
  plan.counters = counters_memory_.as<cuda::StepCounters>();
  plan.mailbox = {box_memory_.as_device<cuda::CpuMailbox>(), ids_in_.as_device<int32_t>(), x_in_.as_device<uint32_t>()};
  plan.x = call.x;
  plan.hidden = hidden_;
  return plan;
}

CudaMoe::Arms CudaMoe::arms_of(const CudaMoeCall& call) const {
  // A step of all hits has the nodes of a step as it is served, so that `dense` times them.
  const bool given = call.placement == cuda::Placement::kGiven;
  const bool slots = config_.slots > 0;
  const Strategy strategy = config_.strategy;
  Arms arms;
  arms.slots = slots;
  arms.fetches = slots && (given || strategy == Strategy::kOffload || strategy == Strategy::kHybrid);
  arms.cpu = given || !slots || strategy == Strategy::kCpu || strategy == Strategy::kHybrid;
  arms.promotions = slots && arms.cpu && (given || config_.promote_bytes_per_layer > 0);
  arms.prefetches = slots && config_.look_ahead != LookAhead::kOff;
  return arms;
}

cuda::ExpertArgs CudaMoe::experts_of(const Arms& arms, const CudaMoeCall& call) const {
  const cuda::LayerWork& work = work_[static_cast<size_t>(call.layer)];
  cuda::ExpertArgs experts;
  experts.layout = bank_.layout(call.layer);
  experts.items = work.items;
  experts.item_begin = work.item_bounds;
  experts.item_end = work.item_bounds + 3;
  // A row of a table may name an expert twice.
  experts.max_item_pairs = call.top.given != nullptr ? call.tokens * top_k_ : call.tokens;
  experts.max_items = static_cast<int>(std::min<int64_t>(max_distinct_, call.tokens * top_k_));
  experts.pairs = work.pairs;
  experts.top_k = top_k_;
  experts.x = call.x;
  experts.activated = activated();
  experts.out = outputs();
  experts.out_stride = hidden_;
  experts.arrivals = {table_.arrived, cuda::blob_units(experts.layout), box_memory_.as_device<cuda::CpuMailbox>(),
                      call.layer, kAnswerTimeoutNs};
  experts.fetch.copies = work.fetches;
  experts.fetch.count = work.fetch_count;
  experts.fetch.here = arms.fetches;
  experts.fetch.repeat = config_.link_slowdown;
  experts.fetch.pending = queue_.words + cuda::kPending;
  if (proxy_) experts.fetch.post = proxy_->post(kAnswerTimeoutNs);
  experts.search = victim_search(call);
  return experts;
}

// Only where a plan may have misses, and is one that uses them.
cuda::VictimSearch CudaMoe::victim_search(const CudaMoeCall& call) const {
  const bool misses = table_.slots > 0 && table_.slots < int64_t{table_.layers} * table_.experts;
  if (!misses || call.tokens != 1 || top_k_ > cuda::kMaxNextVictims) return {};
  const int prefetches = config_.look_ahead != LookAhead::kOff ? config_.max_prefetches_per_layer : 0;
  return {.to = victims_.as<cuda::NextVictims>(),
          .count = cuda::next_victims(top_k_, prefetches),
          .slots = table_.slots,
          .slot_bits = table_.slot_bits,
          .stamp = table_.stamp,
          .key_of_slot = table_.key_of_slot,
          .filled_in = table_.filled_in,
          .plan_number = table_.clock + cuda::kPlanNumber,
          .priority_of_key = call.layer + 1 == table_.layers ? table_.priority_of_key : nullptr};
}

cuda::CopierArgs CudaMoe::copier() const {
  return {.queue = queue_,
          .repeat = config_.link_slowdown,
          .drain = config_.no_wait,
          .box = box_memory_.as_device<cuda::CpuMailbox>(),
          .timeout_ns = kCopierTimeoutNs};
}

// Once a step, before its first plan. In the no-wait mode each layer has a copier of its own, behind its experts.
void CudaMoe::start_copier(const Arms& arms) {
  if (copier_runs_ || config_.no_wait || (!arms.promotions && !arms.prefetches)) return;
  copier_runs_ = true;
  forked_.record(main_.handle());
  forked_.make_wait(link_.handle());
  cuda::copy_queued(copier(), link_.handle());
  if (arms.prefetches) cuda::wait_for_copier(copier(), main_.handle());
}

void CudaMoe::compute(const Arms& arms, const CudaMoeCall& call) {
  const cuda::ExpertArgs experts = experts_of(arms, call);
  cuda::expert_gate_up(experts, main_.handle());
  if (merges_apart(arms, call)) {
    cuda::expert_down(experts, main_.handle());
  } else {
    cuda::expert_down_merge(experts, {call.top.ids, call.top.weights, call.tokens, call.to, call.to_stride, call.add},
                            main_.handle());
  }
}

// The rows of the shared expert, from the packed rows that the router's launch left, beside what follows it.
void CudaMoe::start_shared(const CudaMoeCall& call) {
  shared_forked_.record(main_.handle());
  shared_forked_.make_wait(beside_.handle());
  const CudaSharedExpert& shared = call.shared;
  cuda::MatvecArgs first;
  first.input.words = call.x;
  first.tokens = call.tokens;
  first.outputs[first.output_count++] = {shared.gate, nullptr, shared.gate_rows, shared.gate_stride, false};
  first.outputs[first.output_count++] = {shared.up, nullptr, shared.up_rows, shared.up_stride, false};
  if (shared.token_gate.data != nullptr) {
    first.outputs[first.output_count++] = {shared.token_gate, nullptr, shared.token_logits, 1, false};
  }
  cuda::matvec(first, beside_.handle());
  cuda::GluArgs glu;
  glu.glu = shared.glu;
  glu.gate = shared.gate_rows;
  glu.up = shared.up_rows;
  glu.gate_stride = shared.gate_stride;
  glu.up_stride = shared.up_stride;
  glu.tokens = call.tokens;
  glu.cols = shared.gate.layout.rows;
  glu.words = shared.words;
  cuda::glu(glu, beside_.handle());
  cuda::MatvecArgs last;
  last.input.words = shared.words;
  last.tokens = call.tokens;
  last.outputs[last.output_count++] = {shared.down, nullptr, shared.rows, shared.stride, false};
  cuda::matvec(last, beside_.handle());
  shared_done_.record(beside_.handle());
}

// Waits for the CPU's answer where the plan has a ticket.
void CudaMoe::wait_and_merge(const CudaMoeCall& call) {
  const cuda::LayerWork& work = work_[static_cast<size_t>(call.layer)];
  cuda::MergeArgs merge;
  merge.ids = call.top.ids;
  merge.weights = call.top.weights;
  merge.tokens = call.tokens;
  merge.top_k = top_k_;
  merge.rows = outputs();
  merge.rows_stride = hidden_;
  merge.host_rows = y_out_.as_device<float>();
  merge.host_stride = hidden_;
  merge.from_host = work.from_host;
  merge.cols = hidden_;
  merge.out = call.to;
  merge.out_stride = call.to_stride;
  merge.add = call.add;
  merge.shared = call.shared.merged();
  merge.after_join = call.shared.there();
  cuda::wait_and_merge({box_memory_.as_device<cuda::CpuMailbox>(), work.ticket, call.layer, kAnswerTimeoutNs,
                        counters_memory_.as<cuda::StepCounters>()},
                       merge, main_.handle());
}

void CudaMoe::decode(const CudaMoeCall& call) {
  const Arms arms = arms_of(call);
  start_copier(arms);
  cuda::route_and_plan(route_of(call), plan_of(call), main_.handle());
  if (call.shared.there()) start_shared(call);
  if (arms.slots) compute(arms, call);
  if (config_.no_wait) {
    if (arms.promotions || arms.prefetches) cuda::copy_queued(copier(), main_.handle());
    main_.synchronize();
    serve_posted();
  }
  if (call.shared.there()) shared_done_.make_wait(main_.handle());
  if (merges_apart(arms, call)) wait_and_merge(call);
}

void CudaMoe::begin_step() {
  if (proxy_) proxy_->begin();
}

void CudaMoe::end_step() {
  if (proxy_) proxy_->end();
}

bool CudaMoe::join() {
  if (!copier_runs_) return false;
  copier_runs_ = false;
  cuda::close_queue(queue_, main_.handle());
  joined_.record(link_.handle());
  joined_.make_wait(main_.handle());
  return true;
}

cuda::EndStepArgs CudaMoe::end_of_step() const {
  cuda::EndStepArgs end;
  end.box = box_memory_.as_device<cuda::CpuMailbox>();
  end.step_number = step_number_.as<uint32_t>();
  return end;
}

bool CudaMoe::serve_posted() {
  const uint32_t posted = load_acquire(box_->posted);
  if (posted == answered_) return false;
  cpu_->serve(box_->layer, box_->tokens);
  answered_ = posted;
  store_release(box_->answered, posted);
  return true;
}

uint32_t CudaMoe::finished() const { return load_acquire(box_->finished); }
void CudaMoe::abandon() {
  abandoned_ = true;
  store_release(box_->abandon, 1);
}

void CudaMoe::require_answered() {
  if (proxy_) proxy_->check();
  const uint32_t failed = load_acquire(box_->failed);
  if (failed == 0 && !abandoned_) return;  // an abandoned wait says nothing itself
  abandoned_ = false;
  store_release(box_->failed, 0);
  store_release(box_->abandon, 0);
  std::string where = "MoE layer " + std::to_string(failed - 1);
  if (failed == 0) where = "the step was abandoned";
  if (failed == cuda::kCopierLeft) where = "copies beside the step";
  throw Error(ErrorKind::kFailed, {.what = "the CPU's answer or an expert's bytes did not reach the device in time",
                                   .value = where,
                                   .allowed = std::to_string(kAnswerTimeoutNs / 1'000'000'000) + " s",
                                   .action = "see whether other programs hold the cores or the link"});
}

std::string CudaMoe::mechanism() const {
  if (table_.slots == 0) return "none";
  if (proxy_) return "copy engine";
  return config_.link_slowdown > 1 ? "sm gather, link slowed" : "sm gather";
}

}  // namespace ft
