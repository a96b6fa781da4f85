// Tuning after the probes: from measurements to candidates worth a decode run, and from the decode runs to the sections
// of a profile. Session measures, this concludes.
//
// Pure: everything comes in as arguments, no model is loaded, no file, clock or machine is read. A recorded machine
// (samples, routing trace, geometry, formats, memory) gives the same decision anywhere.
//
//   analyze()            fits, searches, names what is to be confirmed
//   decode_candidates()  the same as what the probe `decode` runs, in its order
//   conclude()           reads the decode series and decides
//
// Thread rule: no state outside the arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "engine/experts/routing_trace.h"
#include "probes/probe.h"
#include "profiles/profile.h"
#include "tuner/search.h"

namespace ft {

struct AnalysisInput {
  // Of every probe that ran; layer_sweep and dense are needed. analyze() ignores `decode`, conclude() reads it.
  std::span<const Measurement> measurements;  // not owned
  const RoutingTrace* trace = nullptr;        // not owned; of this geometry, at least as many tokens as the batch
  ModelGeometry geometry;                     // moe_layers of it are the layers of the trace
  ModelFormats formats;
  EngineConfig base;    // device, weights, pinning, max_batch, max_context, ..: what candidates share
  MemoryInputs memory;  // what slots and pools must fit into
  std::vector<int64_t> contexts, batches;  // of the predictions: ascending, not empty
  // Knobs that the user pinned: see SearchInput.
  std::optional<Strategy> strategy;
  std::optional<int64_t> slots;
  std::string slots_asked;
  std::optional<int> threads;
  int cores = 0;  // usable ones; 0: the largest thread count measured. The copy engine needs one beside the threads
  bool forced = false;  // some knob is pinned: the decision says so
};

// What analyze() searches.
SearchInput search_input(const AnalysisInput& input, const std::vector<ThreadModel>& models);

struct Analysis {
  std::vector<ThreadModel> models;  // ascending threads
  SearchResult search;
  std::optional<RoutingRecord> routing;  // absent when no slots fit
  std::vector<size_t> confirmed;         // candidate index of `decode` -> index into search.ranked
};
// Throws Error: kFailed when the measurements are too few for a model, the trace is too short for a batch or nothing
// can run; kUsage for a pinned thread count that was not measured.
Analysis analyze(const AnalysisInput& input);

// What `decode` is to run: the engine's configuration and where each batch goes on in the trace.
std::vector<DecodeCandidate> decode_candidates(const AnalysisInput& input, const Analysis& analysis);
DecodeCandidate decode_candidate(std::string name, const CandidatePrediction& candidate, const SearchInput& input);

// The sections of a profile that follow from measurements.
struct Conclusion {
  CostModelRecord cost_model;
  std::vector<Candidate> candidates;
  std::optional<RoutingRecord> routing;
  Decision decision;
  Serve serve;
};
// `analysis` is that of the same input; input.measurements now have the series of `decode`. Series that are missing are
// no error: the decision says that it was not confirmed.
Conclusion conclude(const AnalysisInput& input, const Analysis& analysis);

}  // namespace ft
