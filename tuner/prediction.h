// A profile's own predictions, made again: the cost model read back from its record, and the replays of a candidate
// through it. What explain, check and the drift watch ask "what if" with. Pure.
//
// Every parameter of the record is used by name; one that a profile of an older version does not have is 0, which is
// what it meant then. Errors are Error(kUsage) that name the JSON path, the value and what is allowed: profiles are
// edited by hand.
#pragma once

#include <vector>

#include "profiles/profile.h"
#include "tuner/cost_model.h"

namespace ft {

// The name under which the number of MoE layers is recorded beside the fitted parameters.
inline constexpr std::string_view kMoeLayersParameter = "moe_layers";

struct ProfileModel {
  CostParameters cost;  // as fitted: before engaged_cost
  DenseCost dense;
};

// Thread counts that have a model, ascending.
std::vector<int> model_threads(const CostModelRecord& record);
// Throws when there is none for `threads`.
ProfileModel model_of(const CostModelRecord& record, int threads);
// Throws when it was not recorded (before version 1.4) or is out of range.
int moe_layers_of(const CostModelRecord& record);

// The thread count whose model predicts the candidate. Where the pool has no work (cuda, nothing on the CPU) that is
// the smallest one measured, whatever the engine's own threads are.
int model_threads_of(const CostModelRecord& record, Device device, Strategy strategy, int threads);

// Throws when `conditions.device`, a strategy or a mechanism is none.
Device device_of(const Profile& profile);

// Of one candidate, as the engine would be engaged; `replay` has no content, histogram or halves.
struct CandidateModel {
  CostParameters cost;  // after engaged_cost
  DenseCost dense;
  Device device = Device::kHost;
  std::vector<ReplayResult> replays;  // per batch of the conditions
};
// REQUIRES candidate.replays not empty; throws when they are not those of the conditions' batches.
CandidateModel candidate_model(const Profile& profile, const Candidate& candidate);

// Tokens per second per (context, batch) in the order of `conditions`: what candidate.predicted_tok_s was.
std::vector<double> predicted_rates(const CandidateModel& model, const std::vector<int64_t>& contexts);

// The other direction, for whoever writes a profile.
CandidateReplay replay_record(const ReplayResult& replay, int64_t batch);

}  // namespace ft
