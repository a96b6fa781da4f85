// The grid of layer_sweep and its coordinates.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "probes/engine_setup.h"
#include "probes/probe.h"

namespace ft {

// Counts from nothing to top_k in every arm and every mix of them, for one token; the arms alone for the largest batch,
// there also with more experts than one token has. `coarse`: fewer counts and no mix of all three, for small budgets.
// Without slots only the CPU arm. Points with nothing to do and with one arm alone come first.
std::vector<SweepPoint> sweep_grid(const ExpertGeometry& expert, int max_batch, int64_t slots, bool coarse);

// Coordinate of the series that time a layer without experts in pairs, engines with (1) and without (0) look-ahead in
// the same rounds: what the predicting router costs. All other series do not have it.
inline constexpr const char* kLookAheadCoordinate = "look_ahead";

// Coordinate of the series that time fetches in pairs, engines with the copy engine (1) and by the SM (0) in the same
// rounds, of the first thread count only: the link is no other with more threads. All other series do not have it.
inline constexpr const char* kCopyEngineCoordinate = "copy_engine";

// Picks of `experts` of a point's experts: its tokens * top_k rows shared out evenly.
int picks_of(const SweepPoint& point, int experts, int top_k);

// Coordinates of a point, as in Samples::at.
std::map<std::string, double> sweep_coordinates(const SweepPoint& point, int threads, int top_k);

}  // namespace ft
