// One tuning from request to profile: prepares machine and model, runs the probes within the budget, fits, searches,
// confirms by decode runs, decides, writes.
#pragma once

#include <string>

#include "profiles/profile.h"
#include "tuner/request.h"

namespace ft {

// Samples that an interrupted run left, beside the profile: what --resume reads.
std::string samples_path(const std::string& output);

// Progress and time left on stderr. Throws Error(kInterrupted) after Ctrl-C, when the samples were written.
Profile tune(const TuneRequest& request);

// Memory plan, probes and candidates as text; measures nothing.
std::string tune_dry_run(const TuneRequest& request);

}  // namespace ft
