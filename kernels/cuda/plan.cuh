// The plan of one layer, by one block of kPlanThreads: what plan_layer and route_and_plan run. See moe.h.
#pragma once

#include <algorithm>

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
  uint32_t* sorted;  // [pairs] words
  int32_t* slot;     // [d]
  uint16_t* begin;   // [d + 1] into sorted
  uint16_t* miss;    // [m] -> d
  // One after the other in the same place: words as they came; the pair's expert where the CPU computes it, else -1;
  // candidates for eviction.
  uint32_t* words;            // [pairs]
  int32_t* host_ids;          // [pairs]
  uint64_t* candidate_stamp;  // [d]
  int32_t* candidate_slot;    // [d]

  __device__ PlanLists(unsigned char* memory, int pairs, int distinct) {
    sorted = reinterpret_cast<uint32_t*>(memory);
    memory += round_up_16(pairs * 4);
    slot = reinterpret_cast<int32_t*>(memory);
    memory += round_up_16(distinct * 4);
    begin = reinterpret_cast<uint16_t*>(memory);
    memory += round_up_16((distinct + 1) * 2);
    miss = reinterpret_cast<uint16_t*>(memory);
    memory += round_up_16(distinct * 2);
    words = reinterpret_cast<uint32_t*>(memory);
    host_ids = reinterpret_cast<int32_t*>(memory);
    candidate_stamp = reinterpret_cast<uint64_t*>(memory);
    candidate_slot = reinterpret_cast<int32_t*>(memory + distinct * 8);
  }
  static int bytes(int pairs, int distinct) {
    return round_up_16(pairs * 4) + round_up_16(distinct * 4) + round_up_16((distinct + 1) * 2) +
           round_up_16(distinct * 2) + std::max(round_up_16(pairs * 4), round_up_16(distinct * 12));
  }
  __device__ int expert(int d) const { return static_cast<int>(sorted[begin[d]] >> kPairBits); }
};

struct PlanState {  // static shared memory
  int warp_totals[kPlanWarps];
  unsigned long long host_tokens;  // bit t: token t has a pair for the CPU
  int kept;                        // of the victims, those that are taken
  int refilled;                    // of the fetches, those that the gather copies too
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
__device__ inline int group_pairs(const PlanArgs& a, const PlanLists& lists, PlanState& state) {
  const int pairs = static_cast<int>(a.tokens) * a.top_k, thread = static_cast<int>(threadIdx.x);
  for (int p = thread; p < pairs; p += kPlanThreads) {
    const int id = a.ids[p];
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

__device__ inline void write_counts(const LayerWork& work, int hits, int fetches, int promotions) {
  if (threadIdx.x != 0) return;
  work.item_bounds[0] = 0;
  work.item_bounds[1] = hits;
  work.item_bounds[2] = hits + fetches;
  work.copy_counts[0] = fetches;
  work.copy_counts[1] = promotions;
}

__device__ inline void count_layer(StepCounters& counters, int hits, int misses, int fetches, int promotions) {
  if (threadIdx.x != 0) return;
  // Nothing waits for an addition whose old value is not asked for.
  const auto count = [](uint64_t& counter, int by) {
    if (by > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), static_cast<unsigned long long>(by));
  };
  count(counters.hits, hits);
  count(counters.fetched, fetches);
  count(counters.cpu, misses - fetches);
  count(counters.promoted, promotions);
  count(counters.misses_histogram[min(misses, kHistogramSize - 1)], 1);
}

// Finds the victims of the first `wanted` misses, of which `fetches` are fetched, and puts the misses into their slots.
// Returns how many it took: a promotion's victim that was filled in this step ends the promotions.
//
// A fetch that the items bring may take a slot that a promotion of this step is still being copied into (with few
// slots: fetches take any). Two writers would leave a mixture, so such a slot is filled by the gather of this layer,
// which runs behind those before it, and the item is computed from the bank alone.
__device__ inline int fill_slots(const PlanArgs& a, const PlanLists& lists, int hits, int fetches, int wanted,
                                 uint64_t last_use, uint64_t step, PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) state.kept = wanted, state.refilled = 0;
  const Stamps stamps(table.used_at, table.slots);  // this layer's hits are newer than last_use by now
  select_oldest(stamps, last_use, wanted, state.select, lists.candidate_stamp, lists.candidate_slot);
  for (int c = thread; c < wanted; c += kPlanThreads) {
    int m = 0;
    for (int other = 0; other < wanted; ++other) m += lists.candidate_stamp[other] < lists.candidate_stamp[c];
    const int slot = lists.candidate_slot[c];
    lists.slot[lists.miss[m]] = slot;
    if (m >= fetches && table.filled_in[slot] == step) atomicMin(&state.kept, m);
  }
  __syncthreads();
  const int kept = state.kept;
  for (int m = thread; m < kept; m += kPlanThreads) {
    const int d = lists.miss[m], slot = lists.slot[d], expert = lists.expert(d);
    const int32_t key = a.layer * table.experts + expert, old = table.key_of_slot[slot];
    const bool may_be_under_way = a.max_promotions > 0 && table.filled_in[slot] == step;
    if (old >= 0) table.slot_of_key[old] = -1;
    table.key_of_slot[slot] = key;
    table.slot_of_key[key] = slot;
    table.filled_in[slot] = step;
    table.used_at[slot] = last_use + static_cast<uint64_t>(hits + 1 + m);
    std::byte* target = a.slots + slot * a.slot_bytes;
    const std::byte* source = a.bank + expert * a.blob_bytes;
    a.work.copy_source[m] = source;
    a.work.copy_target[m] = target;
    if (m >= fetches) continue;
    a.work.items[hits + m] = fetched_item(a, lists, d, source, target);
    if (!a.items_fetch || !may_be_under_way) continue;
    a.work.items[hits + m].copy_to = nullptr;
    const int copy = kept + atomicAdd(&state.refilled, 1);
    a.work.copy_source[copy] = source;
    a.work.copy_target[copy] = target;
  }
  __syncthreads();
  return kept;
}

__device__ inline void place_by_table(const PlanArgs& a, const PlanLists& lists, int distinct, PlanState& state) {
  const SlotTableView& table = a.table;
  const int thread = static_cast<int>(threadIdx.x);
  const uint64_t last_use = table.clock[kLastUse];
  const bool new_step =
      static_cast<uint64_t>(a.layer + 1) <= table.clock[kLastLayerPlusOne] || table.clock[kStepNumber] == 0;
  const uint64_t step = table.clock[kStepNumber] + (new_step ? 1 : 0);
  int hits = 0;
  for (int base = 0; base < distinct; base += kPlanThreads) {
    const int d = base + thread;
    int slot = -1;
    if (d < distinct && table.slots > 0) slot = table.slot_of_key[a.layer * table.experts + lists.expert(d)];
    const Rank rank = rank_in_block(slot >= 0, state);
    const int hit = hits + rank.below;
    if (slot >= 0) {
      table.used_at[slot] = last_use + static_cast<uint64_t>(hit + 1);
      a.work.items[hit] = item_of(lists, d, a.slots + slot * a.slot_bytes);
    } else if (d < distinct) {
      lists.miss[d - hit] = static_cast<uint16_t>(d);
    }
    hits += rank.total;
  }
  __syncthreads();
  const int misses = distinct - hits;
  int fetches = 0;
  if (misses > 0 && table.slots > 0) fetches = min(a.fetch_of_misses[misses], min(misses, table.slots - hits));
  for (int m = fetches + thread; m < misses; m += kPlanThreads) give_to_host(lists, lists.miss[m], a.top_k, state);
  hand_over(a, lists, misses - fetches, state);
  const int wanted = fetches + max(0, min(a.max_promotions, min(misses, table.slots - hits) - fetches));
  const int kept = wanted > 0 ? fill_slots(a, lists, hits, fetches, wanted, last_use, step, state) : 0;
  const int refilled = wanted > 0 ? state.refilled : 0;
  write_counts(a.work, hits, fetches, kept - fetches + refilled);
  count_layer(*a.counters, hits, misses, fetches, kept - fetches);
  if (thread != 0) return;
  table.clock[kLastUse] = last_use + static_cast<uint64_t>(hits + kept);
  table.clock[kPlanNumber] += 1;
  table.clock[kStepNumber] = step;
  table.clock[kLastLayerPlusOne] = static_cast<uint64_t>(a.layer + 1);
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

// Plans the layer; every thread of the block calls it. `memory`: PlanLists::bytes of shared memory.
__device__ inline void plan_in_block(const PlanArgs& a, int most_distinct, unsigned char* memory, PlanState& state) {
  const PlanLists lists(memory, static_cast<int>(a.tokens) * a.top_k, most_distinct);
  const int distinct = group_pairs(a, lists, state);
  switch (a.placement) {
    case Placement::kTable:
      place_by_table(a, lists, distinct, state);
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
