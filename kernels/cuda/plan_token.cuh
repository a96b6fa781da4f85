// The plan of a layer for one token: place_by_table's decisions and writes (plan_table.cuh) by one warp, from what was
// read of the table while the router ran and what was found of it while the layer before computed (victims.h). A decode
// step of one token that does not look ahead makes nearly all its plans here. What a plan reads of the table one after
// the other, and the instructions that it fetches for the first time, cost more than all its arithmetic: a plan with
// misses took the route kernel 15 to 20 us longer in a step, where a chain of warm ones says 5 [measured, H200].
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/plan_table.cuh"

namespace ft::cuda {

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
  uint32_t queued = 0;          // promotions of this step so far
  uint32_t posted = 0;

  TokenInput() = default;
  __device__ explicit TokenInput(const PlanArgs& a)
      : victims_after(a.victims == nullptr ? 0 : a.victims->plan_number),
        released_after(a.victims == nullptr ? 0 : a.victims->released_after),
        queued(a.max_promotions > 0 ? __ldcg(a.queue.words + queued_word(kPromotion)) : 0),
        posted(static_cast<uint32_t>(a.table.clock[kPosted])) {}
};

// A token's predictions for the next layer: lane i of the first warp has the i-th, or -1, and its slot, or -1.
struct Predicted {
  int32_t id = -1, slot = -1;
};

// The lane's prediction, where the layer looks ahead; of more than a warp of them, which no plan of one token takes,
// one of those behind in two lanes.
__device__ __forceinline__ int32_t prediction_of_lane(const PlanArgs& a) {
  if (a.max_prefetches == 0 || a.table.slots == 0 || a.layer + 1 >= a.table.layers) return -1;
  const auto lane = static_cast<int>(threadIdx.x);
  const int32_t own = lane < a.predicted_ranks ? a.predicted[lane] : -1;
  const int32_t behind = a.predicted_ranks > kWarp ? a.predicted[kWarp] : -1;
  return behind >= 0 ? behind : own;
}

struct TokenPlan {
  PlanTime time;
  int hits = 0, misses = 0, fetches = 0, kept = 0;  // kept: misses that get a slot, the fetches first
  int useful = 0, predicted = 0;
  // Of the lane's expert:
  int32_t id = -1, slot = -1, old_key = -1;  // slot: the hit's or the victim's, or -1
  uint64_t priority = 0;
  bool hit = false, was_prefetched = false;
  int d = 0;      // place among the token's experts
  int place = 0;  // among the hits by expert, or among the misses by worth
};

// Of the block that plans, in shared memory.
struct TokenShared {
  Victim victims[kMaxNextVictims];               // (top_k)
  int32_t fetch_of_misses[kMaxNextVictims + 1];  // (top_k + 1)
  int32_t lanes[kMaxNextVictims];                // that have the victims in the order in which they are taken
  bool decided, on_cpu;

  // All threads, well before decide(): a barrier lies between.
  __device__ __forceinline__ void read(const PlanArgs& a) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (a.table.slots == 0) return;
    if (thread < a.top_k && a.victims != nullptr) victims[thread] = a.victims->victim[thread];
    if (thread <= a.top_k) fetch_of_misses[thread] = a.fetch_of_misses[thread];
  }
  __device__ __forceinline__ void decide(const PlanArgs& a, const PlanInput& input, const TokenInput& more,
                                         const TokenTable& known, int32_t id, const Predicted& predicted,
                                         TokenPlan& plan);
};

// The rest of decide_token where experts miss (`misses`: their lanes): which victims they take, what is the CPU's.
// before: the priority before this use.
__device__ __forceinline__ bool place_misses(const PlanArgs& a, TokenShared& shared, int32_t id, uint64_t before,
                                             unsigned misses, TokenPlan& plan) {
  const SlotTableView& table = a.table;
  const int lane = static_cast<int>(threadIdx.x), k = a.top_k;
  const unsigned below = (1u << lane) - 1;
  const bool has = lane < k, miss = (misses >> lane & 1) != 0;
  const Victim victim = has ? shared.victims[lane] : Victim{-1, -1, 0};
  int before_it = 0;   // misses that are worth more
  bool taken = false;  // the victim is a hit
#pragma unroll 1
  for (int other = 0; other < k; ++other) {
    const int32_t other_id = __shfl_sync(kFullWarp, id, other), other_slot = __shfl_sync(kFullWarp, plan.slot, other);
    const uint64_t other_before = __shfl_sync(kFullWarp, before, other);
    const bool more_worth = other_before > before || (other_before == before && other_id < id);
    before_it += (misses >> other & 1) != 0 && more_worth;
    taken = taken || victim.slot == other_slot;
  }
  if (miss) plan.place = before_it;
  const int open = table.slots - plan.hits - plan.time.aside;
  plan.fetches = min(shared.fetch_of_misses[plan.misses], min(plan.misses, open));
  const int room = max(0, table.slots - plan.time.aside - table.max_distinct);
  const int promotions = max(0, min(min(a.max_promotions, plan.misses - plan.fetches), min(room, open - plan.fetches)));
  const int wanted = plan.fetches + promotions;
  const bool usable = has && victim.slot >= 0 && !taken;
  const unsigned usable_lanes = __ballot_sync(kFullWarp, usable);
  if (__popc(usable_lanes) < wanted) return false;
  const int order = __popc(usable_lanes & below);
  const bool stops = usable && order >= plan.fetches && order < wanted && victim.filled_in == plan.time.step;
  const unsigned stop = __ballot_sync(kFullWarp, stops);
  plan.kept = stop == 0 ? wanted : __popc(usable_lanes & ((stop & -stop) - 1));
  if (usable && order < plan.kept) shared.lanes[order] = lane;
  __syncwarp();
  const bool filled = miss && plan.place < plan.kept;
  const int from = filled ? shared.lanes[plan.place] : 0;
  const int32_t slot = __shfl_sync(kFullWarp, victim.slot, from), old_key = __shfl_sync(kFullWarp, victim.key, from);
  if (filled) plan.slot = slot, plan.old_key = old_key;
  if (plan.misses > plan.fetches && has) a.mailbox.ids[lane] = miss && plan.place >= plan.fetches ? id : -1;
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
  // With no miss and every prediction in a slot nothing is prefetched. One that is named twice is left to the full
  // plan.
  const unsigned names = __ballot_sync(kFullWarp, predicted.id >= 0);
  if (names != 0 && (__any_sync(kFullWarp, predicted.id >= 0 && predicted.slot < 0) ||
                     __any_sync(kFullWarp, predicted.id >= 0 && __popc(__match_any_sync(names, predicted.id)) > 1))) {
    return false;
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
  const bool miss = named && !plan.hit;
  const unsigned misses = __ballot_sync(kFullWarp, miss);
  int same = 0;  // how often the expert is named
#pragma unroll 4
  for (int other = 0; other < k; ++other) {
    const int32_t other_id = __shfl_sync(kFullWarp, id, other);
    const bool lower = other_id < id;
    plan.d += lower;
    same += other_id == id;
    plan.place += lower && (misses >> other & 1) == 0;
  }
  if (__any_sync(kFullWarp, has && (!named || same != 1 || (plan.hit && prefetched == plan.time.step)))) return false;
  plan.misses = __popc(misses);
  plan.hits = k - plan.misses;
  plan.useful = __popc(__ballot_sync(kFullWarp, has && plan.was_prefetched));
  plan.predicted = __popc(names);
  plan.priority =
      named ? priority_after_use(before, use_time(plan.time.plan, plan.d), table.half_life_log2, kUseBonus) : 0;
  if (misses == 0) return true;
  if (names != 0 || more.victims_after != input.plan_number || input.plan_number == 0) return false;
  return place_misses(a, shared, id, before, misses, plan);
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
  count(counters.hits, plan.hits);
  count(counters.fetched, plan.fetches);
  count(counters.cpu, plan.misses - plan.fetches);
  count(counters.promoted, plan.kept - plan.fetches);
  count(counters.useful, plan.useful);
  count(counters.predicted, plan.predicted);
  count(counters.misses_histogram[plan.misses], 1);
}

// The first warp, after decide_token was true. The ticket is hand_over_token's where the CPU has experts.
__device__ __forceinline__ void write_token(const PlanArgs& a, const TokenInput& more, const TokenPlan& plan) {
  const SlotTableView& table = a.table;
  const int lane = static_cast<int>(threadIdx.x);
  const bool miss = !plan.hit;
  if (lane < a.top_k) {
    const int32_t key = a.layer * table.experts + plan.id;
    const bool fetched = miss && plan.place < plan.fetches, filled = miss && plan.place < plan.kept;
    a.work.pairs[plan.d] = lane;
    a.work.from_host[lane] = static_cast<uint8_t>(miss && !fetched);
    table.priority_of_key[key] = plan.priority;
    if (plan.hit || filled) {
      const std::byte* blob = a.slots + plan.slot * a.slot_bytes;
      table.stamp[plan.slot] =
          plan.hit || fetched ? victim_stamp(plan.priority, plan.slot, table.slot_bits) : kHeldStamp;
      if (plan.hit || fetched) {
        a.work.items[plan.hit ? plan.place : plan.hits + plan.place] = {
            .blob = blob, .pair_begin = plan.d, .pair_count = 1, .arrival = plan.hit ? -1 : plan.slot};
      }
      if (plan.was_prefetched || filled) table.prefetched_in[plan.slot] = 0;
    }
    if (filled) {
      if (plan.old_key >= 0) table.slot_of_key[plan.old_key] = -1;
      table.key_of_slot[plan.slot] = key;
      table.slot_of_key[key] = plan.slot;
      table.filled_in[plan.slot] = plan.time.step;
      const Copy copy = copy_to_slot(a, plan.slot, a.bank + plan.id * a.blob_bytes, a.units);
      if (fetched) {
        a.work.fetches[plan.place] = copy;
      } else {
        a.queue.copies[kPromotion][more.queued + static_cast<uint32_t>(plan.place - plan.fetches)] = copy;
      }
    }
  }
  write_counts(a, plan.hits, plan.fetches);
  __syncwarp();
  if (lane != 0) return;
  append_queued(a.queue, kPromotion, plan.kept - plan.fetches);
  if (plan.misses == plan.fetches) *a.work.ticket = 0;
  count_token(*a.counters, plan);
  table.clock[kPlanNumber] = plan.time.plan;
  table.clock[kStepNumber] = plan.time.step;
  table.clock[kLastLayerPlusOne] = static_cast<uint64_t>(a.layer + 1);
  table.clock[kAside] = static_cast<uint64_t>(plan.time.aside + plan.kept - plan.fetches);
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
__device__ __forceinline__ void write_decided(const PlanArgs& a, const TokenInput& more, const TokenPlan& plan,
                                              bool on_cpu, const TokenRow& row) {
  if (threadIdx.x < kWarp) {
    write_token(a, more, plan);
  } else if (on_cpu) {
    hand_over_token(a, more, row);
  }
}

}  // namespace ft::cuda
