// From predictions and the decode runs that checked them to the decision. Pure.
//
// The measured winner stands, also where the prediction ranks another first. A tie (the interval of the ratio holds 1,
// or the two are nearer than kTieFraction) goes to the simpler strategy. Without measurements the prediction decides,
// and the profile warns that nothing was confirmed. Of candidates that engaged the same the simplest stands for all. A
// candidate whose engine did not do what was asked has no measurement, and a warning with both values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "tuner/confirmation.h"
#include "tuner/search.h"

namespace ft {

// Measured time over predicted time beyond which the profile says that the model does not explain this machine.
inline constexpr double kStatedGap = 1.25;

struct Decided {
  Decision decision;
  std::vector<Candidate> candidates;  // the chosen one, the others in the order of `ranked`, the rejected ones
  size_t chosen = 0;                  // index into `ranked`
};

struct DecideInput {
  const SearchResult* search = nullptr;
  std::vector<size_t> measured;               // candidate index of `decode` -> index into ranked
  std::span<const Measurement> measurements;  // of all probes
  std::vector<int64_t> contexts, batches;
  int moe_layers = 0;
  bool forced = false;
};
Decided decide(const DecideInput& input);

}  // namespace ft
