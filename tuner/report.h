// The decision for people: one table, every candidate with what was predicted, what was measured, and why not.
#pragma once

#include <string>

#include "profiles/profile.h"

namespace ft {

std::string decision_table(const Profile& profile);

}  // namespace ft
