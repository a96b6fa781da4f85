#include "engine/runtime/cuda/cuda_moe.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/use_priority.h"
#include "kernels/ops/activations.h"

namespace ft {
namespace {

// A layer's experts take milliseconds on a slow CPU; ten seconds is a machine that has stopped.
constexpr uint64_t kAnswerTimeoutNs = 10'000'000'000;
constexpr int64_t kAlign = 256;

int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <class T>
T* take(std::byte*& at, int64_t count) {
  T* begin = reinterpret_cast<T*>(at);
  at += padded(count * static_cast<int64_t>(sizeof(T)));
  return begin;
}

// Pinned words that the device writes or reads while the host does.
uint32_t load_acquire(const uint32_t& word) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
}
void store_release(uint32_t& word, uint32_t value) {
  std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

}  // namespace

CudaMoe::CudaMoe(const CudaBackendParts& parts, cuda::Stream& main, WorkerMarks& marks)
    : config_(parts.config),
      weights_(*parts.weights),
      bank_(parts.backend.weights.bank),
      main_(main),
      top_k_(parts.backend.family.geometry().expert.top_k),
      max_distinct_(parts.max_distinct),
      max_pairs_(int64_t{parts.config.max_batch} * top_k_),
      hidden_(bank_.layout(0).hidden),
      slot_bytes_(bank_.slot_bytes()),
      slots_(config_.slots * slot_bytes_),
      split_((max_distinct_ + 1) * static_cast<int64_t>(sizeof(int32_t))),
      counters_memory_(sizeof(cuda::StepCounters)),
      step_number_(sizeof(uint32_t)),
      arrived_(sizeof(uint32_t)) {
  const int64_t pairs = parts.backend.max_tokens * top_k_;
  activated_ = cuda::DeviceBuffer(pairs * activation_words(bank_.layout(0).intermediate) * 4);
  outputs_ = cuda::DeviceBuffer(pairs * hidden_ * 4);
  cuda::fill_zero(activated_.data(), activated_.bytes(), main_.handle());  // padding of rows stays zero
  cuda::fill_zero(step_number_.data(), step_number_.bytes(), main_.handle());
  cuda::fill_zero(arrived_.data(), arrived_.bytes(), main_.handle());
  std::vector<int32_t> split(config_.fetch_of_misses.begin(), config_.fetch_of_misses.end());
  split.resize(static_cast<size_t>(max_distinct_) + 1, 0);
  cuda::copy_to_device(split_.data(), split.data(), split_.bytes(), main_.handle());
  make_table();
  make_work();
  make_mailbox();
  cpu_ = std::make_unique<CpuArm>(
      bank_, top_k_, config_.max_batch, parts.kernels, parts.backend.pool, marks,
      CpuArmMemory{ids_in_.as_host<int32_t>(), x_in_.as_host<uint32_t>(), y_out_.as_host<float>()});
  if (config_.fetch_mechanism == FetchMechanism::kCopyEngine && config_.slots > 0) {
    proxy_ = std::make_unique<cuda::CopyProxy>(2 * max_distinct_);
  }
  reset_counters();
  SlotTable table(bank_.layers(), bank_.experts(), config_.slots, slot_policy());
  if (config_.strategy == Strategy::kResident) table.fill_in_order();
  restore(table.content());
}

SlotPolicy CudaMoe::slot_policy() const {
  return make_slot_policy(config_.cache_policy, bank_.layers(), config_.slots, max_distinct_);
}

void CudaMoe::make_table() {
  table_.layers = bank_.layers();
  table_.experts = bank_.experts();
  table_.slots = static_cast<int32_t>(config_.slots);
  table_.slot_bits = slot_bits(config_.slots);
  table_.half_life_log2 = slot_policy().half_life_log2;
  table_.max_distinct = max_distinct_;
  const int64_t keys = int64_t{table_.layers} * table_.experts, slots = config_.slots;
  table_memory_ = cuda::DeviceBuffer(padded(keys * 4) + padded(keys * 8) + padded(slots * 4) + 3 * padded(slots * 8) +
                                     padded(cuda::kClockWords * 8));
  std::byte* at = table_memory_.data();
  table_.slot_of_key = take<int32_t>(at, keys);
  table_.key_of_slot = take<int32_t>(at, slots);
  table_.priority_of_key = take<uint64_t>(at, keys);
  table_.stamp = take<uint64_t>(at, slots);
  table_.filled_in = take<uint64_t>(at, slots);
  table_.prefetched_in = take<uint64_t>(at, slots);
  table_.clock = take<uint64_t>(at, cuda::kClockWords);
  cuda::fill_zero(table_.clock, cuda::kClockWords * 8, main_.handle());
  slot_mirror_ = cuda::PinnedBuffer(keys * 4);
}

void CudaMoe::make_work() {
  const int64_t copies = int64_t{max_distinct_} + config_.max_prefetches_per_layer;
  const int64_t bytes = padded(max_distinct_ * static_cast<int64_t>(sizeof(cuda::ExpertItem))) +
                        2 * padded(copies * 8) + padded(max_pairs_ * 4) + padded(max_pairs_) + 3 * kAlign;
  work_memory_ = cuda::DeviceBuffer(bytes * bank_.layers());
  std::byte* at = work_memory_.data();
  for (int layer = 0; layer < bank_.layers(); ++layer) {
    cuda::LayerWork work;
    work.items = take<cuda::ExpertItem>(at, max_distinct_);
    work.copy_source = take<const std::byte*>(at, copies);
    work.copy_target = take<std::byte*>(at, copies);
    work.pairs = take<int32_t>(at, max_pairs_);
    work.from_host = take<uint8_t>(at, max_pairs_);
    work.item_bounds = take<int32_t>(at, 4);
    work.copy_counts = take<int32_t>(at, 3);
    work.ticket = take<uint32_t>(at, 1);
    work_.push_back(work);
  }
  given_stride_ = 2 * int64_t{max_distinct_} + 4 + max_distinct_;
  given_host_ = cuda::PinnedBuffer(given_stride_ * bank_.layers() * 4);
  given_ = cuda::DeviceBuffer(given_host_.bytes());
}

void CudaMoe::make_mailbox() {
  box_memory_ = cuda::PinnedBuffer(sizeof(cuda::CpuMailbox));
  box_ = box_memory_.as_host<cuda::CpuMailbox>();
  ids_in_ = cuda::PinnedBuffer(max_pairs_ * 4);
  x_in_ = cuda::PinnedBuffer(config_.max_batch * activation_words(hidden_) * 4);
  y_out_ = cuda::PinnedBuffer(max_pairs_ * hidden_ * 4);
}

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

void CudaMoe::set_given(std::span<const LayerPlan> plans) {
  for (const LayerPlan& plan : plans) {
    int32_t* expert = given_host_.as_host<int32_t>() + plan.layer * given_stride_;
    int32_t* slot = expert + max_distinct_;
    int32_t* promoted = slot + max_distinct_;
    int32_t* counts = promoted + max_distinct_;
    for (const auto* part : {&plan.hits, &plan.fetches}) {
      for (const ExpertSlot& entry : *part) {
        *expert++ = entry.expert;
        *slot++ = static_cast<int32_t>(entry.slot);
      }
    }
    for (const int id : plan.cpu) *expert++ = id;
    for (const ExpertSlot& entry : plan.promotions) *promoted++ = static_cast<int32_t>(entry.slot);
    counts[0] = static_cast<int32_t>(plan.hits.size());
    counts[1] = static_cast<int32_t>(plan.fetches.size());
    counts[2] = static_cast<int32_t>(plan.cpu.size());
    counts[3] = static_cast<int32_t>(plan.promotions.size());
  }
}

void CudaMoe::upload_given() {
  cuda::copy_to_device(given_.data(), given_host_.host(), given_.bytes(), main_.handle());
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

SlotTable::Content CudaMoe::content() const {
  SlotTable::Content content;
  std::vector<int32_t> keys(static_cast<size_t>(table_.slots));
  std::vector<uint64_t> clock(cuda::kClockWords);
  content.priority_of_key.resize(static_cast<size_t>(int64_t{table_.layers} * table_.experts));
  const auto download = [&](auto& values, const void* source) {
    cuda::copy_to_host(values.data(), source, static_cast<int64_t>(values.size() * sizeof(values[0])), main_.handle());
  };
  download(keys, table_.key_of_slot);
  download(content.priority_of_key, table_.priority_of_key);
  download(clock, table_.clock);
  main_.synchronize();
  content.key_of_slot.assign(keys.begin(), keys.end());
  content.plans = clock[cuda::kPlanNumber];
  return content;
}

void CudaMoe::restore(const SlotTable::Content& content) {
  SlotTable check(table_.layers, table_.experts, table_.slots, slot_policy());
  check.restore(content);  // throws when it is no content
  const auto slots = static_cast<size_t>(table_.slots);
  std::vector<int32_t> slot_of_key(static_cast<size_t>(int64_t{table_.layers} * table_.experts), -1);
  std::vector<int32_t> key_of_slot(slots, -1);
  std::vector<uint64_t> priorities = content.priority_of_key;
  priorities.resize(slot_of_key.size());
  std::vector<uint64_t> stamps(slots), clock(cuda::kPosted, 0);  // the number of posts stays: it counts on
  for (size_t slot = 0; slot < slots; ++slot) {
    const int64_t key = content.key_of_slot[slot];
    key_of_slot[slot] = static_cast<int32_t>(key);
    stamps[slot] =
        victim_stamp(key < 0 ? 0 : priorities[static_cast<size_t>(key)], static_cast<int64_t>(slot), table_.slot_bits);
    if (key < 0) continue;
    slot_of_key[static_cast<size_t>(key)] = static_cast<int32_t>(slot);
    const int layer = static_cast<int>(key / table_.experts);
    weights_.copy_expert(slots_.data() + static_cast<int64_t>(slot) * slot_bytes_, layer,
                         static_cast<int>(key % table_.experts), main_.handle());
  }
  clock[cuda::kPlanNumber] = content.plans;
  const auto upload = [&](void* target, const auto& values) {
    cuda::copy_to_device(target, values.data(), static_cast<int64_t>(values.size() * sizeof(values[0])),
                         main_.handle());
  };
  main_.synchronize();
  upload(table_.slot_of_key, slot_of_key);
  upload(table_.key_of_slot, key_of_slot);
  upload(table_.priority_of_key, priorities);
  upload(table_.stamp, stamps);
  cuda::fill_zero(table_.filled_in, table_.slots * int64_t{8}, main_.handle());
  cuda::fill_zero(table_.prefetched_in, table_.slots * int64_t{8}, main_.handle());
  upload(table_.clock, clock);
  main_.synchronize();
}

const int32_t* CudaMoe::slots_of_keys() {
  cuda::copy_to_host(slot_mirror_.host(), table_.slot_of_key, slot_mirror_.bytes(), main_.handle());
  main_.synchronize();
  return slot_mirror_.as_host<int32_t>();
}

std::string CudaMoe::mechanism() const {
  if (table_.slots == 0) return "none";
  if (proxy_) return "copy engine";
  return config_.link_slowdown > 1 ? "sm gather, link slowed" : "sm gather";
}

cuda::StepCounters CudaMoe::counters() const {
  cuda::StepCounters counters{};
  cuda::copy_to_host(&counters, counters_memory_.data(), counters_memory_.bytes(), main_.handle());
  main_.synchronize();
  return counters;
}

void CudaMoe::reset_counters() {
  cuda::fill_zero(counters_memory_.data(), counters_memory_.bytes(), main_.handle());
  main_.synchronize();
}

}  // namespace ft
