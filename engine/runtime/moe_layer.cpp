#include "engine/runtime/moe_layer.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kMergeColumns = 1024;  // columns of one merge task: 4 KiB of every expert output

}  // namespace

MoeLayer::MoeLayer(const MoeLayerOptions& options, const KernelTable& kernels, ExpertSlots& slots, WorkerPool& pool,
                   WorkerMarks& marks)
    : options_(options),
      kernels_(kernels),
      slots_(slots),
      pool_(pool),
      pairs_(slots.bank().experts(), options.top_k, options.max_tokens),
      work_(kernels, options.max_tokens * options.top_k, slots.bank().layout(0).intermediate, marks, &pool) {
  if (options_.fetch_of_misses.empty()) options_.fetch_of_misses.assign(1, 0);  // resident: there are no misses
  const ExpertLayout& layout = slots.bank().layout(0);
  const int64_t pairs = options.max_tokens * options.top_k;
  outputs_ = RowBuffer<float>(pairs, layout.hidden, &pool);
  for (int64_t pair = 0; pair < pairs; ++pair) y_of_token_.push_back(outputs_.row(pair));
  const int experts = slots.bank().experts();
  plan_.reserve(experts);
  prefetches_.reserve(static_cast<size_t>(options.max_prefetches));
  items_.reserve(static_cast<size_t>(experts));
  tickets_.reserve(static_cast<size_t>(experts));
  pending_.reserve(static_cast<size_t>(experts));
}

void MoeLayer::change_split(const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer) {
  FT_CHECK(fetch_of_misses.size() == options_.fetch_of_misses.size());
  options_.fetch_of_misses = fetch_of_misses;
  options_.promote_bytes_per_layer = promote_bytes_per_layer;
}

void MoeLayer::start(const MoeCall& call) {
  waited_ = slots_.link().counters().wait_seconds;
  call_ = call;
  layout_ = &slots_.bank().layout(call.layer);
  pairs_.group(call.ids, call.tokens);
  point_pairs();
  items_.clear();
  tickets_.clear();
  pending_.clear();
  staged_ = 0;
  switch (call.placement) {
    case MoePlacement::kDecode: {
      const auto promotions = PromotionRate::of_bytes(options_.promote_bytes_per_layer, layout_->bytes);
      slots_.table().plan(call.layer, pairs_.distinct(), options_.fetch_of_misses, promotions, plan_);
      prefetch();
      count(plan_);
      place_by_plan(plan_, prefetches_);
      break;
    }
    case MoePlacement::kGiven:
      place_by_plan(*call.given, {});
      break;
    case MoePlacement::kPrefill:
      place_prefill();
      break;
    case MoePlacement::kAllHits:
      place_all_hits();
      break;
  }
  stage_ahead(0);
}

void MoeLayer::finish() {
  group_ = next_group(0);
  pool_.run([this](int worker, int workers) { compute(worker, workers); });
  if (call_.placement == MoePlacement::kDecode) {
    decode_link_wait_seconds_ += slots_.link().counters().wait_seconds - waited_;
  }
}

// Pointer arrays in order of experts, so that an expert's rows are a contiguous stretch of them.
void MoeLayer::point_pairs() {
  const auto order = pairs_.order();
  for (size_t i = 0; i < order.size(); ++i) {
    work_.set_row(static_cast<int64_t>(i), call_.x[order[i] / options_.top_k], order[i], outputs_.row(order[i]));
  }
}

void MoeLayer::add_item(int expert, const std::byte* blob, Link::Ticket ticket) {
  items_.push_back(
      make_expert_item(expert, blob, pairs_.begin(expert), static_cast<int64_t>(pairs_.of(expert).size())));
  tickets_.push_back(ticket);
}

void MoeLayer::add_pending() {
  for (const Pending& item : pending_) add_item(item.expert, slots_.slot(item.slot), item.ticket);
}

void MoeLayer::add_from_slot(int expert, int64_t slot) {
  const Link::Ticket ticket = slots_.ticket(slot);
  if (slots_.link().done(ticket)) return add_item(expert, slots_.slot(slot));
  auto later = pending_.end();
  while (later != pending_.begin() && (later - 1)->ticket > ticket) --later;
  pending_.insert(later, {expert, slot, ticket});
}

void MoeLayer::prefetch() {
  prefetches_.clear();
  if (call_.predicted.empty()) return;
  const int next = call_.layer + 1;
  slots_.table().prefetch(next, call_.predicted, options_.max_prefetches, prefetches_);
  predicted_ += call_.predicted.size();
  prefetched_ += prefetches_.size();
  bytes_fetched_ += prefetches_.size() * static_cast<uint64_t>(slots_.bank().layout(next).bytes);
}

// Copies first, so that the link works while the rest is set up. Prefetches queue behind the fetches and promotions
// behind both: they use the link once this layer needs it no more.
void MoeLayer::place_by_plan(const LayerPlan& plan, std::span<const ExpertSlot> prefetches) {
  for (const ExpertSlot& fetch : plan.fetches) slots_.fill(plan.layer, fetch.expert, fetch.slot);
  for (const ExpertSlot& prefetch : prefetches) slots_.fill(plan.layer + 1, prefetch.expert, prefetch.slot);
  for (const ExpertSlot& promotion : plan.promotions) slots_.fill(plan.layer, promotion.expert, promotion.slot);
  for (const ExpertSlot& hit : plan.hits) add_from_slot(hit.expert, hit.slot);
  for (const ExpertSlot& hit : plan.arriving) add_from_slot(hit.expert, hit.slot);
  for (const int expert : plan.cpu) add_item(expert, slots_.bank().blob(plan.layer, expert));
  ready_count_ = items_.size();
  add_pending();
  for (const ExpertSlot& fetch : plan.fetches) {
    add_item(fetch.expert, slots_.slot(fetch.slot), slots_.ticket(fetch.slot));
  }
  first_staged_ = items_.size();
}

void MoeLayer::place_prefill() {
  const bool stream = options_.strategy == Strategy::kOffload || options_.strategy == Strategy::kResident;
  for (const int expert : pairs_.distinct()) {
    const int64_t slot = slots_.table().slot_of(call_.layer, expert);
    if (slot >= 0) {
      add_from_slot(expert, slot);
    } else if (!stream) {
      add_item(expert, slots_.bank().blob(call_.layer, expert));
    }
  }
  ready_count_ = items_.size();
  add_pending();
  first_staged_ = items_.size();
  if (!stream) return;
  for (const int expert : pairs_.distinct()) {
    if (slots_.table().slot_of(call_.layer, expert) >= 0) continue;
    const auto index = static_cast<int>((items_.size() - first_staged_) % kStagingBuffers);
    add_item(expert, slots_.staging(index));
  }
}

void MoeLayer::place_all_hits() {
  const int64_t slots = slots_.slots();
  for (const int expert : pairs_.distinct()) {
    const int64_t key = int64_t{call_.layer} * slots_.bank().experts() + expert;
    add_item(expert, slots > 0 ? slots_.slot(key % slots) : slots_.bank().blob(call_.layer, expert));
  }
  ready_count_ = first_staged_ = items_.size();
}

void MoeLayer::stage_ahead(size_t computed) {
  const size_t done = computed > first_staged_ ? computed - first_staged_ : 0;
  while (first_staged_ + staged_ < items_.size() && staged_ < done + kStagingBuffers) {
    const size_t at = first_staged_ + staged_;
    tickets_[at] = slots_.stage(call_.layer, items_[at].expert, static_cast<int>(staged_ % kStagingBuffers));
    ++staged_;
  }
}

MoeLayer::Group MoeLayer::next_group(size_t begin) {
  if (begin < ready_count_) return {begin, ready_count_};
  if (begin >= items_.size()) return {begin, begin};
  slots_.link().wait(tickets_[begin]);
  size_t end = begin + 1;
  // Whatever has arrived meanwhile joins; a staged expert stays alone, so that the other buffer fills beside it.
  while (end < first_staged_ && slots_.link().done(tickets_[end])) ++end;
  return {begin, end};
}

void MoeLayer::compute(int worker, int workers) {
  while (true) {
    const Group group = group_;
    if (group.begin == group.end) break;
    if (worker == 0) stage_ahead(group.begin);
    const auto items = std::span<const ExpertItem>(items_).subspan(group.begin, group.end - group.begin);
    work_.compute(*layout_, items, worker, pool_);
    if (worker == 0) group_ = next_group(group.end);
    pool_.barrier();
  }
  merge(worker, workers);
}

void MoeLayer::merge(int worker, int workers) const {
  const int64_t chunks = (layout_->hidden + kMergeColumns - 1) / kMergeColumns;
  const Range part = split_range(call_.tokens * chunks, worker, workers);
  std::array<const float*, kMaxTopK + 1> y{};
  std::array<float, kMaxTopK + 1> weights{};
  for (int64_t task = part.begin; task < part.end; ++task) {
    const int64_t token = task / chunks, column = task % chunks * kMergeColumns;
    const int64_t first = token * options_.top_k;
    size_t count = 0;
    for (; count < static_cast<size_t>(options_.top_k); ++count) {
      const auto pair = static_cast<size_t>(first) + count;
      if (call_.ids[pair] < 0) break;
      y[count] = y_of_token_[pair] + column;
      weights[count] = call_.weights[pair];
    }
    if (call_.shared != nullptr) {
      y[count] = call_.shared[token] + column;
      weights[count++] = call_.shared_weights[token];
    }
    MergeArgs args;
    args.y = y.data();
    args.weight = weights.data();
    args.slots = static_cast<int64_t>(count);
    args.cols = std::min(kMergeColumns, layout_->hidden - column);
    args.out = call_.out[token] + column;
    kernels_.merge(args);
  }
}

void MoeLayer::count(const LayerPlan& plan) {
  const size_t misses = plan.fetches.size() + plan.cpu.size();
  const auto blob_bytes = static_cast<uint64_t>(layout_->bytes);
  hits_ += plan.hits.size() + plan.arriving.size();
  useful_ += static_cast<uint64_t>(plan.first_uses);
  for (const ExpertSlot& hit : plan.arriving) late_ += slots_.link().done(slots_.ticket(hit.slot)) ? 0 : 1;
  fetched_ += plan.fetches.size();
  cpu_ += plan.cpu.size();
  promoted_ += plan.promotions.size();
  bytes_fetched_ += (plan.fetches.size() + plan.promotions.size()) * blob_bytes;
  bytes_cpu_ += plan.cpu.size() * static_cast<uint64_t>(layout_->payload_bytes);
  ++misses_histogram_[std::min<size_t>(misses, kMissHistogramSize - 1)];
}

void MoeLayer::add_counters(EngineCounters& counters) const {
  counters.expert_hits += hits_;
  counters.expert_fetched += fetched_;
  counters.expert_cpu += cpu_;
  counters.expert_promoted += promoted_;
  counters.expert_predicted += predicted_;
  counters.expert_prefetched += prefetched_;
  counters.prefetch_useful += useful_;
  counters.prefetch_late += late_;
  counters.bytes_fetched += bytes_fetched_;
  counters.bytes_cpu += bytes_cpu_;
  for (size_t i = 0; i < misses_histogram_.size(); ++i) counters.misses_histogram[i] += misses_histogram_[i];
  counters.link_wait_seconds += slots_.link().counters().wait_seconds;
  counters.decode_link_wait_seconds += decode_link_wait_seconds_;
}

void MoeLayer::reset_counters() {
  hits_ = fetched_ = cpu_ = promoted_ = bytes_fetched_ = bytes_cpu_ = 0;
  predicted_ = prefetched_ = useful_ = late_ = 0;
  decode_link_wait_seconds_ = 0;
  misses_histogram_.fill(0);
  slots_.link().reset_counters();
}

}  // namespace ft
