// The plan of a layer for one token: place_by_table's decisions and writes (plan_table.cuh) by one warp, from what was
// read of the table while the router ran and what was found of it while the layer before computed (victims.h). A decode
// step of one token makes nearly all its plans here, with look-ahead too. What a plan reads of the table one after
// the other, and the instructions that it fetches for the first time, cost more than all its arithmetic: a plan with
// misses took the route kernel 15 to 20 us longer in a step, where a chain of warm ones says 5 [measured, H200].
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/plan_table.cuh"

namespace ft::cuda {

inline constexpr int kMaxTokenChoices = 16;  // experts of the token

// In shared memory, read ahead; by expert of the layer.
struct TokenTable {
  const int32_t* slot;         // or -1
  const uint64_t* priority;    // of its key
  const uint64_t* prefetched;  // prefetched_in of its slot
};

// Words that a plan of one token needs beside PlanInput.
struct TokenInput {
  uint64_t victims_after = 0;   // number of the plan after which the victims were found
  uint64_t released_after = 0;  // and of that after which nothing was held any more
  uint32_t promoted = 0;        // copies of this step so far
  uint32_t prefetched = 0;
  uint32_t posted = 0;

  TokenInput() = default;
  __device__ explicit TokenInput(const PlanArgs& a)
      : victims_after(a.victims == nullptr ? 0 : a.victims->plan_number),
        released_after(a.victims == nullptr ? 0 : a.victims->released_after),
        promoted(a.promotions.any() ? __ldcg(a.queue.words + queued_word(kPromotion)) : 0),
        prefetched(a.max_prefetches > 0 ? __ldcg(a.queue.words + queued_word(kPrefetch)) : 0),
        posted(static_cast<uint32_t>(a.table.clock[kPosted])) {}
};

// A token's predictions for the next layer: lane i of the first warp has the i-th, or -1; its slot, or -1, and the
// priority of its key as this layer begins.
struct Predicted {
  int32_t id = -1, slot = -1;
  uint64_t priority = 0;

  // The lane's prediction, where the layer looks ahead; of more than a warp of them, which no plan of one token takes,
  // one of those behind in two lanes.
  __device__ __forceinline__ void read_id(const PlanArgs& a) {
    if (a.max_prefetches == 0 || a.table.slots == 0 || a.layer + 1 >= a.table.layers) return;
    const auto lane = static_cast<int>(threadIdx.x);
    const int32_t own = lane < a.predicted_ranks ? a.predicted[lane] : -1;
    const int32_t behind = a.predicted_ranks > kWarp ? a.predicted[kWarp] : -1;
    id = behind >= 0 ? behind : own;
  }
  __device__ __forceinline__ void read_key(const PlanArgs& a) {
    if (id < 0) return;
    const int64_t key = static_cast<int64_t>(a.layer + 1) * a.table.experts + id;
    slot = a.table.slot_of_key[key];
    priority = a.table.priority_of_key[key];
  }
};

struct TokenPlan {
  PlanTime time;
  int hits = 0, misses = 0, fetches = 0, kept = 0;  // kept: misses that get a slot, the fetches first
  int arriving = 0;  // hits, not among `hits`, whose prefetch of this step may still be under way
  int prefetches = 0;
  int useful = 0, predicted = 0;
  // Of the lane's expert:
  int32_t id = -1, slot = -1, old_key = -1;  // slot: the hit's or the victim's, or -1
  uint64_t priority = 0;
  bool hit = false, arrives = false, was_prefetched = false;
  int d = 0;      // place among the token's experts
  int place = 0;  // among the hits, or those that arrive, by expert, or among the misses by worth
  // Of the lane's prediction, where it is prefetched:
  int32_t ahead_slot = -1, ahead_old_key = -1;
  int ahead_place = 0;
};

// Of the block that plans, in shared memory.
struct TokenShared {
  Victim victims[kMaxNextVictims];
  int32_t fetch_of_misses[kMaxTokenChoices + 1];  // (top_k + 1)
  int32_t lanes[kMaxNextVictims];                 // that have the victims in the order in which they are taken
  bool decided, on_cpu;

  // All threads, well before decide(): a barrier lies between.
  __device__ __forceinline__ void read(const PlanArgs& a) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (a.table.slots == 0) return;
    if (thread < kMaxNextVictims && a.victims != nullptr) victims[thread] = a.victims->victim[thread];
    if (thread <= a.top_k) fetch_of_misses[thread] = a.fetch_of_misses[thread];
  }
  __device__ __forceinline__ void decide(const PlanArgs& a, const PlanInput& input, const TokenInput& more,
                                         const TokenTable& known, int32_t id, const Predicted& predicted,
                                         TokenPlan& plan);
};

// A victim of the lane: `order` among those that the plan may take, which are no hits of its own.
struct TokenVictim {
  int32_t slot = -1, key = -1;
  uint64_t priority = 0;
  bool filled_now = false, usable = false;
  int order = 0;
};

// The predictions that get the victims behind the first plan.kept, as prefetch (plan_table.cuh) chooses. `candidates`:
// how many victims may be looked at, most: how many taken. Whole warp. False where more victims would have to be known.
__device__ __forceinline__ bool place_prefetches(const PlanArgs& a, TokenShared& shared, const Predicted& predicted,
                                                 unsigned names, const TokenVictim& victim, bool filled, int candidates,
                                                 int most, TokenPlan& plan) {
  const int lane = static_cast<int>(threadIdx.x);
  const int32_t filled_slot = filled ? plan.slot : -2;
  bool is_predicted = false, evicted = false;  // the victim holds a prediction; the prediction's slot was taken
#pragma unroll 1
  for (unsigned left = names; left != 0; left &= left - 1) {
    const int32_t slot = __shfl_sync(kFullWarp, predicted.slot, __ffs(static_cast<int>(left)) - 1);
    is_predicted = is_predicted || victim.slot == slot;
  }
#pragma unroll 1
  for (int other = 0; other < a.top_k; ++other) {
    const int32_t slot = __shfl_sync(kFullWarp, filled_slot, other);
    evicted = evicted || predicted.slot == slot;
  }
  const bool seen = victim.usable && victim.order >= plan.kept && victim.order < candidates;
  const unsigned end = __ballot_sync(kFullWarp, seen && !is_predicted && victim.filled_now);
  const unsigned before_end = end == 0 ? kFullWarp : (end & -end) - 1;
  const unsigned free = __ballot_sync(kFullWarp, seen && !is_predicted) & before_end;
  const int victims = min(most, __popc(free));
  const int known = __popc(__ballot_sync(kFullWarp, victim.usable));
  const int order = __popc(free & ((1u << lane) - 1));
  if ((free >> lane & 1) != 0 && order < victims) shared.lanes[order] = lane;
  __syncwarp();
  unsigned left = __ballot_sync(kFullWarp, predicted.id >= 0 && (predicted.slot < 0 || evicted));
#pragma unroll 1
  while (plan.prefetches < victims) {
    const int from = shared.lanes[plan.prefetches];
    const uint64_t of_victim = __shfl_sync(kFullWarp, victim.priority, from);
    const int32_t slot = __shfl_sync(kFullWarp, victim.slot, from), old_key = __shfl_sync(kFullWarp, victim.key, from);
    const bool worth = worth_prefetching(predicted.priority, of_victim, a.table.half_life_log2);
    const unsigned usable = __ballot_sync(kFullWarp, worth) & left;
    if (usable == 0) return true;  // nor is any worth a later victim, whose priority is higher
    const int first = __ffs(static_cast<int>(usable)) - 1;
    if (lane == first) plan.ahead_slot = slot, plan.ahead_old_key = old_key, plan.ahead_place = plan.prefetches;
    left &= ~((2u << first) - 1);
    ++plan.prefetches;
  }
  return victims == most || end != 0 || known >= candidates || left == 0;
}

// The rest of decide_token where experts miss (`misses`: their lanes) or predictions are in no slot: who takes which
// victim, what is the CPU's. before: the priority before this use.
__device__ __forceinline__ bool place_in_slots(const PlanArgs& a, TokenShared& shared, const Predicted& predicted,
                                               unsigned names, bool absent, uint64_t before, unsigned misses,
                                               TokenPlan& plan) {
  const SlotTableView& table = a.table;
  const int lane = static_cast<int>(threadIdx.x), k = a.top_k;
  const bool has = lane < k, miss = (misses >> lane & 1) != 0;
  const Victim known = shared.victims[lane];
  TokenVictim victim;
  if (known.stamp != kHeldStamp) {
    victim.slot = static_cast<int32_t>(known.stamp & ((uint64_t{1} << table.slot_bits) - 1));
    victim.key = known.key;
    victim.priority = known.stamp >> table.slot_bits;
    victim.filled_now = known.filled_in == plan.time.step;
  }
  int before_it = 0;   // misses that are worth more
  bool taken = false;  // the victim is a hit
#pragma unroll 1
  for (int other = 0; other < k; ++other) {
    const int32_t other_id = __shfl_sync(kFullWarp, plan.id, other);
    const int32_t other_slot = __shfl_sync(kFullWarp, plan.slot, other);
    const uint64_t other_before = __shfl_sync(kFullWarp, before, other);
    const bool more_worth = other_before > before || (other_before == before && other_id < plan.id);
    before_it += (misses >> other & 1) != 0 && more_worth;
    taken = taken || victim.slot == other_slot;
  }
  if (miss) plan.place = before_it;
  victim.usable = victim.slot >= 0 && !taken;
  const unsigned usable_lanes = __ballot_sync(kFullWarp, victim.usable);
  victim.order = __popc(usable_lanes & ((1u << lane) - 1));

  const int aside = plan.time.aside - plan.arriving, open = table.slots - plan.hits - plan.arriving - aside;
  if (plan.misses > 0) plan.fetches = min(shared.fetch_of_misses[plan.misses], min(plan.misses, open));
  const int room = max(0, table.slots - aside - table.max_distinct);
  const int promotions = max(
      0, min(min(a.promotions.of_plan(plan.time.plan), plan.misses - plan.fetches), min(room, open - plan.fetches)));
  const int wanted = plan.fetches + promotions, named = __popc(names);
  const int most = names != 0 && (absent || wanted > 0) ? min(a.max_prefetches, room) : 0;
  const int candidates = min(open, wanted + (most > 0 ? most + named : 0));
  if (__popc(usable_lanes) < wanted) return false;
  const bool stops = victim.usable && victim.order >= plan.fetches && victim.order < wanted && victim.filled_now;
  const unsigned stop = __ballot_sync(kFullWarp, stops);
  plan.kept = stop == 0 ? wanted : __popc(usable_lanes & ((stop & -stop) - 1));
  if (victim.usable && victim.order < plan.kept) shared.lanes[victim.order] = lane;
  __syncwarp();
  const bool filled = miss && plan.place < plan.kept;
  const int from = filled ? shared.lanes[plan.place] : 0;
  const int32_t slot = __shfl_sync(kFullWarp, victim.slot, from), old_key = __shfl_sync(kFullWarp, victim.key, from);
  if (filled) plan.slot = slot, plan.old_key = old_key;
  const int left = min(most, room - (plan.kept - plan.fetches));
  if (left > 0 && !place_prefetches(a, shared, predicted, names, victim, filled, candidates, left, plan)) return false;
  if (plan.misses > plan.fetches && has) a.mailbox.ids[lane] = miss && plan.place >= plan.fetches ? plan.id : -1;
  return true;
}

// Lane s < k of the first warp has the s-th expert; the other lanes have any id. Whole warp. False, and nothing is
// written, where the plan is for plan_in_block.
__device__ __forceinline__ bool decide_token(const PlanArgs& a, const PlanInput& input, const TokenInput& more,
                                             const TokenTable& known, TokenShared& shared, int32_t id,
                                             const Predicted& predicted, TokenPlan& plan) {
  const SlotTableView& table = a.table;
  const int lane = static_cast<int>(threadIdx.x), k = a.top_k;
  if (a.placement != Placement::kTable || table.slots == 0) return false;
  const unsigned names = __ballot_sync(kFullWarp, predicted.id >= 0);
  bool absent = false;
  if (names != 0) {  // one that is named twice is left to the full plan
    const unsigned same = __match_any_sync(kFullWarp, predicted.id);
    if (__any_sync(kFullWarp, predicted.id >= 0 && __popc(same) > 1)) return false;
    absent = __any_sync(kFullWarp, predicted.id >= 0 && predicted.slot < 0);
  }
  plan.time = time_of(a, input);
  // Something may be held from the step before.
  if (plan.time.new_step && input.aside > 0 && more.released_after != input.plan_number) return false;
  const bool has = lane < k, named = has && id >= 0;
  plan.id = id;
  plan.slot = named ? known.slot[id] : -1;
  const uint64_t before = named ? known.priority[id] : 0;
  const uint64_t prefetched = plan.slot >= 0 ? known.prefetched[id] : 0;
  plan.hit = plan.slot >= 0;
  plan.was_prefetched = prefetched != 0;
  plan.arrives = plan.hit && prefetched == plan.time.step;
  const bool miss = named && !plan.hit;
  const unsigned misses = __ballot_sync(kFullWarp, miss), arriving = __ballot_sync(kFullWarp, plan.arrives);
  const unsigned alike = plan.arrives ? arriving : ~(arriving | misses);
  int same = 0;  // how often the expert is named
#pragma unroll 4
  for (int other = 0; other < k; ++other) {
    const int32_t other_id = __shfl_sync(kFullWarp, id, other);
    const bool lower = other_id < id;
    plan.d += lower;
    same += other_id == id;
    plan.place += lower && (alike >> other & 1) != 0;
  }
  if (__any_sync(kFullWarp, has && (!named || same != 1))) return false;
  plan.misses = __popc(misses);
  plan.arriving = __popc(arriving);
  plan.hits = k - plan.misses - plan.arriving;
  plan.useful = __popc(__ballot_sync(kFullWarp, has && plan.was_prefetched));
  plan.predicted = __popc(names);
  plan.priority =
      named ? priority_after_use(before, use_time(plan.time.plan, plan.d), table.half_life_log2, kUseBonus) : 0;
  if (misses == 0 && !absent) return true;
  if (more.victims_after != input.plan_number || input.plan_number == 0) return false;
  if (misses == 0) {  // mostly no prediction is worth even the lowest victim's slot
    const uint64_t lowest = shared.victims[0].stamp;
    const bool worth = predicted.id >= 0 && predicted.slot < 0 && lowest != kHeldStamp &&
                       worth_prefetching(predicted.priority, lowest >> table.slot_bits, table.half_life_log2);
    if (!__any_sync(kFullWarp, worth)) return true;
  }
  return place_in_slots(a, shared, predicted, names, absent, before, misses, plan);
}

__device__ __forceinline__ void TokenShared::decide(const PlanArgs& a, const PlanInput& input, const TokenInput& more,
                                                    const TokenTable& known, int32_t id, const Predicted& predicted,
                                                    TokenPlan& plan) {
  const bool done = decide_token(a, input, more, known, *this, id, predicted, plan);
  if (threadIdx.x == 0) decided = done, on_cpu = done && plan.misses > plan.fetches;
}

__device__ __forceinline__ void count_token(StepCounters& counters, const TokenPlan& plan) {
  const auto count = [](uint64_t& counter, int by) {
    if (by > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), static_cast<unsigned long long>(by));
  };
  count(counters.hits, plan.hits + plan.arriving);
  count(counters.fetched, plan.fetches);
  count(counters.cpu, plan.misses - plan.fetches);
  count(counters.promoted, plan.kept - plan.fetches);
  count(counters.prefetched, plan.prefetches);
  count(counters.useful, plan.useful);
  count(counters.predicted, plan.predicted);
  count(counters.misses_histogram[plan.misses], 1);
}

// Puts a key into a victim's slot: it waits for its bytes there.
__device__ __forceinline__ Copy fill_victim(const PlanArgs& a, int slot, int32_t old_key, int32_t key, uint64_t step,
                                            uint64_t prefetched_in, const std::byte* source, const BlobUnits& units) {
  const SlotTableView& table = a.table;
  if (old_key >= 0) table.slot_of_key[old_key] = -1;
  table.key_of_slot[slot] = key;
  table.slot_of_key[key] = slot;
  table.filled_in[slot] = step;
  table.prefetched_in[slot] = prefetched_in;
  return copy_to_slot(a, slot, source, units);
}

// The lane's expert.
__device__ __forceinline__ void write_expert(const PlanArgs& a, const TokenInput& more, const TokenPlan& plan) {
  const SlotTableView& table = a.table;
  const auto lane = static_cast<int>(threadIdx.x);
  const int32_t key = a.layer * table.experts + plan.id;
  const bool fetched = !plan.hit && plan.place < plan.fetches, filled = !plan.hit && plan.place < plan.kept;
  a.work.pairs[plan.d] = lane;
  a.work.from_host[lane] = static_cast<uint8_t>(!plan.hit && !fetched);
  table.priority_of_key[key] = plan.priority;
  if (plan.hit || filled) {
    table.stamp[plan.slot] = plan.hit || fetched ? victim_stamp(plan.priority, plan.slot, table.slot_bits) : kHeldStamp;
  }
  if (plan.hit || fetched) {
    const int before = plan.arrives ? plan.hits + plan.fetches : plan.hit ? 0 : plan.hits;
    a.work.items[before + plan.place] = {.blob = a.slots + plan.slot * a.slot_bytes,
                                         .pair_begin = plan.d,
                                         .pair_count = 1,
                                         .arrival = plan.hit && !plan.arrives ? -1 : plan.slot};
  }
  if (plan.was_prefetched) table.prefetched_in[plan.slot] = 0;
  if (!filled) return;
  const Copy copy =
      fill_victim(a, plan.slot, plan.old_key, key, plan.time.step, 0, a.bank + plan.id * a.blob_bytes, a.units);
  if (fetched) {
    a.work.fetches[plan.place] = copy;
  } else {
    a.queue.copies[kPromotion][more.promoted + static_cast<uint32_t>(plan.place - plan.fetches)] = copy;
  }
}

// The first warp, after decide_token was true. The ticket is hand_over_token's where the CPU has experts.
__device__ __forceinline__ void write_token(const PlanArgs& a, const TokenInput& more, const Predicted& predicted,
                                            const TokenPlan& plan) {
  const SlotTableView& table = a.table;
  const auto lane = static_cast<int>(threadIdx.x);
  if (lane < a.top_k) write_expert(a, more, plan);
  __syncwarp();  // what a fetch evicted may be what is prefetched
  if (plan.ahead_slot >= 0) {
    const int32_t key = (a.layer + 1) * table.experts + predicted.id;
    table.stamp[plan.ahead_slot] = kHeldStamp;
    a.queue.copies[kPrefetch][more.prefetched + static_cast<uint32_t>(plan.ahead_place)] =
        fill_victim(a, plan.ahead_slot, plan.ahead_old_key, key, plan.time.step, plan.time.step,
                    a.next_bank + predicted.id * a.next_blob_bytes, a.next_units);
  }
  write_counts(a, plan.hits, plan.fetches, plan.arriving);
  __syncwarp();
  if (lane != 0) return;
  append_queued(a.queue, kPromotion, plan.kept - plan.fetches);
  append_queued(a.queue, kPrefetch, plan.prefetches);
  if (plan.misses == plan.fetches) *a.work.ticket = 0;
  count_token(*a.counters, plan);
  table.clock[kPlanNumber] = plan.time.plan;
  table.clock[kStepNumber] = plan.time.step;
  table.clock[kLastLayerPlusOne] = static_cast<uint64_t>(a.layer + 1);
  table.clock[kAside] =
      static_cast<uint64_t>(plan.time.aside - plan.arriving + plan.kept - plan.fetches + plan.prefetches);
}

// All other warps, when the CPU has experts, whose ids decide_token has written: row(i) gives 16 bytes of the token's
// packed row.
template <class Row>
__device__ __forceinline__ void hand_over_token(const PlanArgs& a, const TokenInput& more, Row&& row) {
  constexpr int kThreads = kPlanThreads - kWarp;
  const int thread = static_cast<int>(threadIdx.x) - kWarp, count = static_cast<int>(activation_words(a.hidden) / 4);
  auto* target = reinterpret_cast<uint4*>(a.mailbox.x);
  for (int i = thread; i < count; i += kThreads) target[i] = row(i);
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  if (thread != 0) return;
  const uint32_t number = next_number(more.posted);
  a.table.clock[kPosted] = number;
  a.mailbox.box->layer = a.layer;
  a.mailbox.box->tokens = 1;
  __threadfence_system();
  store_release_system(&a.mailbox.box->posted, number);
  *a.work.ticket = number;
}

// A token's packed row, 16 bytes at a time: of this block's shared memory, or, where that is null, past L1.
struct TokenRow {
  const uint32_t* shared;
  const uint32_t* memory;
  __device__ __forceinline__ uint4 operator()(int i) const {
    return shared != nullptr ? reinterpret_cast<const uint4*>(shared)[i]
                             : __ldcg(reinterpret_cast<const uint4*>(memory) + i);
  }
};

// A plan that was decided, by the whole block.
__device__ __forceinline__ void write_decided(const PlanArgs& a, const TokenInput& more, const Predicted& predicted,
                                              const TokenPlan& plan, bool on_cpu, const TokenRow& row) {
  if (threadIdx.x < kWarp) {
    write_token(a, more, predicted, plan);
  } else if (on_cpu) {
    hand_over_token(a, more, row);
  }
}

}  // namespace ft::cuda
