// Placement by the slot table: SlotTable's decisions (engine/experts/slot_table.h), by one block. Part of plan.cuh.
#pragma once

#include "kernels/base/use_priority.h"
#include "kernels/cuda/oldest_slots.cuh"
#include "kernels/cuda/plan_lists.cuh"

namespace ft::cuda {

static __device__ const UseBonusTable kUseBonus = make_use_bonus_table();
inline constexpr int kNotNamed = 0x7fffffff;

// What a layer's decisions need to know of the table, as the layer begins.
struct PlanTime {
  uint64_t plan, step;
  int aside;  // slots that are held until the step ends
  bool new_step;
};

__device__ inline PlanTime time_of(const PlanArgs& a, const PlanInput& input) {
  const bool new_step = static_cast<uint64_t>(a.layer + 1) <= input.last_layer_plus_one || input.step_number == 0;
  return {input.plan_number + 1, input.step_number + (new_step ? 1 : 0), new_step ? 0 : static_cast<int>(input.aside),
          new_step};
}

__device__ inline uint64_t stamp_of(const SlotTableView& table, int slot) {
  const int32_t key = table.key_of_slot[slot];
  return victim_stamp(key < 0 ? 0 : table.priority_of_key[key], slot, table.slot_bits);
}

// Puts a key into a slot; its stamp is the caller's.
__device__ inline void fill_slot(const SlotTableView& table, int slot, int32_t key, uint64_t step) {
  const int32_t old = table.key_of_slot[slot];
  if (old >= 0) table.slot_of_key[old] = -1;
  table.key_of_slot[slot] = key;
  table.slot_of_key[key] = slot;
  table.filled_in[slot] = step;
  table.prefetched_in[slot] = 0;
}

struct Uses {
  int hits, arriving, misses;
};

// Notes the layer's uses: hits are held and become items, what is arriving comes behind `hits + fetches` later on
// (lists.slot says ~slot), misses go to lists.miss. Ends with a barrier.
__device__ inline Uses note_uses(const PlanArgs& a, const PlanInput& input, const PlanLists& lists, int distinct,
                                 const PlanTime& time, PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x);
  Uses uses{0, 0, 0};
  for (int base = 0; base < distinct; base += kPlanThreads) {
    const int d = base + thread;
    int slot = -1;
    bool arriving = false, first_use = false;
    uint64_t before = 0;
    if (d < distinct) {
      const int32_t key = a.layer * table.experts + lists.expert(d);
      if (table.slots > 0) {
        slot = input.slot_of_expert[lists.expert(d)];
        before = table.priority_of_key[key];
        table.priority_of_key[key] =
            priority_after_use(before, use_time(time.plan, d), table.half_life_log2, kUseBonus);
      }
      if (slot >= 0) {
        const uint64_t prefetched = table.prefetched_in[slot];
        arriving = prefetched == time.step;
        first_use = prefetched != 0;
        table.prefetched_in[slot] = 0;
        table.stamp[slot] = kHeldStamp;
      }
      lists.slot[d] = arriving ? -2 - slot : slot;
    }
    const Rank hit = rank_in_block(slot >= 0 && !arriving, state);
    const Rank miss = rank_in_block(d < distinct && slot < 0, state);
    if (slot >= 0 && !arriving) a.work.items[uses.hits + hit.below] = item_of(lists, d, a.slots + slot * a.slot_bytes);
    if (d < distinct && slot < 0) {
      lists.miss[uses.misses + miss.below] = static_cast<uint16_t>(d);
      lists.before[uses.misses + miss.below] = before;
    }
    uses.hits += hit.total;
    uses.misses += miss.total;
    uses.arriving += __syncthreads_count(arriving);  // also where this layer itself looks no further ahead
    const int first_uses = __syncthreads_count(first_use);
    if (thread == 0) state.useful += first_uses;
  }
  __syncthreads();
  for (int m = thread; m < uses.misses; m += kPlanThreads) {
    const uint64_t own = lists.before[m];
    int place = 0;
    for (int other = 0; other < uses.misses; ++other) {
      place += lists.before[other] > own || (lists.before[other] == own && other < m);
    }
    lists.order[place] = lists.miss[m];
  }
  __syncthreads();
  return uses;
}

// Items of the hits that were prefetched in this step, in order of experts.
__device__ inline void place_arriving(const PlanArgs& a, const PlanLists& lists, int distinct, int first,
                                      PlanState& state) {
  for (int base = 0; base < distinct; base += kPlanThreads) {
    const int d = base + static_cast<int>(threadIdx.x);
    const int slot = d < distinct ? -2 - lists.slot[d] : -1;
    const Rank rank = rank_in_block(slot >= 0, state);
    if (slot >= 0) a.work.items[first + rank.below] = item_of(lists, d, a.slots + slot * a.slot_bytes, slot);
    first += rank.total;
  }
}

// The `count` slots with the lowest stamps to lists.victim, lowest first. Ends with a barrier.
__device__ inline void find_victims(const PlanArgs& a, const PlanLists& lists, int count, PlanState& state) {
  const Stamps stamps(a.table.stamp, a.table.slots);
  select_oldest(stamps, count, state.select, lists.candidate_stamp, lists.candidate_slot);
  for (int c = static_cast<int>(threadIdx.x); c < count; c += kPlanThreads) {
    int place = 0;
    for (int other = 0; other < count; ++other) place += lists.candidate_stamp[other] < lists.candidate_stamp[c];
    lists.victim[place] = lists.candidate_slot[c];
  }
  __syncthreads();
}

// The first `fetches` misses get the first victims, then at most `promotions` theirs, until one was filled in this
// step. Returns how many got a slot. Ends with a barrier.
__device__ inline int fill_slots(const PlanArgs& a, const PlanLists& lists, int hits, int fetches, int promotions,
                                 const PlanTime& time, PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x), wanted = fetches + promotions;
  if (thread == 0) state.kept = wanted;
  __syncthreads();
  for (int m = fetches + thread; m < wanted; m += kPlanThreads) {
    if (table.filled_in[lists.victim[m]] == time.step) atomicMin(&state.kept, m);
  }
  __syncthreads();
  const int kept = state.kept;
  for (int m = thread; m < kept; m += kPlanThreads) {
    const int d = lists.order[m], slot = lists.victim[m], expert = lists.expert(d);
    fill_slot(table, slot, a.layer * table.experts + expert, time.step);
    table.stamp[slot] = m < fetches ? stamp_of(table, slot) : kHeldStamp;
    const Copy copy = copy_to_slot(a, slot, a.bank + expert * a.blob_bytes, a.units);
    if (m < fetches) {
      a.work.fetches[m] = copy;
      a.work.items[hits + m] = item_of(lists, d, copy.target, slot);
    } else {
      queue_end(a.queue, kPromotion)[m - fetches] = copy;
    }
  }
  __syncthreads();
  if (thread == 0) append_queued(a.queue, kPromotion, kept - fetches);
  return kept;
}

// lists.named_at from the predictions; state.predicted, the number of distinct ones. Gives whether one of them is in no
// slot. Ends with a barrier.
__device__ inline bool name_predicted(const PlanArgs& a, const PlanLists& lists, PlanState& state) {
  const int thread = static_cast<int>(threadIdx.x), tokens = static_cast<int>(a.tokens);
  for (int e = thread; e < a.table.experts; e += kPlanThreads) lists.named_at[e] = kNotNamed;
  __syncthreads();
  for (int i = thread; i < tokens * a.predicted_ranks; i += kPlanThreads) {
    const int id = a.predicted[i % tokens * a.predicted_ranks + i / tokens];  // rank by rank
    if (id >= 0) atomicMin(&lists.named_at[id], i);
  }
  __syncthreads();
  int named = 0;
  bool absent = false;
  const int32_t* slot_of_expert = a.table.slot_of_key + static_cast<int64_t>(a.layer + 1) * a.table.experts;
  for (int base = 0; base < a.table.experts; base += kPlanThreads) {
    const bool is_named = base + thread < a.table.experts && lists.named_at[base + thread] != kNotNamed;
    absent = absent || (is_named && slot_of_expert[base + thread] < 0);
    named += __syncthreads_count(is_named);
  }
  if (thread == 0) state.predicted = named;
  return __syncthreads_or(absent);
}

// Victims [first, count) that a prefetch may take move to the front of lists.candidate_slot, at most `most`; what is
// predicted itself is passed over, what was filled in this step ends it. By warp 0, 32 victims at a time.
__device__ inline int prefetch_victims(const PlanArgs& a, const PlanLists& lists, int first, int count, int most,
                                       uint64_t step) {
  const int lane = static_cast<int>(threadIdx.x);
  int taken = 0;
  for (int base = first; base < count && taken < most; base += 32) {
    bool passed = true, ends = false;
    int slot = -1;
    if (base + lane < count) {
      slot = lists.victim[base + lane];
      const int32_t key = a.table.key_of_slot[slot];
      passed = key >= 0 && key / a.table.experts == a.layer + 1 && lists.named_at[key % a.table.experts] != kNotNamed;
      ends = !passed && a.table.filled_in[slot] == step;
    }
    const unsigned end = __ballot_sync(~0u, ends), before_end = end == 0 ? ~0u : (end & -end) - 1;
    const unsigned usable = __ballot_sync(~0u, !passed) & before_end;
    const int place = taken + __popc(usable & ((1u << lane) - 1));
    if ((usable >> lane & 1) && place < most) lists.candidate_slot[place] = slot;
    taken = min(most, taken + __popc(usable));
    if (end != 0) break;
  }
  __syncwarp();
  return taken;
}

// Predicted experts that are in no slot, in order of prediction, as words of their priority and id to
// lists.candidate_stamp. Returns how many. Ends with a barrier.
inline constexpr int kExpertBits = 12;
static_assert(kMaxPlanExperts <= 1 << kExpertBits);  // and priorities have at most 42 bits
__device__ inline int list_absent(const PlanArgs& a, const PlanLists& lists, PlanState& state) {
  const SlotTableView& table = a.table;
  const int tokens = static_cast<int>(a.tokens), named = tokens * a.predicted_ranks;
  int absent = 0;
  for (int base = 0; base < named; base += kPlanThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    int id = i < named ? a.predicted[i % tokens * a.predicted_ranks + i / tokens] : -1;
    const int32_t key = (a.layer + 1) * table.experts + id;
    if (id >= 0 && (lists.named_at[id] != i || table.slot_of_key[key] >= 0)) id = -1;
    const Rank rank = rank_in_block(id >= 0, state);
    if (id >= 0) {
      lists.candidate_stamp[absent + rank.below] =
          table.priority_of_key[key] << kExpertBits | static_cast<uint64_t>(id);
    }
    absent += rank.total;
  }
  __syncthreads();
  return absent;
}

// Of the words in lists.candidate_stamp, those that are worth the next victim's slot move to the front. By warp 0: the
// first of them gets the first victim, the first behind it that is worth the second victim gets that, and so on.
__device__ inline int choose_prefetches(const PlanArgs& a, const PlanLists& lists, int absent, int victims) {
  constexpr int kPerLane = kMaxPlanPrefetches / 32;
  static_assert(kPerLane == 2);
  const int lane = static_cast<int>(threadIdx.x);
  uint64_t priority[kPerLane];
  for (int i = 0; i < kPerLane; ++i) {
    const int at = lane + 32 * i;
    const int32_t key = at < victims ? a.table.key_of_slot[lists.candidate_slot[at]] : -1;
    priority[i] = key < 0 ? 0 : a.table.priority_of_key[key];
  }
  int taken = 0;
  for (int base = 0; base < absent && taken < victims; base += 32) {
    const uint64_t word = base + lane < absent ? lists.candidate_stamp[base + lane] : 0;
    unsigned left = base + 32 <= absent ? ~0u : (1u << (absent - base)) - 1;
    __syncwarp();
    while (taken < victims) {
      const uint64_t victim = __shfl_sync(~0u, taken < 32 ? priority[0] : priority[1], taken % 32);
      const bool worth = worth_prefetching(word >> kExpertBits, victim, a.table.half_life_log2);
      const unsigned usable = __ballot_sync(~0u, worth) & left;
      if (usable == 0) break;  // nor is any worth a later victim, whose priority is higher
      const int first = __ffs(static_cast<int>(usable)) - 1;
      if (lane == first) lists.candidate_stamp[taken] = word;
      left &= ~((2u << first) - 1);
      ++taken;
    }
    __syncwarp();
  }
  return taken;
}

// Predicted experts that are in no slot and worth it get the victims behind `first`. Needs name_predicted's lists and
// the table as this layer leaves it. Ends with a barrier.
__device__ inline void prefetch(const PlanArgs& a, const PlanLists& lists, int first, int count, int most,
                                const PlanTime& time, PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x);
  const int absent = list_absent(a, lists, state);
  if (thread < 32) {
    const int victims = prefetch_victims(a, lists, first, count, most, time.step);
    const int chosen = choose_prefetches(a, lists, absent, victims);
    if (thread == 0) state.prefetches = chosen;
  }
  __syncthreads();
  for (int place = thread; place < state.prefetches; place += kPlanThreads) {
    const auto id = static_cast<int>(lists.candidate_stamp[place] & ((1u << kExpertBits) - 1));
    const int slot = lists.candidate_slot[place];
    fill_slot(table, slot, (a.layer + 1) * table.experts + id, time.step);
    table.prefetched_in[slot] = time.step;
    table.stamp[slot] = kHeldStamp;
    queue_end(a.queue, kPrefetch)[place] = copy_to_slot(a, slot, a.next_bank + id * a.next_blob_bytes, a.next_units);
  }
  __syncthreads();
  if (thread == 0) append_queued(a.queue, kPrefetch, state.prefetches);
}

// A step begins: what was held in the one before may be a victim again.
__device__ inline void release_held(const SlotTableView& table) {
  for (int slot = static_cast<int>(threadIdx.x); slot < table.slots; slot += kPlanThreads) {
    if (table.stamp[slot] == kHeldStamp) table.stamp[slot] = stamp_of(table, slot);
  }
}

// Hits are victims again from the next layer on.
__device__ inline void release_hits(const PlanArgs& a, const PlanLists& lists, int distinct) {
  for (int d = static_cast<int>(threadIdx.x); d < distinct; d += kPlanThreads) {
    const int marked = lists.slot[d], slot = marked < -1 ? -2 - marked : marked;
    if (slot >= 0) a.table.stamp[slot] = stamp_of(a.table, slot);
  }
}

__device__ inline void place_by_table(const PlanArgs& a, const PlanInput& input, const PlanLists& lists, int distinct,
                                      PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x);
  const PlanTime time = time_of(a, input);
  if (thread == 0) state.prefetches = state.predicted = state.useful = 0;
  if (time.new_step) release_held(table);
  __syncthreads();
  const Uses uses = note_uses(a, input, lists, distinct, time, state);
  const int held_hits = uses.hits + uses.arriving, aside = time.aside - uses.arriving;
  const int open = table.slots - held_hits - aside;  // slots that are not held
  int fetches = 0;
  if (uses.misses > 0 && table.slots > 0) fetches = min(a.fetch_of_misses[uses.misses], min(uses.misses, open));
  for (int m = fetches + thread; m < uses.misses; m += kPlanThreads) {
    give_to_host(lists, lists.order[m], a.top_k, state);
  }
  hand_over(a, lists, uses.misses - fetches, state);
  if (uses.arriving > 0) place_arriving(a, lists, distinct, uses.hits + fetches, state);
  const bool looks_ahead = a.max_prefetches > 0 && table.slots > 0 && a.layer + 1 < table.layers;
  const bool absent = looks_ahead && name_predicted(a, lists, state);
  const int room = max(0, table.slots - aside - table.max_distinct);  // what may be held aside
  const int promotions =
      max(0, min(min(a.promotions.of_plan(time.plan), uses.misses - fetches), min(room, open - fetches)));
  // Without an absent one there is nothing to prefetch, unless a miss takes the slot of a predicted expert.
  const int most = absent || fetches + promotions > 0 ? min(looks_ahead ? a.max_prefetches : 0, room) : 0;
  const int candidates =
      min(open, fetches + promotions + (most > 0 && state.predicted > 0 ? most + state.predicted : 0));
  int kept = 0;
  if (candidates > 0) {
    find_victims(a, lists, candidates, state);
    kept = fill_slots(a, lists, uses.hits, fetches, promotions, time, state);
    const int left = min(most, room - (kept - fetches));
    if (left > 0 && state.predicted > 0) prefetch(a, lists, kept, candidates, left, time, state);
  }
  release_hits(a, lists, distinct);
  write_counts(a, uses.hits, fetches, uses.arriving);
  count_layer(*a.counters, held_hits, uses.misses, fetches, kept - fetches, state);
  if (thread != 0) return;
  table.clock[kPlanNumber] = time.plan;
  table.clock[kStepNumber] = time.step;
  table.clock[kLastLayerPlusOne] = static_cast<uint64_t>(a.layer + 1);
  table.clock[kAside] = static_cast<uint64_t>(aside + (kept - fetches) + state.prefetches);
}

}  // namespace ft::cuda
