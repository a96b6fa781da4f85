// One tuning from request to profile: prepares machine and model, runs the probes within the budget, fits, searches,
// confirms by decode runs, decides, writes.
#pragma once

#include <functional>

#include "probes/probe.h"
#include "profiles/profile.h"
#include "tuner/analysis.h"
#include "tuner/request.h"

namespace ft {

// Progress and time left on stderr. Throws Error(kInterrupted) after Ctrl-C, when the samples were written.
Profile tune(const TuneRequest& request);

// The same for a program that goes on measuring: `after` runs when the profile is written, with the model still loaded.
struct TunedSession {
  ProbeContext& context;  // candidates and budget may be changed
  const AnalysisInput& input;
  const Analysis& analysis;
  const Profile& profile;
};
// loaded: the context.model of an earlier tuning with the same weights and device, whose loading this one is spared.
Profile tune(const TuneRequest& request, const std::function<void(const TunedSession&)>& after,
             const LoadedModel& loaded = {});

}  // namespace ft
