// The sections of the page, each of one profile. All text comes out of the profile and goes through Markup; what an
// older profile does not record is said in its place. Pure.
#pragma once

#include <string>

#include "profiles/profile.h"
#include "tuner/report/markup.h"

namespace ft {

Markup decision_card(const Profile& profile);
Markup candidates_section(const Profile& profile);
Markup changes_section(const Profile& profile);
Markup predicted_section(const Profile& profile);  // against measured
Markup time_section(const Profile& profile);       // where a step's time goes
Markup ceilings_section(const Profile& profile);
Markup sweep_section(const Profile& profile);
Markup routing_section(const Profile& profile);
Markup conditions_section(const Profile& profile);

// Colour and mark of a strategy, the same in every chart.
struct StrategyLook {
  const char* style;
  int shape;  // Shape
};
StrategyLook look_of(const std::string& strategy);

}  // namespace ft
