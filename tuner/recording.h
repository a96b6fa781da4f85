// A recorded machine: a folder from which the decision of a tuning can be taken again anywhere, without the machine.
//
//   machine.json   topology, CPUs and memory (schemas/machine.schema.json)
//   samples.json   every series of every probe, `decode` included (schemas/samples.schema.json)
//   routing.json   the expert choices (schemas/routing_trace.schema.json)
//   inputs.json    geometry, formats, memory, pins: what analyze() takes beside them
//   expected.json  the decision, the strategies that tie with it, the predicted rates of what was confirmed
//
// A folder stays small (kMaxRecordingBytes). Where samples would be larger than kMaxSamplesBytes, every series keeps
// its first values only, as many for all as fit (rounds stay paired; inputs.values_per_series says how many); where
// routing would be larger than kMaxRoutingBytes, the first tokens that fit are kept. expected.json follows from what is
// in the folder, not from what was left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/host/topology.h"
#include "profiles/samples.h"
#include "tuner/analysis.h"

namespace ft {

inline constexpr size_t kMaxRecordingBytes = 300'000;
inline constexpr size_t kMaxSamplesBytes = 180'000;
inline constexpr size_t kMaxRoutingBytes = 90'000;
// Rates are compared with this tolerance: another compiler's libm moves them by less than 0.1 %, a changed cost model
// by more, and is then to be recorded as a change.
inline constexpr double kRecordedTolerance = 0.02;

struct RecordedMachine {
  HostTopology topology;
  CpuBudget cpus;
  MemoryBudget memory;
};

// A candidate that `decode` ran: all that tells it from another.
struct ConfirmedCandidate {
  std::string strategy;
  int threads = 1;
  int64_t slots = 0;
  SplitTable fetch_of_misses;  // empty: resident
  PromotionRate promotions = 0;
  std::string fetch_mechanism = "sm";
  int max_prefetches_per_layer = 0;
  std::vector<double> predicted_tok_s;
  bool operator==(const ConfirmedCandidate&) const = default;
};

struct RecordedDecision {
  std::string strategy, runner_up;
  std::vector<std::string> ties;  // the choice first
  double tolerance = kRecordedTolerance;
  std::vector<ConfirmedCandidate> confirmed;  // in the order of `decode`'s candidate indexes
};

struct Recording {
  RecordedMachine machine;
  SampleRecord samples;
  RoutingTrace trace;
  AnalysisInput inputs;  // its measurements and trace are the ones above: see analysis_input()
  std::string about;
  int64_t values_per_series = 0, tokens_of_routing = 0;
  RecordedDecision expected;
};
// `recording` must outlive the result.
AnalysisInput analysis_input(const Recording& recording);

// The decision, taken again through analyze() and conclude(). Decode series belong to the candidates that `expected`
// lists: what the search of today would confirm does not matter, and one that it does not rank is predicted beside the
// ranked ones. Throws Error(kFailed) when there is no model for the threads of one.
struct ReplayedMachine {
  Analysis analysis;
  Conclusion conclusion;
};
ReplayedMachine replay(const Recording& recording);
RecordedDecision decision_of(const Recording& recording, const ReplayedMachine& replayed);
// Of any candidate, ranked or not: whatever the search of today would say of it. Throws as replay() does.
CandidatePrediction predict_candidate(const AnalysisInput& input, const std::vector<ThreadModel>& models,
                                      const ConfirmedCandidate& candidate);
// How the two differ, one line each; empty: they agree.
std::vector<std::string> differences(const RecordedDecision& expected, const RecordedDecision& found);

// Refuses a folder that holds anything but a recording, a path that is no folder, a place that cannot be written.
void check_record_folder(const std::string& folder);
// Thins, takes the decision from what is left, and writes: the folder is the old one or the new one, never half of it.
// `confirmed` are the candidates that `decode` ran. Throws Error(kFailed).
void write_recording(const std::string& folder, Recording recording, const Analysis& confirmed);

// Throws Error(kUsage) with file, JSON path, value and what is allowed, for a recording that is damaged, too large, or
// does not hold together (a trace of another geometry, an index out of range).
Recording read_recording(const std::string& folder);

}  // namespace ft
