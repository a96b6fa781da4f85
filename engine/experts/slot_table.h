// Which expert is in which slot: the cache policy as pure logic. The engine's MoE layer and the tuner's trace replay
// run this same class, so a predicted hit rate and a measured one come from one policy.
//
// One pool of slots over all MoE layers, least recently used first, ties by slot index. Time advances by one per
// plan() call; a step begins when plan() is called for a layer that is not above the one before. An entry that is being
// filled counts as present: whoever computes from it waits for its copy.
//
// Invariants (check_integrity): a key is in at most one slot; a slot holds at most one key; the hits, fetches and
// promotions of the current layer are pinned until the next plan() and are never victims of that layer. A promotion
// moreover never takes a slot that was filled earlier in the same step: its copy may still be under way, and two copies
// of one step into one slot would waste the link. With few slots promotions therefore stop for the rest of a step.
// REQUIRES: slots >= distinct experts of one layer at the largest batch, or slots == 0 (everything runs from the bank).
// Thread rule: one thread. No allocation after the constructor, except in content().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ft {

struct ExpertSlot {
  int expert = -1;
  int64_t slot = -1;
};

// What one MoE layer of one step does. Vectors are cleared and refilled; their capacity is reserved once.
struct LayerPlan {
  int layer = 0;                       // MoE layer index
  std::vector<ExpertSlot> hits;        // computed from slots
  std::vector<ExpertSlot> fetches;     // copied bank -> slot over the link, then computed from the slot
  std::vector<int> cpu;                // computed from the bank
  std::vector<ExpertSlot> promotions;  // subset of cpu: also copied into a slot, after the layer needs the link no more
  void reserve(int max_distinct);
  void clear();
};

class SlotTable {
 public:
  // slots <= layers * experts.
  SlotTable(int layers, int experts, int64_t slots);

  // Splits the layer's distinct experts (ascending ids, no duplicates): hits first; of the m misses, fetch_of_misses[m]
  // in ascending expert order are fetched, the rest goes to the CPU; of those the first max_promotions get slots. With
  // slots == 0 all of them go to the CPU whatever the table says. `out` must have room: LayerPlan::reserve.
  void plan(int layer, std::span<const int> distinct, std::span<const int> fetch_of_misses, int max_promotions,
            LayerPlan& out);

  // Resident start: puts experts into slots in (layer, expert) order until the slots are full.
  void fill_in_order();
  // Cache content as data: slot -> layer * experts + expert, -1 empty; and its order of use, oldest first. For starting
  // a candidate where the trace replay ends.
  struct Content {
    std::vector<int64_t> key_of_slot;
    std::vector<int64_t> slots_by_age;
  };
  Content content() const;
  // Throws Error(kFailed), and changes nothing, when the content has another shape or is no cache content (a key twice,
  // a key out of range, slots_by_age no permutation).
  void restore(const Content& content);
  void clear();

  bool contains(int layer, int expert) const;
  int64_t slot_of(int layer, int expert) const {  // -1: in no slot. Reads only: no use is noted
    return slot_of_key_[static_cast<size_t>(key(layer, expert))];
  }
  int64_t slots() const;
  void check_integrity() const;  // FT_CHECKs the invariants

 private:
  int64_t key(int layer, int expert) const { return static_cast<int64_t>(layer) * experts_ + expert; }
  void touch(int64_t slot);                           // makes it the newest and pins it
  void fill(int64_t slot, int64_t key);               // replaces what is in it
  void link_by_age(std::span<const int64_t> by_age);  // oldest first; empty: by slot index
  void check_content(const Content& content) const;

  int layers_ = 0, experts_ = 0;
  int64_t slots_ = 0;
  std::vector<int64_t> slot_of_key_;  // [layer * experts + expert] -> slot or -1
  std::vector<int64_t> key_of_slot_;
  std::vector<int64_t> newer_, older_;  // doubly linked list of slots by use
  std::vector<uint64_t> pinned_at_;     // plan() number that pinned the slot
  std::vector<uint64_t> filled_in_;     // step number that filled the slot
  int64_t oldest_ = -1, newest_ = -1;
  uint64_t plan_number_ = 0, step_number_ = 0;
  int last_layer_ = -1;
};

}  // namespace ft
