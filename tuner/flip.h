// Which cost would have to change, by how much, for another candidate to be chosen: one parameter of the cost model at
// a time, everything else as it is. Pure.
//
// Both candidates keep their split, slots and threads; a new tuning could find better ones. The parameter changes for
// every thread count alike: a CPU that is faster is faster for both.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/prediction.h"

namespace ft {

// Factors that are looked at: from 1 / kFlipRange to kFlipRange. Beyond it a machine is another machine.
inline constexpr double kFlipRange = 64;

// One candidate of the two.
struct FlipSide {
  CandidateModel model;
  // Seconds of a step per (context, batch) that the model does not explain, measured minus predicted: they stay when a
  // parameter changes. Empty: the prediction is all there is.
  std::vector<double> residual;
};

// A parameter of the cost model that can be scaled: the terms of cost_terms() that an engaged candidate pays by (not
// the copy engine's and the look-ahead's own, which stand in for a_f, s_f, a_layer and s_layer_token), then those of
// the dense part.
struct FlipKnob {
  std::string_view name;                                // as in the profile
  std::string_view unit;                                // "s" or "1"
  std::function<double&(CandidateModel& model)> value;  // where it is
};
std::span<const FlipKnob> flip_knobs();

struct FlipTerm {
  const FlipKnob* knob = nullptr;
  double winner_value = 0, other_value = 0;  // what the two pay by: differ with different thread counts
  std::optional<double> factor;              // the nearest one at which the other is chosen; empty: none in the range
};

struct Flip {
  double lead = 0;              // winner's rate over the other's, geometric mean over all points
  double predicted_lead = 0;    // the same without residuals
  double needed = 0;            // the other is chosen when the lead is at most this
  std::vector<FlipTerm> terms;  // nearest first, then those without a factor in the order of flip_knobs()
};

// Terms that are 0 in both are left out: no factor changes them. With lead <= needed already there are no terms.
// REQUIRES the same points on both sides, residuals empty or one per point.
Flip find_flip(const FlipSide& winner, const FlipSide& other, const std::vector<int64_t>& contexts, double needed);

// The nearest factor to 1 in [1 / kFlipRange, kFlipRange] at which `lead` is at most `needed`; empty: none.
// REQUIRES lead(1) > needed. `lead` need not be monotonic; what returns within a step of 2^(1/8) may be missed.
std::optional<double> nearest_flip(const std::function<double(double factor)>& lead, double needed);

}  // namespace ft
