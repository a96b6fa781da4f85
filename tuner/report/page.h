// The page of `ft-tune report`: one HTML file that opens offline. No script, no font, image or style from elsewhere.
#pragma once

#include <span>
#include <string>

#include "profiles/profile.h"

namespace ft {

struct ReportedProfile {
  std::string name;  // of the file: tells profiles apart
  Profile profile;
};

// REQUIRES at least one. The same profiles give the same page.
std::string report_page(std::span<const ReportedProfile> profiles);

// The page's style sheet.
std::string_view report_style();

}  // namespace ft
