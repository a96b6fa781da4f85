// Which expert is in which slot: the cache policy as pure logic. The engine's MoE layer and the tuner's trace replay
// run this same class, and the device's plan takes the same decisions, so a predicted hit rate and a measured one come
// from one policy.
//
// One pool of slots over all MoE layers. The slot whose expert has the lowest priority (kernels/base/use_priority.h) is
// the victim, ties by slot index; an expert keeps its priority while it is in no slot. Time advances by one per plan()
// call; a step begins when plan() is called for a layer that is not above the one before. An entry that is being filled
// counts as present: whoever computes from it waits for its copy.
//
// Two kinds of copies go beside or behind a layer's work: promotions (experts computed on the CPU) and prefetches
// (experts that the next layer is expected to use). Their copies end with the step at the latest.
//
// Invariants (check_integrity): a key is in at most one slot; a slot holds at most one key. Never a victim are
//  - the hits, fetches and promotions of the current layer, until the next plan();
//  - a promotion or prefetch of this step that was not used since: its copy may be under way, and not every device
//    orders it against a fetch into the same slot;
//  - for a prefetch: the experts that are predicted with it.
// Promotions and prefetches moreover take no slot that was filled earlier in the same step (two copies of one step into
// one slot would waste the link), and leave max_distinct slots to fetches. With few slots they therefore stop for the
// rest of a step.
// REQUIRES: slots >= SlotPolicy::max_distinct, or slots == 0 (everything runs from the bank).
// Thread rule: one thread. No allocation after the constructor, except in content() and restore().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/experts/cache_policy.h"
#include "engine/experts/victim_heap.h"
#include "kernels/base/promotion_rate.h"

namespace ft {

struct ExpertSlot {
  int expert = -1;
  int64_t slot = -1;
};

// What one MoE layer of one step does. Vectors are cleared and refilled; their capacity is reserved once.
struct LayerPlan {
  int layer = 0;                       // MoE layer index
  std::vector<ExpertSlot> hits;        // computed from slots
  std::vector<ExpertSlot> arriving;    // hits that were prefetched in this step: computed when their copy is there
  std::vector<ExpertSlot> fetches;     // copied bank -> slot over the link, then computed from the slot
  std::vector<int> cpu;                // computed from the bank
  std::vector<ExpertSlot> promotions;  // subset of cpu: also copied into a slot, after the layer needs the link no more
  int first_uses = 0;                  // hits and arriving ones that a prefetch, of any step, had brought
  void reserve(int max_distinct);
  void clear();
};

class SlotTable {
 public:
  // slots <= layers * experts.
  SlotTable(int layers, int experts, int64_t slots, const SlotPolicy& policy = {});

  // Splits the layer's distinct experts (ascending ids, no duplicates): hits first; of the m misses the
  // fetch_of_misses[m] with the highest priority before this use (ties: ascending experts) are fetched, the rest goes
  // to the CPU; of those the first in the same order get slots, as many as `promotions` has for this plan. With slots
  // == 0 all of them go to the CPU whatever the table says. `out` must have room: LayerPlan::reserve.
  void plan(int layer, std::span<const int> distinct, std::span<const int> fetch_of_misses, PromotionRate promotions,
            LayerPlan& out);

  // Of the experts that a later layer of this step is expected to use, best first, those in no slot that are worth the
  // next victim's (worth_prefetching) get one, at most max_prefetches. Duplicates are allowed. Predictions are no uses:
  // priorities stay. `copies` is cleared and refilled in order of copying; it must have room for max_prefetches.
  void prefetch(int layer, std::span<const int> predicted, int max_prefetches, std::vector<ExpertSlot>& copies);

  // Resident start: puts experts into slots in (layer, expert) order until the slots are full.
  void fill_in_order();
  // Cache content as data. For starting a candidate where the trace replay ends.
  struct Content {
    std::vector<int64_t> key_of_slot;       // slot -> layer * experts + expert, -1 empty
    std::vector<uint64_t> priority_of_key;  // of all keys, in a slot or not; empty: none was ever used
    uint64_t plans = 0;                     // plan() calls so far: the time of the priorities
  };
  Content content() const;
  // Throws Error(kFailed), and changes nothing, when the content has another shape or is no cache content (a key twice,
  // a key out of range, a priority from the future). The next plan() begins a step.
  void restore(const Content& content);
  void clear();

  bool contains(int layer, int expert) const;
  int64_t slot_of(int layer, int expert) const {  // -1: in no slot. Reads only: no use is noted
    return slot_of_key_[static_cast<size_t>(key(layer, expert))];
  }
  int64_t slots() const;
  const SlotPolicy& policy() const { return policy_; }  // max_distinct as it is used
  void check_integrity() const;                         // FT_CHECKs the invariants

 private:
  struct Miss {
    uint64_t priority = 0;  // before this use
    int expert = -1;
  };
  int64_t key(int layer, int expert) const { return static_cast<int64_t>(layer) * experts_ + expert; }
  uint64_t stamp_of(int64_t slot) const;  // the heap's order: priority, then slot
  void begin_plan(int layer);
  void pin(int64_t slot);                             // no victim until the next plan()
  void hold(int64_t slot, std::vector<int64_t>& in);  // no victim until the slots of that list are released
  void release(std::vector<int64_t>& list);
  void use(int64_t slot, int expert, LayerPlan& out);
  bool fill_aside(int64_t key, bool prefetch);  // by a promotion or prefetch; false: no slot may be taken
  void fill(int64_t slot, int64_t key);         // replaces what is in it
  void reset_stamps();
  void check_content(const Content& content) const;

  int layers_ = 0, experts_ = 0;
  int64_t slots_ = 0;
  SlotPolicy policy_;
  int slot_bits_ = 0;
  std::vector<int64_t> slot_of_key_;       // [layer * experts + expert] -> slot or -1
  std::vector<uint64_t> priority_of_key_;  // 0: never used
  std::vector<int64_t> key_of_slot_;
  VictimHeap heap_;                      // by stamp; kHeldStamp: no victim
  std::vector<uint64_t> filled_in_;      // step number that filled the slot
  std::vector<uint64_t> prefetched_in_;  // step whose prefetch filled the slot, not used since; 0: none
  std::vector<int64_t> pinned_;          // slots held until the next plan()
  std::vector<int64_t> aside_;           // slots held until the next step, unless used before
  std::vector<Miss> misses_;             // of the layer being planned
  uint64_t plan_number_ = 0, step_number_ = 0;
  int last_layer_ = -1;
};

}  // namespace ft
