#include "engine/experts/slot_table.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/base/error.h"
#include "kernels/base/use_priority.h"

namespace ft {
namespace {

constexpr UseBonusTable kUseBonus = make_use_bonus_table();

Error bad_content(const std::string& what, int64_t value, const std::string& allowed) {
  return Error(ErrorKind::kFailed, {.what = "cache content refused: " + what,
                                    .value = std::to_string(value),
                                    .allowed = allowed,
                                    .action = "replay the trace with this model and this slot count"});
}

}  // namespace

void LayerPlan::reserve(int max_distinct) {
  const auto count = static_cast<size_t>(max_distinct);
  hits.reserve(count);
  arriving.reserve(count);
  fetches.reserve(count);
  cpu.reserve(count);
  promotions.reserve(count);
}

void LayerPlan::clear() {
  hits.clear();
  arriving.clear();
  fetches.clear();
  cpu.clear();
  promotions.clear();
  first_uses = 0;
}

SlotTable::SlotTable(int layers, int experts, int64_t slots, const SlotPolicy& policy)
    : layers_(layers), experts_(experts), slots_(slots), policy_(policy) {
  FT_CHECK(layers >= 0 && experts >= 0 && slots >= 0);
  FT_CHECK(policy.half_life_log2 == 0 ||
           (policy.half_life_log2 >= kMinHalfLifeLog2 && policy.half_life_log2 <= kMaxHalfLifeLog2));
  if (policy_.max_distinct == 0) policy_.max_distinct = experts;
  const int64_t keys = static_cast<int64_t>(layers) * experts;
  FT_CHECK(slots <= keys);
  slot_bits_ = slot_bits(slots);
  const auto key_count = static_cast<size_t>(keys), slot_count = static_cast<size_t>(slots);
  slot_of_key_.assign(key_count, -1);
  priority_of_key_.assign(key_count, 0);
  key_of_slot_.assign(slot_count, -1);
  filled_in_.assign(slot_count, 0);
  prefetched_in_.assign(slot_count, 0);
  pinned_.reserve(slot_count);
  aside_.reserve(slot_count);
  misses_.reserve(static_cast<size_t>(experts));
  reset_stamps();
}

uint64_t SlotTable::stamp_of(int64_t slot) const {
  const int64_t key = key_of_slot_[static_cast<size_t>(slot)];
  const uint64_t priority = key < 0 ? 0 : priority_of_key_[static_cast<size_t>(key)];
  return victim_stamp(priority, slot, slot_bits_);
}

void SlotTable::reset_stamps() {
  std::vector<uint64_t> stamps(static_cast<size_t>(slots_));
  for (int64_t slot = 0; slot < slots_; ++slot) stamps[static_cast<size_t>(slot)] = stamp_of(slot);
  heap_.reset(std::move(stamps));
}

void SlotTable::hold(int64_t slot, std::vector<int64_t>& in) {
  heap_.set(slot, kHeldStamp);
  in.push_back(slot);
}

void SlotTable::pin(int64_t slot) {
  if (heap_.stamp(slot) != kHeldStamp) hold(slot, pinned_);
}

void SlotTable::release(std::vector<int64_t>& list) {
  for (const int64_t slot : list) heap_.set(slot, stamp_of(slot));
  list.clear();
}

void SlotTable::begin_plan(int layer) {
  FT_CHECK(layer >= 0 && layer < layers_);
  ++plan_number_;
  release(pinned_);
  if (layer <= last_layer_ || step_number_ == 0) {
    ++step_number_;
    release(aside_);
  }
  last_layer_ = layer;
}

void SlotTable::fill(int64_t slot, int64_t new_key) {
  const auto s = static_cast<size_t>(slot);
  if (key_of_slot_[s] >= 0) slot_of_key_[static_cast<size_t>(key_of_slot_[s])] = -1;
  key_of_slot_[s] = new_key;
  slot_of_key_[static_cast<size_t>(new_key)] = slot;
  filled_in_[s] = step_number_;
  prefetched_in_[s] = 0;
}

bool SlotTable::fill_aside(int64_t new_key, bool prefetch) {
  if (slots_ - static_cast<int64_t>(aside_.size()) <= policy_.max_distinct) return false;
  const int64_t victim = heap_.top();
  if (heap_.stamp(victim) == kHeldStamp || filled_in_[static_cast<size_t>(victim)] == step_number_) return false;
  fill(victim, new_key);
  hold(victim, aside_);
  if (prefetch) prefetched_in_[static_cast<size_t>(victim)] = step_number_;
  return true;
}

void SlotTable::use(int64_t slot, int expert, LayerPlan& out) {
  uint64_t& prefetched = prefetched_in_[static_cast<size_t>(slot)];
  const bool arriving = prefetched == step_number_;  // a step's number is not 0
  (arriving ? out.arriving : out.hits).push_back({expert, slot});
  out.first_uses += prefetched != 0 ? 1 : 0;
  prefetched = 0;
  if (!arriving) return pin(slot);
  aside_.erase(std::find(aside_.begin(), aside_.end(), slot));
  pinned_.push_back(slot);
}

void SlotTable::plan(int layer, std::span<const int> distinct, std::span<const int> fetch_of_misses,
                     PromotionRate promotions, LayerPlan& out) {
  begin_plan(layer);
  out.clear();
  out.layer = layer;
  misses_.clear();
  int previous = -1, place = 0;
  for (const int expert : distinct) {
    FT_CHECK(expert > previous && expert < experts_);
    previous = expert;
    uint64_t& priority = priority_of_key_[static_cast<size_t>(key(layer, expert))];
    const int64_t slot = slot_of(layer, expert);
    if (slot < 0) misses_.push_back({priority, expert});
    if (slots_ > 0) {
      priority = priority_after_use(priority, use_time(plan_number_, place), policy_.half_life_log2, kUseBonus);
    }
    if (slot >= 0) use(slot, expert, out);
    ++place;
  }
  std::sort(misses_.begin(), misses_.end(), [](const Miss& a, const Miss& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.expert < b.expert;
  });
  const size_t misses = misses_.size();
  int fetches = 0;
  if (misses > 0 && slots_ > 0) {
    FT_CHECK(misses < fetch_of_misses.size());
    fetches = fetch_of_misses[misses];
    FT_CHECK(fetches >= 0 && static_cast<size_t>(fetches) <= misses);
  }
  for (int i = 0; i < fetches; ++i) {
    const int64_t victim = heap_.top();
    FT_CHECK(heap_.stamp(victim) != kHeldStamp);  // slots < distinct experts
    const int expert = misses_[static_cast<size_t>(i)].expert;
    fill(victim, key(layer, expert));
    pin(victim);
    out.fetches.push_back({expert, victim});
  }
  for (size_t i = static_cast<size_t>(fetches); i < misses; ++i) out.cpu.push_back(misses_[i].expert);
  const int most = promotions.of_plan(plan_number_);
  for (const int expert : out.cpu) {
    if (static_cast<int>(out.promotions.size()) >= most) break;
    if (!fill_aside(key(layer, expert), false)) break;
    out.promotions.push_back({expert, slot_of(layer, expert)});
  }
}

void SlotTable::prefetch(int layer, std::span<const int> predicted, int max_prefetches,
                         std::vector<ExpertSlot>& copies) {
  FT_CHECK(layer > last_layer_ && layer < layers_ && step_number_ > 0);
  copies.clear();
  if (slots_ == 0) return;
  for (const int expert : predicted) {
    FT_CHECK(expert >= 0 && expert < experts_);
    if (const int64_t slot = slot_of(layer, expert); slot >= 0) pin(slot);
  }
  for (const int expert : predicted) {
    if (static_cast<int>(copies.size()) >= max_prefetches) break;
    if (contains(layer, expert)) continue;
    const uint64_t expected = priority_of_key_[static_cast<size_t>(key(layer, expert))];
    const uint64_t victim = heap_.stamp(heap_.top()) >> slot_bits_;
    if (!worth_prefetching(expected, victim, policy_.half_life_log2)) continue;
    if (!fill_aside(key(layer, expert), true)) break;
    copies.push_back({expert, slot_of(layer, expert)});
  }
}

void SlotTable::clear() {
  std::fill(slot_of_key_.begin(), slot_of_key_.end(), int64_t{-1});
  std::fill(priority_of_key_.begin(), priority_of_key_.end(), uint64_t{0});
  std::fill(key_of_slot_.begin(), key_of_slot_.end(), int64_t{-1});
  std::fill(filled_in_.begin(), filled_in_.end(), uint64_t{0});
  std::fill(prefetched_in_.begin(), prefetched_in_.end(), uint64_t{0});
  pinned_.clear();
  aside_.clear();
  plan_number_ = step_number_ = 0;
  last_layer_ = -1;
  reset_stamps();
}

void SlotTable::fill_in_order() {
  clear();
  for (int64_t slot = 0; slot < slots_; ++slot) {
    key_of_slot_[static_cast<size_t>(slot)] = slot;
    slot_of_key_[static_cast<size_t>(slot)] = slot;
  }
}

SlotTable::Content SlotTable::content() const { return {key_of_slot_, priority_of_key_, plan_number_}; }

void SlotTable::check_content(const Content& content) const {
  const auto count = static_cast<size_t>(slots_);
  if (content.key_of_slot.size() != count) {
    throw bad_content("number of slots", static_cast<int64_t>(content.key_of_slot.size()), std::to_string(slots_));
  }
  const auto keys = static_cast<int64_t>(slot_of_key_.size());
  std::vector<bool> key_seen(slot_of_key_.size());
  for (const int64_t k : content.key_of_slot) {
    if (k < -1 || k >= keys) throw bad_content("expert key", k, "-1 to " + std::to_string(keys - 1));
    if (k < 0) continue;
    if (key_seen[static_cast<size_t>(k)]) throw bad_content("expert key in two slots", k, "each key once");
    key_seen[static_cast<size_t>(k)] = true;
  }
  if (content.plans > kMaxPlans) {
    throw bad_content("plan() calls", static_cast<int64_t>(std::min<uint64_t>(content.plans, INT64_MAX)),
                      "up to " + std::to_string(kMaxPlans));
  }
  if (!content.priority_of_key.empty() && content.priority_of_key.size() != slot_of_key_.size()) {
    throw bad_content("number of priorities", static_cast<int64_t>(content.priority_of_key.size()),
                      std::to_string(keys) + ", or none");
  }
  const uint64_t latest = max_priority(content.plans, policy_.half_life_log2);
  for (const uint64_t priority : content.priority_of_key) {
    if (priority > latest) {
      throw bad_content("priority from the future", static_cast<int64_t>(std::min<uint64_t>(priority, INT64_MAX)),
                        "up to " + std::to_string(latest));
    }
  }
}

void SlotTable::restore(const Content& content) {
  check_content(content);
  clear();
  key_of_slot_ = content.key_of_slot;
  if (!content.priority_of_key.empty()) priority_of_key_ = content.priority_of_key;
  plan_number_ = content.plans;
  for (int64_t slot = 0; slot < slots_; ++slot) {
    const int64_t k = key_of_slot_[static_cast<size_t>(slot)];
    if (k >= 0) slot_of_key_[static_cast<size_t>(k)] = slot;
  }
  reset_stamps();
}

bool SlotTable::contains(int layer, int expert) const { return slot_of(layer, expert) >= 0; }

int64_t SlotTable::slots() const { return slots_; }

void SlotTable::check_integrity() const {
  int64_t held = 0;
  for (size_t k = 0; k < slot_of_key_.size(); ++k) {
    const int64_t slot = slot_of_key_[k];
    if (slot < 0) continue;
    ++held;
    FT_CHECK(slot < slots_ && key_of_slot_[static_cast<size_t>(slot)] == static_cast<int64_t>(k));
  }
  FT_CHECK(held == std::count_if(key_of_slot_.begin(), key_of_slot_.end(), [](int64_t k) { return k >= 0; }));
  FT_CHECK(heap_.ordered());
  std::vector<bool> no_victim(static_cast<size_t>(slots_));
  for (const auto* list : {&pinned_, &aside_}) {
    for (const int64_t slot : *list) {
      FT_CHECK(!no_victim[static_cast<size_t>(slot)]);
      no_victim[static_cast<size_t>(slot)] = true;
    }
  }
  for (int64_t slot = 0; slot < slots_; ++slot) {
    FT_CHECK(heap_.stamp(slot) == (no_victim[static_cast<size_t>(slot)] ? kHeldStamp : stamp_of(slot)));
  }
  FT_CHECK(aside_.empty() || slots_ - static_cast<int64_t>(aside_.size()) >= policy_.max_distinct);
}

}  // namespace ft
