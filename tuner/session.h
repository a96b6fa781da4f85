// One tuning from request to profile: prepares machine and model, runs the probes within the budget, fits, searches,
// confirms by decode runs, decides, writes.
#pragma once

#include "profiles/profile.h"
#include "tuner/request.h"

namespace ft {

// Progress and time left on stderr. Throws Error(kInterrupted) after Ctrl-C, when the samples were written.
Profile tune(const TuneRequest& request);

}  // namespace ft
