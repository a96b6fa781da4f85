// What ft-engine prints at start and for --dry-run: the choice, the predicted rate, the margin, the runner-up and why.
#pragma once

#include <string>

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "profiles/profile.h"

namespace ft {

std::string decision_text(const Profile& profile);
std::string memory_plan_text(const MemoryPlan& plan, const EngineConfig& config);

}  // namespace ft
