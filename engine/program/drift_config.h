// From what a profile expects in service to what the engine's watch compares with.
#pragma once

#include <string>

#include "engine/server/service_watch.h"
#include "profiles/profile.h"

namespace ft {

// Parts become what this device can measure: on the host device a step waits for the link in `fetch` and `idle`, and
// for its own threads in `synchronization`; a GPU waits for the CPU in `cpu` and `synchronization`.
ExpectedSteps expected_steps(const std::vector<ExpectedPoint>& points, Device device);

// fall_back: --on-drift fallback. Throws Error(kUsage) with the JSON path when the profile has nothing to fall back to,
// or nothing to judge by. Without log and throttling: the caller adds them.
DriftOptions drift_options(const Serve& serve, bool fall_back);

// What the start says: what is judged, or that nothing is, and what happens then.
std::string watch_text(const DriftOptions& drift);

}  // namespace ft
