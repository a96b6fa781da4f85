// The slot table's policy in the simplest words: a list of slots, searched linearly. Written from slot_table.h's
// comment, for SlotTable and replay to be compared with. A use's weight comes from use_priority.h, which has its own
// test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/experts/slot_table.h"
#include "kernels/base/use_priority.h"

namespace ft {

struct NaiveTable {
  struct Entry {
    int64_t key = -1;
    bool pinned = false, aside = false;  // until the next plan; until the next step
    int filled_in = 0, prefetched_in = 0;
  };

  NaiveTable(int layer_experts, int64_t slots, const SlotPolicy& slot_policy)
      : experts(layer_experts), policy(slot_policy), entries(static_cast<size_t>(slots)) {}

  int64_t find(int64_t key) const {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].key == key) return static_cast<int64_t>(i);
    }
    return -1;
  }
  uint64_t priority_of(int64_t key) const {
    const auto found = priority.find(key);
    return found == priority.end() ? 0 : found->second;
  }
  int64_t victim() const {  // -1: none
    int64_t best = -1;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].pinned || entries[i].aside) continue;
      if (best < 0 || priority_of(entries[i].key) < priority_of(entries[static_cast<size_t>(best)].key)) {
        best = static_cast<int64_t>(i);
      }
    }
    return best;
  }
  int64_t put_aside(int64_t key, bool prefetch) {  // slot, or -1
    const auto held = std::count_if(entries.begin(), entries.end(), [](const Entry& e) { return e.aside; });
    const int64_t slot = victim();
    if (static_cast<int64_t>(entries.size()) - held <= policy.max_distinct || slot < 0) return -1;
    if (entries[static_cast<size_t>(slot)].filled_in == step) return -1;
    entries[static_cast<size_t>(slot)] = {key, false, true, step, prefetch ? step : 0};
    return slot;
  }

  LayerPlan plan(int layer, const std::vector<int>& distinct, const std::vector<int>& split, PromotionRate promotions) {
    ++plans;
    const bool new_step = layer <= last_layer || step == 0;
    if (new_step) ++step;
    last_layer = layer;
    for (Entry& entry : entries) {
      entry.pinned = false;
      if (new_step) entry.aside = false;
    }
    LayerPlan out;
    std::vector<std::pair<uint64_t, int>> missing;  // 2^63 - priority, expert
    for (size_t place = 0; place < distinct.size(); ++place) {
      const int64_t key = static_cast<int64_t>(layer) * experts + distinct[place];
      const int64_t slot = find(key);
      const uint64_t before = priority_of(key);
      if (!entries.empty()) {
        priority[key] =
            priority_after_use(before, use_time(plans, static_cast<int>(place)), policy.half_life_log2, table);
      }
      if (slot < 0) {
        missing.emplace_back((uint64_t{1} << 63) - before, distinct[place]);
        continue;
      }
      Entry& entry = entries[static_cast<size_t>(slot)];
      (entry.prefetched_in == step ? out.arriving : out.hits).push_back({distinct[place], slot});
      if (entry.prefetched_in != 0) ++out.first_uses;
      entry.prefetched_in = 0;
      entry.pinned = true;
      entry.aside = false;
    }
    std::sort(missing.begin(), missing.end());
    const auto fetches = static_cast<size_t>(entries.empty() || missing.empty() ? 0 : split[missing.size()]);
    for (size_t i = 0; i < missing.size(); ++i) {
      const int expert = missing[i].second;
      if (i >= fetches) {
        out.cpu.push_back(expert);
        continue;
      }
      const int64_t slot = victim();
      entries[static_cast<size_t>(slot)] = {static_cast<int64_t>(layer) * experts + expert, true, false, step, 0};
      out.fetches.push_back({expert, slot});
    }
    for (const int expert : out.cpu) {
      if (entries.empty() ||
          static_cast<int>(out.promotions.size()) >= promotions.of_plan(static_cast<uint64_t>(plans)))
        break;
      const int64_t slot = put_aside(static_cast<int64_t>(layer) * experts + expert, false);
      if (slot < 0) break;
      out.promotions.push_back({expert, slot});
    }
    return out;
  }

  std::vector<ExpertSlot> prefetch(int layer, const std::vector<int>& predicted, int max_prefetches) {
    std::vector<ExpertSlot> copies;
    for (const int expert : predicted) {
      const int64_t slot = find(static_cast<int64_t>(layer) * experts + expert);
      if (slot >= 0) entries[static_cast<size_t>(slot)].pinned = true;
    }
    for (const int expert : predicted) {
      const int64_t key = static_cast<int64_t>(layer) * experts + expert;
      if (entries.empty() || static_cast<int>(copies.size()) >= max_prefetches) break;
      if (find(key) >= 0) continue;
      const int64_t next = victim();
      const uint64_t worst = next < 0 ? 0 : priority_of(entries[static_cast<size_t>(next)].key);
      const auto half_a_half_life = static_cast<int64_t>(1) << policy.half_life_log2 >> 1;
      if (policy.half_life_log2 > 0 && priority_of(key) == 0) continue;
      if (policy.half_life_log2 > 0 &&
          static_cast<int64_t>(priority_of(key)) <= static_cast<int64_t>(worst) - half_a_half_life)
        continue;
      const int64_t slot = put_aside(key, true);
      if (slot < 0) break;
      copies.push_back({expert, slot});
    }
    return copies;
  }

  int experts = 0;
  SlotPolicy policy;
  std::vector<Entry> entries;
  std::map<int64_t, uint64_t> priority;
  UseBonusTable table = make_use_bonus_table();
  uint64_t plans = 0;
  int step = 0, last_layer = -1;
};

}  // namespace ft
