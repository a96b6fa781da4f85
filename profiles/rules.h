// What must hold between the fields of a profile that is valid by its schema. Internal to profiles/.
#pragma once

#include <string>

#include "profiles/profile.h"

namespace ft {

// Throws Error(kUsage) with the JSON path, the value and what is allowed.
void check_profile_rules(const Profile& profile, const std::string& source);

}  // namespace ft
