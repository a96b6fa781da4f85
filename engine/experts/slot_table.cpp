#include "engine/experts/slot_table.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/base/error.h"

namespace ft {
namespace {

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
  fetches.reserve(count);
  cpu.reserve(count);
  promotions.reserve(count);
}

void LayerPlan::clear() {
  hits.clear();
  fetches.clear();
  cpu.clear();
  promotions.clear();
}

SlotTable::SlotTable(int layers, int experts, int64_t slots) : layers_(layers), experts_(experts), slots_(slots) {
  FT_CHECK(layers >= 0 && experts >= 0 && slots >= 0);
  const int64_t keys = static_cast<int64_t>(layers) * experts;
  FT_CHECK(slots <= keys);
  slot_of_key_.assign(static_cast<size_t>(keys), -1);
  const auto count = static_cast<size_t>(slots);
  key_of_slot_.assign(count, -1);
  newer_.assign(count, -1);
  older_.assign(count, -1);
  pinned_at_.assign(count, 0);
  filled_in_.assign(count, 0);
  link_by_age({});
}

void SlotTable::link_by_age(std::span<const int64_t> by_age) {
  oldest_ = newest_ = -1;
  for (int64_t i = 0; i < slots_; ++i) {
    const int64_t slot = by_age.empty() ? i : by_age[static_cast<size_t>(i)];
    older_[static_cast<size_t>(slot)] = newest_;
    newer_[static_cast<size_t>(slot)] = -1;
    if (newest_ >= 0) newer_[static_cast<size_t>(newest_)] = slot;
    if (oldest_ < 0) oldest_ = slot;
    newest_ = slot;
  }
}

void SlotTable::touch(int64_t slot) {
  const auto s = static_cast<size_t>(slot);
  pinned_at_[s] = plan_number_;
  if (slot == newest_) return;
  const int64_t newer = newer_[s], older = older_[s];  // newer >= 0: it is not the newest
  older_[static_cast<size_t>(newer)] = older;
  if (older >= 0) {
    newer_[static_cast<size_t>(older)] = newer;
  } else {
    oldest_ = newer;
  }
  newer_[static_cast<size_t>(newest_)] = slot;
  older_[s] = newest_;
  newer_[s] = -1;
  newest_ = slot;
}

void SlotTable::fill(int64_t slot, int64_t new_key) {
  const auto s = static_cast<size_t>(slot);
  if (key_of_slot_[s] >= 0) slot_of_key_[static_cast<size_t>(key_of_slot_[s])] = -1;
  key_of_slot_[s] = new_key;
  slot_of_key_[static_cast<size_t>(new_key)] = slot;
  filled_in_[s] = step_number_;
  touch(slot);
}

void SlotTable::plan(int layer, std::span<const int> distinct, std::span<const int> fetch_of_misses, int max_promotions,
                     LayerPlan& out) {
  FT_CHECK(layer >= 0 && layer < layers_);
  ++plan_number_;
  if (layer <= last_layer_ || step_number_ == 0) ++step_number_;
  last_layer_ = layer;
  out.clear();
  out.layer = layer;
  int previous = -1;
  for (const int expert : distinct) {
    FT_CHECK(expert > previous && expert < experts_);
    previous = expert;
    const int64_t slot = slot_of_key_[static_cast<size_t>(key(layer, expert))];
    if (slot >= 0) {
      touch(slot);
      out.hits.push_back({expert, slot});
    } else {
      out.cpu.push_back(expert);
    }
  }
  const size_t misses = out.cpu.size();
  if (misses == 0 || slots_ == 0) return;

  // All hits are pinned and newest by now, so the oldest slot is a victim unless everything is pinned.
  FT_CHECK(misses < fetch_of_misses.size());
  const int fetches = fetch_of_misses[misses];
  FT_CHECK(fetches >= 0 && static_cast<size_t>(fetches) <= misses);
  for (int i = 0; i < fetches; ++i) {
    const int64_t victim = oldest_;
    FT_CHECK(pinned_at_[static_cast<size_t>(victim)] != plan_number_);  // slots < distinct experts
    const int expert = out.cpu[static_cast<size_t>(i)];
    fill(victim, key(layer, expert));
    out.fetches.push_back({expert, victim});
  }
  out.cpu.erase(out.cpu.begin(), out.cpu.begin() + fetches);
  for (const int expert : out.cpu) {
    if (static_cast<int>(out.promotions.size()) >= max_promotions) break;
    const int64_t victim = oldest_;
    if (pinned_at_[static_cast<size_t>(victim)] == plan_number_ ||
        filled_in_[static_cast<size_t>(victim)] == step_number_) {
      break;
    }
    fill(victim, key(layer, expert));
    out.promotions.push_back({expert, victim});
  }
}

void SlotTable::clear() {
  std::fill(slot_of_key_.begin(), slot_of_key_.end(), int64_t{-1});
  std::fill(key_of_slot_.begin(), key_of_slot_.end(), int64_t{-1});
  std::fill(pinned_at_.begin(), pinned_at_.end(), uint64_t{0});
  std::fill(filled_in_.begin(), filled_in_.end(), uint64_t{0});
  plan_number_ = step_number_ = 0;
  last_layer_ = -1;
  link_by_age({});
}

void SlotTable::fill_in_order() {
  clear();
  for (int64_t slot = 0; slot < slots_; ++slot) {
    key_of_slot_[static_cast<size_t>(slot)] = slot;
    slot_of_key_[static_cast<size_t>(slot)] = slot;
  }
}

SlotTable::Content SlotTable::content() const {
  Content content;
  content.key_of_slot = key_of_slot_;
  content.slots_by_age.reserve(static_cast<size_t>(slots_));
  for (int64_t slot = oldest_; slot >= 0; slot = newer_[static_cast<size_t>(slot)])
    content.slots_by_age.push_back(slot);
  return content;
}

void SlotTable::check_content(const Content& content) const {
  const auto count = static_cast<size_t>(slots_);
  if (content.key_of_slot.size() != count || content.slots_by_age.size() != count) {
    throw bad_content("number of slots", static_cast<int64_t>(content.key_of_slot.size()), std::to_string(slots_));
  }
  const auto keys = static_cast<int64_t>(slot_of_key_.size());
  std::vector<bool> key_seen(slot_of_key_.size()), slot_seen(count);
  for (const int64_t k : content.key_of_slot) {
    if (k < -1 || k >= keys) throw bad_content("expert key", k, "-1 to " + std::to_string(keys - 1));
    if (k < 0) continue;
    if (key_seen[static_cast<size_t>(k)]) throw bad_content("expert key in two slots", k, "each key once");
    key_seen[static_cast<size_t>(k)] = true;
  }
  for (const int64_t slot : content.slots_by_age) {
    if (slot < 0 || slot >= slots_) throw bad_content("slot in the order of use", slot, "a slot index");
    if (slot_seen[static_cast<size_t>(slot)])
      throw bad_content("slot twice in the order of use", slot, "each slot once");
    slot_seen[static_cast<size_t>(slot)] = true;
  }
}

void SlotTable::restore(const Content& content) {
  check_content(content);
  clear();
  key_of_slot_ = content.key_of_slot;
  for (int64_t slot = 0; slot < slots_; ++slot) {
    const int64_t k = key_of_slot_[static_cast<size_t>(slot)];
    if (k >= 0) slot_of_key_[static_cast<size_t>(k)] = slot;
  }
  link_by_age(content.slots_by_age);
}

bool SlotTable::contains(int layer, int expert) const {
  return slot_of_key_[static_cast<size_t>(key(layer, expert))] >= 0;
}

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
  int64_t linked = 0, previous = -1;
  bool pinned_seen = false;  // pinned slots are the newest ones
  for (int64_t slot = oldest_; slot >= 0; slot = newer_[static_cast<size_t>(slot)]) {
    FT_CHECK(linked < slots_ && older_[static_cast<size_t>(slot)] == previous);
    const bool pinned = plan_number_ > 0 && pinned_at_[static_cast<size_t>(slot)] == plan_number_;
    FT_CHECK(pinned || !pinned_seen);
    pinned_seen = pinned;
    previous = slot;
    ++linked;
  }
  FT_CHECK(linked == slots_ && newest_ == previous);
}

}  // namespace ft
