// What CudaMoe keeps on the device between steps: slots, their table, each layer's work, the mailbox, given plans.
#include "engine/runtime/cuda/cuda_moe.h"
#include "kernels/base/use_priority.h"
#include "kernels/ops/activations.h"

namespace ft {
namespace {

constexpr int64_t kAlign = 256;

int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <class T>
T* take(std::byte*& at, int64_t count) {
  T* begin = reinterpret_cast<T*>(at);
  at += padded(count * static_cast<int64_t>(sizeof(T)));
  return begin;
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
  upload_split(config_.fetch_of_misses);
  make_table();
  make_queue();
  make_work();
  make_mailbox();
  cpu_ = std::make_unique<CpuArm>(
      bank_, top_k_, config_.max_batch, parts.kernels, parts.backend.pool, marks,
      CpuArmMemory{ids_in_.as_host<int32_t>(), x_in_.as_host<uint32_t>(), y_out_.as_host<float>()});
  if (config_.fetch_mechanism == FetchMechanism::kCopyEngine && config_.slots > 0) {
    proxy_ = std::make_unique<cuda::CopyProxy>(max_distinct_, weights_.banks_begin());
  }
  reset_counters();
  SlotTable table(bank_.layers(), bank_.experts(), config_.slots, slot_policy());
  if (config_.strategy == Strategy::kResident) table.fill_in_order();
  restore(table.content());
}

void CudaMoe::upload_split(const SplitTable& fetch_of_misses) {
  std::vector<int32_t> split(fetch_of_misses.begin(), fetch_of_misses.end());
  split.resize(static_cast<size_t>(max_distinct_) + 1, 0);
  cuda::copy_to_device(split_.data(), split.data(), split_.bytes(), main_.handle());
  main_.synchronize();  // `split` goes
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
  table_memory_ = cuda::DeviceBuffer(padded(keys * 4) + padded(keys * 8) + padded(slots * 4) + 4 * padded(slots * 8) +
                                     padded(cuda::kClockWords * int64_t{8}));
  std::byte* at = table_memory_.data();
  table_.slot_of_key = take<int32_t>(at, keys);
  table_.key_of_slot = take<int32_t>(at, slots);
  table_.priority_of_key = take<uint64_t>(at, keys);
  table_.stamp = take<uint64_t>(at, slots);
  table_.filled_in = take<uint64_t>(at, slots);
  table_.prefetched_in = take<uint64_t>(at, slots);
  table_.arrived = take<uint32_t>(at, cuda::kArrivalParts * slots);
  table_.clock = take<uint64_t>(at, cuda::kClockWords);
  cuda::fill_zero(table_.clock, cuda::kClockWords * int64_t{8}, main_.handle());
  slot_mirror_ = cuda::PinnedBuffer(keys * 4);
  victims_ = cuda::DeviceBuffer(sizeof(cuda::NextVictims));
  cuda::fill_zero(victims_.data(), victims_.bytes(), main_.handle());
}

// Copies of a step: no layer appends more than it has experts, or may prefetch.
void CudaMoe::make_queue() {
  const int64_t promotions = int64_t{max_distinct_} * bank_.layers();
  const int64_t prefetches = int64_t{config_.max_prefetches_per_layer} * bank_.layers();
  const auto copy_bytes = static_cast<int64_t>(sizeof(cuda::Copy));
  queue_memory_ = cuda::DeviceBuffer(padded(promotions * copy_bytes) + padded(prefetches * copy_bytes) +
                                     padded(cuda::kLinkWords * int64_t{4}));
  std::byte* at = queue_memory_.data();
  queue_.copies[cuda::kPromotion] = take<cuda::Copy>(at, promotions);
  queue_.copies[cuda::kPrefetch] = take<cuda::Copy>(at, prefetches);
  queue_.words = take<uint32_t>(at, cuda::kLinkWords);
}

void CudaMoe::make_work() {
  const int64_t bytes = padded(max_distinct_ * static_cast<int64_t>(sizeof(cuda::ExpertItem))) +
                        padded(max_distinct_ * static_cast<int64_t>(sizeof(cuda::Copy))) + padded(max_pairs_ * 4) +
                        padded(max_pairs_) + 3 * kAlign;
  work_memory_ = cuda::DeviceBuffer(bytes * bank_.layers());
  std::byte* at = work_memory_.data();
  for (int layer = 0; layer < bank_.layers(); ++layer) {
    cuda::LayerWork work;
    work.items = take<cuda::ExpertItem>(at, max_distinct_);
    work.fetches = take<cuda::Copy>(at, max_distinct_);
    work.pairs = take<int32_t>(at, max_pairs_);
    work.from_host = take<uint8_t>(at, max_pairs_);
    work.item_bounds = take<int32_t>(at, 4);
    work.fetch_count = take<int32_t>(at, 1);
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
  check.restore(content);        // throws when it is no content
  if (proxy_) proxy_->finish();  // of a step that failed
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
  cuda::fill_zero(queue_.words, cuda::kLinkWords * int64_t{4}, main_.handle());
  cuda::fill_zero(victims_.data(), victims_.bytes(), main_.handle());
  main_.synchronize();
}

const int32_t* CudaMoe::slots_of_keys() {
  cuda::copy_to_host(slot_mirror_.host(), table_.slot_of_key, slot_mirror_.bytes(), main_.handle());
  main_.synchronize();
  return slot_mirror_.as_host<int32_t>();
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
