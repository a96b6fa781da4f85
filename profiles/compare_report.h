// A comparison as people and machines read it. Every text ends with a line feed.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "profiles/compare.h"

namespace ft {

// For a terminal: what differs, then a line for every metric that is not the same, then counts.
std::string compare_text(const ProfileComparison& comparison);
// For a comment on GitHub: the verdict, a table of what changed, the rest collapsed. At most kMaxCommentBytes.
std::string compare_markdown(const ProfileComparison& comparison);
// Everything, numbers in full.
std::string compare_json(const ProfileComparison& comparison);
// One test case a metric: a regression is a failure, an incomparable one is skipped.
std::string compare_junit(const ProfileComparison& comparison);

inline constexpr size_t kMaxCommentBytes = 60'000;  // GitHub takes 65536 characters

// One of "text", "markdown", "json", "junit".
std::string compare_report(const ProfileComparison& comparison, std::string_view format);

}  // namespace ft
