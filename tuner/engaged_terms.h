// Terms of the cost model that only some candidates engage, added to a fit of all the others with values, draws and
// intervals of their own. They are differences between two series that were sampled in the same rounds, so that what
// the sweep saw of the link and of a layer stays as it is.
#pragma once

#include <cstdint>
#include <span>

#include "probes/probe.h"
#include "tuner/fit.h"

namespace ft {

// A line through the seconds of fetches of n blobs.
struct LinkLine {
  double fixed = 0, per_blob = 0;
};
// The series of pcie_gather whose names begin with `prefix` ("sm_gather", "copy_engine"): non-negative, least squares
// of relative errors over the medians. Both zero when there are none.
LinkLine link_line(std::span<const Samples> gather, std::string_view prefix);

// FetchMechanism::kCopyEngine: fixed cost and slope are a_f and s_f plus what layer_sweep's pairs of both mechanisms
// differ by, of any thread count. Without pairs (a machine recorded before there were any) by both lines of
// pcie_gather: a_f plus what its line starts higher than the gather's, s_f by the ratio of both slopes. Does nothing
// without either.
void add_copy_engine_terms(std::span<const Samples> sweep, std::span<const Samples> gather, uint64_t seed,
                           CostFit& fit);

// LookAhead::kRouter: layers with and without the predicting router (layer_sweep's pairs), per layer and per token.
// Does nothing without pairs of fit's thread count.
void add_look_ahead_terms(std::span<const Samples> sweep, uint64_t seed, CostFit& fit);

// A GPU's copier of promotions and prefetches: steps of `dense` with and without it, in the same rounds. Does nothing
// without pairs of fit's thread count.
void add_copier_term(std::span<const Samples> dense, uint64_t seed, CostFit& fit);

}  // namespace ft
