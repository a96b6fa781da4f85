// What a profile tells the engine to expect in service, and what it may fall back to: the keys serve.expected and
// serve.fallback. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "profiles/profile.h"
#include "tuner/search.h"

namespace ft {

struct ExpectedInput {
  const CandidatePrediction* prediction = nullptr;
  const Candidate* candidate = nullptr;  // of the profile: what was measured of it; null: nothing was
  // Per (context, batch): the measured rate is one of that context. Empty: everywhere.
  std::vector<bool> measured_there = {};
  std::vector<int64_t> contexts = {}, batches = {};
};
// One point per (context, batch), contexts outermost. The rate is the measured one with its interval where it was
// measured at that context, else the predicted one with its own; hit rate and experts are the replay's; parts are the
// predicted ones, stretched to sum to a step of that rate. Empty without a replay: then nothing can be expected.
std::vector<ExpectedPoint> expected_points(const ExpectedInput& input);

// Plain offload in place of `chosen`, with its threads and slots; none where that is no change (resident, offload) or
// there are no slots. `expected` is of a prediction of just that, if `ranked` has one.
std::optional<Fallback> fallback_for(const CandidatePrediction& chosen, std::span<const CandidatePrediction> ranked,
                                     const std::vector<int64_t>& contexts, const std::vector<int64_t>& batches);

}  // namespace ft
