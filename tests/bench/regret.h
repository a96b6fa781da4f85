// Regret of one tuning: the tuner's choice against the best of many candidates measured at length afterwards, in the
// same session. What is here is pure; regret_main.cpp measures.
//
// Who is measured (kMeasured, or all when there are fewer): the choice; what the bandwidth rule would have taken; then,
// strategy by strategy in turn, the best prediction of each that is not in yet. The pool they come from is what the
// search ranked, and of every strategy with a CPU arm the splits and promotions that the search left out.
//
// Scoring. Every value is paired with the choice's of the same round. The best candidate is the one that was fastest on
// odd rounds; regret is the choice's time over that candidate's, less 1, on even rounds, so that nobody is picked for
// luck and scored for it. It is 0 when the interval of the ratio holds 1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/json.h"
#include "kernels/base/statistics.h"
#include "profiles/profile.h"
#include "tuner/analysis.h"

namespace ft::bench {

inline constexpr size_t kMeasured = 10;
inline constexpr double kRuleRatio = 2;  // hybrid when the CPU's bandwidth is over so many times the link's

// The rule of published engines, from the tuner's own measurements.
struct BandwidthRule {
  double cpu_gbps = 0;   // experts on the CPU, best of what expert_single measured with the most threads
  double link_gbps = 0;  // cuda: best gather of pcie_gather; host: an expert's bytes over the fitted copy's slope
  Strategy picks = Strategy::kOffload;
  std::optional<size_t> pick;  // into the pool: its best prediction; empty: the strategy is no candidate here
};
BandwidthRule bandwidth_rule(const AnalysisInput& input, const Analysis& analysis);

using Pool = std::vector<CandidatePrediction>;
// What the search ranked, in its order, then the others.
Pool candidate_pool(const AnalysisInput& input, const Analysis& analysis);

// Index of what the profile chose. FT_CHECKs that there is one.
size_t chosen_index(const Pool& pool, const Profile& profile);

// Indexes into the pool, the choice first.
std::vector<size_t> candidates_to_measure(const Pool& pool, size_t choice, std::optional<size_t> rule);

struct MeasuredCandidate {
  size_t index = 0;  // into the pool
  // Tokens per second, round by round, and the choice's in the same rounds: not the same for candidates that did not
  // fit in memory together.
  std::vector<double> tok_s, choice_tok_s;
  // What the engine did in these rounds: to hold against the replay's.
  double hit_rate = 0, fetched_per_layer = 0, cpu_per_layer = 0, promoted_per_layer = 0;
};

struct Regret {
  size_t best = 0;                      // index into the measured candidates
  double ratio = 1, low = 1, high = 1;  // choice's time over the best one's, even rounds
  double regret = 0;
};
// REQUIRES [0] to be the choice, at least four rounds everywhere.
Regret regret_of(std::span<const MeasuredCandidate> measured);
// What candidate `index` would have lost to the best: its ratio to that, likewise on even rounds.
Regret regret_of_candidate(std::span<const MeasuredCandidate> measured, size_t best, size_t index);

// Half of the 95 % interval of a candidate's median, as a share of it: median over the candidates.
double noise_of(std::span<const MeasuredCandidate> measured);

struct PredictionError {
  double median = 0, worst = 0;  // of |predicted / measured ms per token - 1|
};
PredictionError prediction_error(const Pool& pool, std::span<const MeasuredCandidate> measured);

struct CellTimes {
  double all_seconds = 0, tune_seconds = 0, score_seconds = 0;
};
// One line of a results file: tests/bench/regret.schema.json.
OrderedJson cell_json(const std::string& cell, const Profile& profile, const Pool& pool,
                      std::span<const MeasuredCandidate> measured, const BandwidthRule& rule, const CellTimes& times,
                      int64_t expert_bytes);

}  // namespace ft::bench
