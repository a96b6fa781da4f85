// What every placement of a plan (plan.cuh) works with: the block's lists, pairs in order of experts, and what a plan
// hands over.
#pragma once

#include <algorithm>

#include "kernels/cuda/fetch.cuh"
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
__device__ inline ExpertItem item_of(const PlanLists& lists, int d, const std::byte* blob, int arrival = -1) {
  if (d < 0) return {.blob = blob, .arrival = arrival};
  return {.blob = blob,
          .pair_begin = lists.begin[d],
          .pair_count = lists.begin[d + 1] - lists.begin[d],
          .arrival = arrival};
}

// The copy of a blob into a slot that has just got its key: nothing has arrived.
__device__ inline Copy copy_to_slot(const PlanArgs& a, int slot, const std::byte* source, const BlobUnits& units) {
  uint32_t* arrived = a.table.arrived + kArrivalParts * slot;
  arrived[0] = arrived[1] = 0;
  return {source, a.slots + slot * a.slot_bytes, arrived, units};
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

__device__ inline void write_counts(const PlanArgs& a, int hits, int fetches, int arriving = 0) {
  if (threadIdx.x != 0) return;
  a.work.item_bounds[0] = 0;
  a.work.item_bounds[1] = hits;
  a.work.item_bounds[2] = hits + fetches;
  a.work.item_bounds[3] = hits + fetches + arriving;
  *a.work.fetch_count = fetches;
  if (fetches > 0 && a.queue.words != nullptr) {
    a.queue.words[kPending] = static_cast<uint32_t>(fetches) * a.units.all;
  }
}

// Where the next copy of a kind goes. Only plans append, one after the other.
__device__ inline Copy* queue_end(const LinkQueue& queue, LinkKind kind) {
  return queue.copies[kind] + __ldcg(queue.words + queued_word(kind));
}

// After a barrier behind the writes of `count` copies at queue_end. By one thread.
__device__ inline void append_queued(const LinkQueue& queue, LinkKind kind, int count) {
  if (count > 0) add_release(queue.words + queued_word(kind), static_cast<uint32_t>(count));
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

}  // namespace ft::cuda
