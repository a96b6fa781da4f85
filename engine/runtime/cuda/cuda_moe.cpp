// A layer's launches and the host's side of a step; what is kept between steps is in cuda_moe_state.cpp.
#include "engine/runtime/cuda/cuda_moe.h"

#include <algorithm>
#include <atomic>

#include "kernels/base/error.h"

namespace ft {
namespace {

// A layer's experts take milliseconds on a slow CPU; ten seconds is a machine that has stopped.
constexpr uint64_t kAnswerTimeoutNs = 10'000'000'000;

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
  route.x = call.residual;
  route.x_stride = call.residual_stride;
  route.norm_w = call.norm_w;
  route.norm_eps = call.norm_eps;
  route.router = call.router;
  route.words = call.x;
  route.logits = call.router_logits;
  route.arrived = arrived_.as<uint32_t>();
  route.top.tokens = call.tokens;
  route.top.k = top_k_;
  route.top.renormalize = call.renormalize;
  route.top.forced = call.forced;
  route.top.forced_ids = call.forced_ids;
  route.top.ids = call.ids;
  route.top.weights = call.weights;
  route.top.record = call.record;
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
  plan.ids = call.ids;
  plan.fetch_of_misses = split_.as<int32_t>();
  plan.items_fetch = arms_of(call).items_fetch;
  plan.max_promotions = static_cast<int>(config_.promote_bytes_per_layer / layout.bytes);
  if (call.placement == cuda::Placement::kTable && call.predicted != nullptr) {
    plan.predicted = call.predicted;
    plan.predicted_ranks = cuda::kMaxPlanTopK;
    plan.max_prefetches = config_.max_prefetches_per_layer;
    plan.next_bank = weights_.bank(call.layer + 1);
    plan.next_blob_bytes = bank_.layout(call.layer + 1).bytes;
  }
  plan.bank = weights_.bank(call.layer);
  plan.blob_bytes = layout.bytes;
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
  arms.promotions = slots && (given || config_.promote_bytes_per_layer >= bank_.layout(call.layer).bytes);
  arms.prefetches = slots && config_.look_ahead != LookAhead::kOff && call.layer + 1 < bank_.layers();
  arms.items_fetch = slots && !arms.fetches;  // then nothing is: one launch for all items, merged in the last
  arms.cpu = given || !slots || strategy == Strategy::kCpu || strategy == Strategy::kHybrid;
  return arms;
}

cuda::ExpertArgs CudaMoe::experts_of(const CudaMoeCall& call, int first_bound, int last_bound) const {
  const cuda::LayerWork& work = work_[static_cast<size_t>(call.layer)];
  cuda::ExpertArgs experts;
  experts.layout = bank_.layout(call.layer);
  experts.items = work.items;
  experts.item_begin = work.item_bounds + first_bound;
  experts.item_end = work.item_bounds + last_bound;
  experts.max_item_pairs = call.tokens;
  experts.max_items = static_cast<int>(std::min<int64_t>(max_distinct_, call.tokens * top_k_));
  experts.pairs = work.pairs;
  experts.top_k = top_k_;
  experts.x = call.x;
  experts.activated = activated();
  experts.out = outputs();
  experts.out_stride = hidden_;
  return experts;
}

void CudaMoe::fork_link() {
  forked_.record(main_.handle());
  forked_.make_wait(link_.handle());
  link_used_ = true;
}

// Items that fetch for themselves. Without a CPU arm every pair is an item's, and the last kernel merges.
void CudaMoe::compute_items(const Arms& arms, const CudaMoeCall& call) {
  join_prefetch();
  const cuda::ExpertArgs experts = experts_of(call, 0, 3);
  cuda::expert_gate_up(experts, main_.handle());
  if (arms.cpu) {
    cuda::expert_down(experts, main_.handle());
  } else {
    cuda::expert_down_merge(experts, {call.ids, call.weights, call.tokens, call.residual, call.residual_stride},
                            main_.handle());
  }
}

void CudaMoe::compute_filled_slots(const Arms& arms, const CudaMoeCall& call) {
  const auto compute = [&](int first_bound, int last_bound) {
    const cuda::ExpertArgs experts = experts_of(call, first_bound, last_bound);
    cuda::expert_gate_up(experts, main_.handle());
    cuda::expert_down(experts, main_.handle());
  };
  const cuda::LayerWork& work = work_[static_cast<size_t>(call.layer)];
  const int64_t blob_bytes = bank_.layout(call.layer).bytes;
  if (arms.fetches && proxy_) {
    proxy_->post(work, false, blob_bytes, kAnswerTimeoutNs, main_.handle());
  } else if (arms.fetches) {
    fork_link();
    cuda::gather({.work = work, .blob_bytes = blob_bytes, .repeat = config_.link_slowdown}, link_.handle());
    fetched_.record(link_.handle());
  }
  compute(0, 1);
  if (!arms.fetches) return;
  if (proxy_) {
    proxy_->wait(false, kAnswerTimeoutNs, main_.handle());
    join_prefetch();
  } else {
    fetched_.make_wait(main_.handle());  // and for the prefetch before it on the link stream
    prefetch_open_ = false;
    cuda::gather_point(main_.handle());
  }
  compute(1, 3);
}

void CudaMoe::prefetch(const Arms& arms, const CudaMoeCall& call) {
  if (!arms.prefetches) return;
  fork_link();
  cuda::gather({.work = work_[static_cast<size_t>(call.layer)],
                .blob_bytes = bank_.layout(call.layer + 1).bytes,
                .repeat = config_.link_slowdown,
                .prefetches = true},
               link_.handle());
  prefetched_.record(link_.handle());
  prefetch_open_ = true;
}

void CudaMoe::join_prefetch() {
  if (!prefetch_open_) return;
  prefetch_open_ = false;
  prefetched_.make_wait(main_.handle());
  cuda::gather_point(main_.handle());
}

void CudaMoe::promote(const Arms& arms, const CudaMoeCall& call) {
  if (!arms.promotions) return;
  const cuda::LayerWork& work = work_[static_cast<size_t>(call.layer)];
  const int64_t blob_bytes = bank_.layout(call.layer).bytes;
  if (proxy_) {
    proxy_->post(work, true, blob_bytes, kAnswerTimeoutNs, main_.handle());
    proxy_used_ = true;
    return;
  }
  fork_link();
  cuda::gather({.work = work, .promotions = true, .blob_bytes = blob_bytes, .repeat = config_.link_slowdown},
               link_.handle());
}

void CudaMoe::wait_and_merge(const CudaMoeCall& call) {
  const cuda::LayerWork& work = work_[static_cast<size_t>(call.layer)];
  cuda::MergeArgs merge;
  merge.ids = call.ids;
  merge.weights = call.weights;
  merge.tokens = call.tokens;
  merge.top_k = top_k_;
  merge.rows = outputs();
  merge.rows_stride = hidden_;
  merge.host_rows = y_out_.as_device<float>();
  merge.host_stride = hidden_;
  merge.from_host = work.from_host;
  merge.cols = hidden_;
  merge.out = call.residual;
  merge.out_stride = call.residual_stride;
  cuda::wait_and_merge({box_memory_.as_device<cuda::CpuMailbox>(), work.ticket, call.layer, kAnswerTimeoutNs,
                        counters_memory_.as<cuda::StepCounters>()},
                       merge, main_.handle());
}

void CudaMoe::decode(const CudaMoeCall& call) {
  const Arms arms = arms_of(call);
  cuda::route_and_plan(route_of(call), plan_of(call), main_.handle());
  if (arms.slots && arms.items_fetch) compute_items(arms, call);
  if (arms.slots && !arms.items_fetch) compute_filled_slots(arms, call);
  prefetch(arms, call);
  promote(arms, call);
  if (arms.cpu && config_.no_wait) {
    main_.synchronize();
    serve_posted();
  }
  if (arms.cpu || !arms.items_fetch) wait_and_merge(call);
}

void CudaMoe::begin_step() {
  if (proxy_) proxy_->begin();
}

void CudaMoe::end_step() {
  if (proxy_) proxy_->end();
}

bool CudaMoe::join() {
  if (proxy_used_) proxy_->wait(true, kAnswerTimeoutNs, main_.handle());
  proxy_used_ = false;
  if (!link_used_) return false;
  joined_.record(link_.handle());
  joined_.make_wait(main_.handle());
  link_used_ = prefetch_open_ = false;
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
  throw Error(ErrorKind::kFailed,
              {.what = "the CPU did not answer the device in time",
               .value = failed == 0 ? "the step was abandoned" : "MoE layer " + std::to_string(failed - 1),
               .allowed = std::to_string(kAnswerTimeoutNs / 1'000'000'000) + " s",
               .action = "see whether other programs hold the cores"});
}

std::string CudaMoe::mechanism() const {
  if (table_.slots == 0) return "none";
  if (proxy_) return "copy engine";
  return config_.link_slowdown > 1 ? "sm gather, link slowed" : "sm gather";
}

}  // namespace ft
