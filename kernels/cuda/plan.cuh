// The plan of one layer, by one block of kPlanThreads: what plan_layer and route_and_plan run. See moe.h.
#pragma once

#include <algorithm>

#include "kernels/base/use_priority.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/oldest_slots.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {

// A pair and its expert in one word: words in ascending order are pairs in order of experts, and all words differ.
inline constexpr int kPairBits = 12;
inline constexpr uint32_t kPairMask = (1u << kPairBits) - 1;
inline constexpr uint32_t kNoPair = ~0u;
static_assert(kMaxPlanTokens * kMaxPlanTopK <= 1 << kPairBits && kMaxPlanExperts <= 1 << (31 - kPairBits));
static_assert(kMaxPlanTokens <= 64);  // PlanState::host_tokens
inline constexpr int kHistogramSize = sizeof(StepCounters::misses_histogram) / sizeof(uint64_t);

__host__ __device__ constexpr int round_up_16(int bytes) { return (bytes + 15) / 16 * 16; }

// The block's lists in dynamic shared memory: d is a distinct expert's place in ascending order, m a miss's.
struct PlanLists {
  uint64_t* before;   // [m] priority of the m-th miss before this use
  uint32_t* sorted;   // [pairs] words
  int32_t* slot;      // [d] of a hit, -1: a miss; later of [m] a miss that gets one
  uint16_t* begin;    // [d + 1] into sorted
  uint16_t* miss;     // [m] -> d, ascending
  uint16_t* order;    // [m] -> d, those worth a slot first
  int32_t* named_at;  // [expert of the next layer]: where its prediction is first, or kNotNamed
  int32_t* victim;    // [c] slots in the order in which they are taken
  // One after the other in the same place: words as they came; the pair's expert where the CPU computes it, else -1;
  // candidates for eviction.
  uint32_t* words;            // [pairs]
  int32_t* host_ids;          // [pairs]
  uint64_t* candidate_stamp;  // [c]
  int32_t* candidate_slot;    // [c]

  // distinct: most of a layer; candidates: most victims that are looked for; predicted: 0 or the experts of a layer.
  struct Sizes {
    int pairs = 0, distinct = 0, candidates = 0, predicted = 0;
  };
  __host__ __device__ static Sizes sizes_of(const PlanArgs& a, int most_distinct) {
    const int tokens = static_cast<int>(a.tokens);
    if (a.max_prefetches == 0) return {tokens * a.top_k, most_distinct, most_distinct, 0};
    const int named = tokens * a.predicted_ranks < a.table.experts ? tokens * a.predicted_ranks : a.table.experts;
    return {tokens * a.top_k, most_distinct, most_distinct + a.max_prefetches + named, a.table.experts};
  }

  __device__ PlanLists(unsigned char* memory, const Sizes& sizes) {
    const auto take = [&memory](int bytes) {
      unsigned char* begin_of = memory;
      memory += round_up_16(bytes);
      return begin_of;
    };
    before = reinterpret_cast<uint64_t*>(take(sizes.distinct * 8));
    sorted = reinterpret_cast<uint32_t*>(take(sizes.pairs * 4));
    slot = reinterpret_cast<int32_t*>(take(sizes.distinct * 4));
    begin = reinterpret_cast<uint16_t*>(take((sizes.distinct + 1) * 2));
    miss = reinterpret_cast<uint16_t*>(take(sizes.distinct * 2));
    order = reinterpret_cast<uint16_t*>(take(sizes.distinct * 2));
    named_at = reinterpret_cast<int32_t*>(take(sizes.predicted * 4));
    victim = reinterpret_cast<int32_t*>(take(sizes.candidates * 4));
    words = reinterpret_cast<uint32_t*>(memory);
    host_ids = reinterpret_cast<int32_t*>(memory);
    candidate_stamp = reinterpret_cast<uint64_t*>(memory);
    candidate_slot = reinterpret_cast<int32_t*>(memory + sizes.candidates * 8);
  }
  static int bytes(const PlanArgs& a, int most_distinct) {
    const Sizes sizes = sizes_of(a, most_distinct);
    return round_up_16(sizes.distinct * 8) + round_up_16(sizes.pairs * 4) + round_up_16(sizes.distinct * 4) +
           round_up_16((sizes.distinct + 1) * 2) + 2 * round_up_16(sizes.distinct * 2) +
           round_up_16(sizes.predicted * 4) + round_up_16(sizes.candidates * 4) +
           std::max(round_up_16(sizes.pairs * 4), round_up_16(sizes.candidates * 12));
  }
  __device__ int expert(int d) const { return static_cast<int>(sorted[begin[d]] >> kPairBits); }
};

// What the plan starts from. In device memory, or read ahead of it: each is a latency of the level-two cache or more.
struct PlanInput {
  const int32_t* ids = nullptr;             // (tokens, top_k)
  const int32_t* slot_of_expert = nullptr;  // (experts) of this layer
  uint64_t plan_number = 0, step_number = 0, last_layer_plus_one = 0, aside = 0;

  PlanInput() = default;
  __device__ explicit PlanInput(const PlanArgs& a)
      : ids(a.ids),
        slot_of_expert(a.table.slot_of_key + static_cast<int64_t>(a.layer) * a.table.experts),
        plan_number(a.table.clock[kPlanNumber]),
        step_number(a.table.clock[kStepNumber]),
        last_layer_plus_one(a.table.clock[kLastLayerPlusOne]),
        aside(a.table.clock[kAside]) {}
};

struct PlanState {  // static shared memory
  int warp_totals[kPlanWarps];
  unsigned long long host_tokens;  // bit t: token t has a pair for the CPU
  int kept;                        // of the victims, those that are taken
  int prefetches, predicted;       // taken; named and distinct
  int useful;                      // hits that a prefetch had brought
  SelectState select;
};

struct Rank {
  int below, total;
};

// How many threads below this one, and in all, have the flag. Two barriers.
__device__ inline Rank rank_in_block(bool flag, PlanState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned mask = __ballot_sync(~0u, flag);
  if (lane == 0) state.warp_totals[warp] = __popc(mask);
  __syncthreads();
  Rank rank{__popc(mask & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kPlanWarps; ++w) {
    const int count = state.warp_totals[w];
    rank.total += count;
    if (w < warp) rank.below += count;
  }
  __syncthreads();
  return rank;
}

// d < 0: an expert that no id names.
__device__ inline ExpertItem item_of(const PlanLists& lists, int d, const std::byte* blob) {
  if (d < 0) return {blob, nullptr, 0, 0};
  return {blob, nullptr, lists.begin[d], lists.begin[d + 1] - lists.begin[d]};
}

__device__ inline ExpertItem fetched_item(const PlanArgs& a, const PlanLists& lists, int d, const std::byte* source,
                                          std::byte* slot) {
  ExpertItem item = item_of(lists, d, a.items_fetch ? source : slot);
  item.copy_to = a.items_fetch ? slot : nullptr;
  return item;
}

// Pairs in order of experts (a pair's place is the number of smaller words: at 64 pairs 64 reads of shared memory beat
// any sort), the distinct experts' bounds, host_ids all -1. Returns the number of distinct experts.
__device__ inline int group_pairs(const PlanArgs& a, const int32_t* ids, const PlanLists& lists, PlanState& state) {
  const int pairs = static_cast<int>(a.tokens) * a.top_k, thread = static_cast<int>(threadIdx.x);
  for (int p = thread; p < pairs; p += kPlanThreads) {
    const int id = ids[p];
    lists.words[p] = id < 0 ? kNoPair : static_cast<uint32_t>(id) << kPairBits | static_cast<uint32_t>(p);
  }
  __syncthreads();
  for (int p = thread; p < pairs; p += kPlanThreads) {
    const uint32_t word = lists.words[p];
    if (word == kNoPair) continue;
    int place = 0;
    for (int q = 0; q < pairs; ++q) place += lists.words[q] < word;
    lists.sorted[place] = word;
    a.work.pairs[place] = p;
  }
  int valid = 0;
  for (int base = 0; base < pairs; base += kPlanThreads) {
    const int p = base + thread;
    valid += __syncthreads_count(p < pairs && lists.words[p] != kNoPair);
  }
  int distinct = 0;
  for (int base = 0; base < valid; base += kPlanThreads) {
    const int i = base + thread;
    const bool first = i < valid && (i == 0 || lists.sorted[i] >> kPairBits != lists.sorted[i - 1] >> kPairBits);
    const Rank rank = rank_in_block(first, state);
    if (first) lists.begin[distinct + rank.below] = static_cast<uint16_t>(i);
    distinct += rank.total;
  }
  if (thread == 0) {
    lists.begin[distinct] = static_cast<uint16_t>(valid);
    state.host_tokens = 0;
  }
  for (int p = thread; p < pairs; p += kPlanThreads) lists.host_ids[p] = -1;
  __syncthreads();
  return distinct;
}

// The CPU answers this expert's pairs.
__device__ inline void give_to_host(const PlanLists& lists, int d, int top_k, PlanState& state) {
  const int expert = lists.expert(d);
  for (int i = lists.begin[d]; i < lists.begin[d + 1]; ++i) {
    const auto pair = static_cast<int>(lists.sorted[i] & kPairMask);
    lists.host_ids[pair] = expert;
    atomicOr(&state.host_tokens, 1ull << (pair / top_k));
  }
}

// Publishes which pairs the CPU answers and, when it has experts, hands them over. Begins with a barrier. The rows are
// read past L1: in route_and_plan another block wrote them.
__device__ inline void hand_over(const PlanArgs& a, const PlanLists& lists, int cpu, const PlanState& state) {
  const int pairs = static_cast<int>(a.tokens) * a.top_k, thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int p = thread; p < pairs; p += kPlanThreads) {
    const int id = lists.host_ids[p];
    a.work.from_host[p] = id >= 0;
    if (cpu > 0) a.mailbox.ids[p] = id;
  }
  if (cpu > 0) {
    const auto row = static_cast<int>(activation_words(a.hidden) / 4);  // 16 bytes a thread
    const auto* source = reinterpret_cast<const uint4*>(a.x);
    auto* target = reinterpret_cast<uint4*>(a.mailbox.x);
    for (int i = thread; i < static_cast<int>(a.tokens) * row; i += kPlanThreads) {
      if (state.host_tokens >> (i / row) & 1) target[i] = __ldcg(source + i);
    }
  }
  __syncthreads();
  if (thread != 0) return;
  uint32_t number = 0;
  if (cpu > 0) {
    number = next_number(static_cast<uint32_t>(a.table.clock[kPosted]));
    a.table.clock[kPosted] = number;
    a.mailbox.box->layer = a.layer;
    a.mailbox.box->tokens = static_cast<int32_t>(a.tokens);
    __threadfence_system();
    store_release_system(&a.mailbox.box->posted, number);
  }
  *a.work.ticket = number;
}

__device__ inline void write_counts(const LayerWork& work, int hits, int fetches, int promotions, int arriving = 0,
                                    int prefetches = 0) {
  if (threadIdx.x != 0) return;
  work.item_bounds[0] = 0;
  work.item_bounds[1] = hits;
  work.item_bounds[2] = hits + fetches;
  work.item_bounds[3] = hits + fetches + arriving;
  work.copy_counts[0] = fetches;
  work.copy_counts[1] = promotions;
  work.copy_counts[2] = prefetches;
}

__device__ inline void count_layer(StepCounters& counters, int hits, int misses, int fetches, int promotions,
                                   const PlanState& state) {
  if (threadIdx.x != 0) return;
  // Nothing waits for an addition whose old value is not asked for.
  const auto count = [](uint64_t& counter, int by) {
    if (by > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), static_cast<unsigned long long>(by));
  };
  count(counters.hits, hits);
  count(counters.fetched, fetches);
  count(counters.cpu, misses - fetches);
  count(counters.promoted, promotions);
  count(counters.predicted, state.predicted);
  count(counters.prefetched, state.prefetches);
  count(counters.useful, state.useful);
  count(counters.misses_histogram[min(misses, kHistogramSize - 1)], 1);
}

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
    if (slot >= 0) a.work.items[first + rank.below] = item_of(lists, d, a.slots + slot * a.slot_bytes);
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
    std::byte* target = a.slots + slot * a.slot_bytes;
    const std::byte* source = a.bank + expert * a.blob_bytes;
    a.work.copy_source[m] = source;
    a.work.copy_target[m] = target;
    if (m < fetches) a.work.items[hits + m] = fetched_item(a, lists, d, source, target);
  }
  __syncthreads();
  return kept;
}

// lists.named_at from the predictions; state.predicted, the number of distinct ones. Ends with a barrier.
__device__ inline void name_predicted(const PlanArgs& a, const PlanLists& lists, PlanState& state) {
  const int thread = static_cast<int>(threadIdx.x), tokens = static_cast<int>(a.tokens);
  for (int e = thread; e < a.table.experts; e += kPlanThreads) lists.named_at[e] = kNotNamed;
  __syncthreads();
  for (int i = thread; i < tokens * a.predicted_ranks; i += kPlanThreads) {
    const int id = a.predicted[i % tokens * a.predicted_ranks + i / tokens];  // rank by rank
    if (id >= 0) atomicMin(&lists.named_at[id], i);
  }
  __syncthreads();
  int named = 0;
  for (int base = 0; base < a.table.experts; base += kPlanThreads) {
    named += __syncthreads_count(base + thread < a.table.experts && lists.named_at[base + thread] != kNotNamed);
  }
  if (thread == 0) state.predicted = named;
  __syncthreads();
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

// Predicted experts that are in no slot, best first, get the victims behind `first`. Needs name_predicted's lists and
// the table as this layer leaves it. Ends with a barrier.
__device__ inline void prefetch(const PlanArgs& a, const PlanLists& lists, int first, int count, int most, int copy,
                                const PlanTime& time, PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x), tokens = static_cast<int>(a.tokens);
  if (thread < 32) {
    const int victims = prefetch_victims(a, lists, first, count, most, time.step);
    if (thread == 0) state.kept = victims;
  }
  __syncthreads();
  const int victims = state.kept;
  int absent = 0;
  for (int base = 0; base < tokens * a.predicted_ranks && absent < victims; base += kPlanThreads) {
    const int i = base + thread;
    int id = i < tokens * a.predicted_ranks ? a.predicted[i % tokens * a.predicted_ranks + i / tokens] : -1;
    const int32_t key = (a.layer + 1) * table.experts + id;
    if (id >= 0 && (lists.named_at[id] != i || table.slot_of_key[key] >= 0)) id = -1;
    const Rank rank = rank_in_block(id >= 0, state);  // its barriers keep the reads above before the writes below
    const int place = absent + rank.below;
    if (id >= 0 && place < victims) {
      const int slot = lists.candidate_slot[place];
      fill_slot(table, slot, key, time.step);
      table.prefetched_in[slot] = time.step;
      table.stamp[slot] = kHeldStamp;
      a.work.copy_source[copy + place] = a.next_bank + id * a.next_blob_bytes;
      a.work.copy_target[copy + place] = a.slots + slot * a.slot_bytes;
    }
    absent += rank.total;
    __syncthreads();
  }
  if (thread == 0) state.prefetches = min(absent, victims);
  __syncthreads();
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
  if (looks_ahead) name_predicted(a, lists, state);
  const int room = max(0, table.slots - aside - table.max_distinct);  // what may be held aside
  const int promotions = max(0, min(min(a.max_promotions, uses.misses - fetches), min(room, open - fetches)));
  const int most = looks_ahead ? min(a.max_prefetches, room) : 0;
  const int candidates =
      min(open, fetches + promotions + (most > 0 && state.predicted > 0 ? most + state.predicted : 0));
  int kept = 0;
  if (candidates > 0) {
    find_victims(a, lists, candidates, state);
    kept = fill_slots(a, lists, uses.hits, fetches, promotions, time, state);
    const int left = min(most, room - (kept - fetches));
    if (left > 0 && state.predicted > 0) prefetch(a, lists, kept, candidates, left, kept, time, state);
  }
  release_hits(a, lists, distinct);
  write_counts(a.work, uses.hits, fetches, kept - fetches, uses.arriving, state.prefetches);
  count_layer(*a.counters, held_hits, uses.misses, fetches, kept - fetches, state);
  if (thread != 0) return;
  table.clock[kPlanNumber] = time.plan;
  table.clock[kStepNumber] = time.step;
  table.clock[kLastLayerPlusOne] = static_cast<uint64_t>(a.layer + 1);
  table.clock[kAside] = static_cast<uint64_t>(aside + (kept - fetches) + state.prefetches);
}

__device__ inline void place_all_hits(const PlanArgs& a, const PlanLists& lists, int distinct, PlanState& state) {
  for (int d = static_cast<int>(threadIdx.x); d < distinct; d += kPlanThreads) {
    const int expert = lists.expert(d);
    const std::byte* blob = a.bank + expert * a.blob_bytes;
    if (a.table.slots > 0) blob = a.slots + (a.layer * a.table.experts + expert) % a.table.slots * a.slot_bytes;
    a.work.items[d] = item_of(lists, d, blob);
  }
  hand_over(a, lists, 0, state);
  write_counts(a.work, distinct, 0, 0);
}

// d of the expert, or -1.
__device__ inline int find_expert(const PlanLists& lists, int distinct, int expert) {
  int low = 0, high = distinct;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (lists.expert(middle) < expert) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < distinct && lists.expert(low) == expert ? low : -1;
}

__device__ inline void place_given(const PlanArgs& a, const PlanLists& lists, int distinct, PlanState& state) {
  const int hits = a.given.counts[0], fetches = a.given.counts[1], cpu = a.given.counts[2];
  const int promotions = a.given.counts[3];
  for (int i = static_cast<int>(threadIdx.x); i < hits + fetches + cpu; i += kPlanThreads) {
    const int expert = a.given.expert[i], d = find_expert(lists, distinct, expert);
    if (i >= hits + fetches) {
      if (d >= 0) give_to_host(lists, d, a.top_k, state);
      const int promoted = i - hits - fetches;
      if (promoted >= promotions) continue;
      a.work.copy_source[fetches + promoted] = a.bank + expert * a.blob_bytes;
      a.work.copy_target[fetches + promoted] = a.slots + a.given.promoted[promoted] * a.slot_bytes;
      continue;
    }
    std::byte* blob = a.slots + a.given.slot[i] * a.slot_bytes;
    if (i < hits) {
      a.work.items[i] = item_of(lists, d, blob);
      continue;
    }
    const int copy = i - hits;
    const std::byte* source = a.bank + expert * a.blob_bytes;
    a.work.items[i] = fetched_item(a, lists, d, source, blob);
    a.work.copy_source[copy] = source;
    a.work.copy_target[copy] = blob;
  }
  hand_over(a, lists, cpu, state);
  write_counts(a.work, hits, fetches, promotions);
}

// Checks what both launchers require; the largest number of distinct experts.
int check_plan(const PlanArgs& args);

// Plans the layer; every thread of the block calls it. `memory`: PlanLists::bytes of shared memory, in which nothing of
// `input` lies.
__device__ inline void plan_in_block(const PlanArgs& a, const PlanInput& input, int most_distinct,
                                     unsigned char* memory, PlanState& state) {
  const PlanLists lists(memory, PlanLists::sizes_of(a, most_distinct));
  const int distinct = group_pairs(a, input.ids, lists, state);
  switch (a.placement) {
    case Placement::kTable:
      place_by_table(a, input, lists, distinct, state);
      break;
    case Placement::kAllHits:
      place_all_hits(a, lists, distinct, state);
      break;
    case Placement::kGiven:
      place_given(a, lists, distinct, state);
      break;
  }
}

}  // namespace ft::cuda
