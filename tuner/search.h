// From a fitted cost model to a ranking of candidates: strategies x slots (inside the memory plan) x threads x splits x
// promotion budgets x fetch mechanisms x look-ahead, each predicted at every (context, batch) by replaying the routing
// trace. Pure. What is tried: search_space.h; how it stays bounded: search_prune.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "tuner/fit.h"
#include "tuner/replay.h"
#include "tuner/step_parts.h"

namespace ft {

struct ThreadModel {  // one per thread count that was measured
  CostFit cost;
  DenseFit dense;
};

struct SearchInput {
  ModelGeometry geometry;
  ModelFormats formats;
  EngineConfig base;  // device, weights, max_batch, max_context: what candidates share
  MemoryInputs memory;
  std::vector<ThreadModel> models;
  std::vector<int64_t> contexts;
  std::vector<int64_t> batches;
  std::vector<std::vector<TraceSequence>> sequences;  // [batch index]: as many as the batch
  int64_t discard_steps = 0;                          // see ReplayOptions
  // Knobs that the user pinned.
  std::optional<Strategy> strategy;
  std::optional<int64_t> slots;
  std::string slots_asked;  // of `slots`, for people: "96 (50%)"; empty: the count
  std::optional<int> threads;
  int cores = 0;  // usable ones, for threads beside the pool; 0: the largest thread count measured
};

struct CandidatePrediction {
  EngineConfig config;
  std::string split;  // for people: "fetch all", "fetch 1 more at 2, 5; promote 1; prefetch 2; copy engine"
  // Per (context, batch), contexts outermost: tokens per second over the whole batch, with kFitConfidence interval.
  std::vector<double> tok_s, low, high;
  std::vector<double> hit_rate;  // per batch
  std::vector<StepParts> parts;  // per (context, batch), likewise
  // Per batch, with the content of the middle; null: not replayed.
  std::shared_ptr<const std::vector<ReplayResult>> replays;
  double score = 0;                 // geometric mean of tok_s: what is ranked
  std::vector<double> score_draws;  // the same for every draw of the fit
  std::string verdict;              // "chosen", or why not
};

struct RejectedStrategy {
  Strategy strategy{};
  std::string reason;
};

struct SearchResult {
  std::vector<CandidatePrediction> ranked;  // [0] is chosen; never empty
  std::vector<RejectedStrategy> rejected;   // strategies (or slots of them) that are no candidate here
  std::vector<std::string> remarks;         // on candidates that are there because a knob was pinned
  bool tie = false;                         // the choice is not told apart from a faster prediction, and is simpler
};

// Predictions nearer than this are a tie whatever the fit's interval says: no measurement here tells them apart.
inline constexpr double kTieFraction = 0.005;

// Simplest first: resident (no cache at work), offload, cpu (a pool that must keep up), hybrid (both at once).
int complexity(Strategy strategy);
// The same with what a strategy engages beside: look-ahead, the copy engine's thread, promotions (on a GPU a kernel
// that copies, and slots where `cpu` needs none without). Strategies come first.
int complexity(const EngineConfig& config);
// The interval of the ratio of the scores holds 1, or they are nearer than kTieFraction.
bool is_tie(const CandidatePrediction& a, const CandidatePrediction& b);

// Among candidates that tie with the best prediction the simplest is chosen; of equally simple ones the fastest.
// Throws Error(kFailed) when nothing can run (the message lists why), kUsage when a pinned thread count was not
// measured.
SearchResult search(const SearchInput& input);

}  // namespace ft
