// What a candidate's cache would do: a routing trace replayed through the engine's own slot table (the same class, the
// same policy, split, promotions and prefetches), without running a model.
//
// Pure and thread-safe: no state outside the arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_config.h"
#include "engine/experts/routing_trace.h"
#include "engine/experts/slot_table.h"

namespace ft {

// One sequence of a batch: decode tokens [begin, begin + tokens) of a trace.
struct TraceSequence {
  const RoutingTrace* trace = nullptr;  // not owned
  int64_t begin = 0, tokens = 0;
};
// `batch` sequences out of one trace: equal consecutive parts. REQUIRES 1 <= batch <= trace.tokens.
std::vector<TraceSequence> split_trace(const RoutingTrace& trace, int batch);

// The first tokens of each, so that a replay takes at most `uses` of experts (tokens x layers x top_k over all), but at
// least kLeastSteps. REQUIRES at least one sequence.
std::vector<TraceSequence> cut_sequences(std::vector<TraceSequence> sequences, int64_t uses);
inline constexpr int64_t kLeastSteps = 8;

struct ReplayOptions {
  int64_t slots = 0;
  SplitTable fetch_of_misses;    // as in EngineConfig; may be empty when start_full and slots hold all experts
  PromotionRate promotions = 0;  // of EngineConfig::promote_bytes_per_layer
  bool start_full = false;       // resident: slots filled in order before the first token
  int64_t discard_steps = 0;     // steps at the start that warm the cache and are not counted
  CachePolicy cache_policy = CachePolicy::kLrfu;
  int max_distinct = 0;    // of a layer at the engine's largest batch; 0: of these sequences
  int max_prefetches = 0;  // of the next layer, from the traces' predictions; 0: look-ahead off
  // Where slots are still free after discard_steps, as where promotions fill them, the first half of the sequences is
  // no more than warming: at one promotion a layer or more, again and again, until no slot is free or a pass filled
  // none, at most kMaxFillPasses times, then once as asked. The other half is counted: a cache would look too good on
  // the steps that filled it.
  bool fill_first = false;
  // ReplayResult::content is that of the middle of the sequences, or where counting begins when that is later: where a
  // run that is measured starts. A cache that learns slowly was filled by what comes before and is counted on what
  // comes after; a run over the steps that filled it has hits that no text goes on having (H200, one promotion in 16
  // layers: 73 % where 62 % were predicted). Else of the end.
  bool content_of_middle = false;
};
inline constexpr int kMaxFillPasses = 8;

// What one MoE layer of one step did. Experts are distinct ones; picks are expert-token pairs, equal to the experts
// when one sequence is decoded.
struct LayerCounts {
  int tokens = 1;
  int hits = 0, fetched = 0, cpu = 0, promoted = 0;  // experts; promoted ones are counted in cpu too
  int hit_picks = 0, fetched_picks = 0, cpu_picks = 0;
  int prefetched = 0;  // experts copied ahead for the next layer

  int misses() const { return fetched + cpu; }
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of the generated comparisons for a pointer
  auto operator<=>(const LayerCounts&) const = default;
};
// Counts with every expert used by every token, as Engine::run_moe_layers works.
LayerCounts full_counts(int tokens, int hits, int fetched, int cpu, int promoted);

struct WeightedCounts {
  LayerCounts counts;
  int64_t times = 0;
};

struct ReplayResult {
  int64_t steps = 0;  // counted
  int layers = 0;
  std::vector<WeightedCounts> distribution;  // over counted steps and all layers; times sum to steps * layers
  std::vector<int64_t> misses_histogram;     // [m]: layers of counted steps with m misses
  double hit_rate = 0;                       // hits / distinct experts
  int64_t predicted = 0, prefetched = 0;     // as EngineCounters has them
  int64_t prefetch_useful = 0;
  double hit_rate_halves[2] = {0, 0};  // of the counted steps, to see a steady state
  SlotTable::Content content;          // before step content_step of the sequences
  int64_t content_step = 0;
};

// Sequences are decoded together, one token each per step, until the shortest ends. Throws Error(kFailed) when traces
// disagree in shape or nothing is left after discard_steps.
ReplayResult replay(const std::vector<TraceSequence>& sequences, const ReplayOptions& options);

}  // namespace ft
