// A profile in which every field differs from its default and every optional key is present.
#pragma once

#include "profiles/profile.h"

ft::Profile sample_profile();
