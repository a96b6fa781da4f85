// What a candidate does with misses, in words: the `split` of decision tables and profiles. Pure.
#pragma once

#include <string>
#include <string_view>

#include "engine/engine_config.h"
#include "kernels/base/promotion_rate.h"

namespace ft {

// What of m misses is fetched: "fetch at most 2" is one of one, two of two and more; "fetch 1 more at 2, 5" is none of
// one, one of two to four, two of five and more. Tables of one size that differ read differently.
std::string describe_split(const SplitTable& table, PromotionRate promotions);
inline constexpr std::string_view kSplitByChanges = "fetch 1 more at ";

std::string describe_promotions(PromotionRate promotions);  // "promote 2", "promote 1 in 16 layers"
bool describes_promotions(std::string_view split);          // of a describe_split with any

}  // namespace ft
