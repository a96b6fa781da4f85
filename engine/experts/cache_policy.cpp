#include "engine/experts/cache_policy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/use_priority.h"

namespace ft {

std::string_view cache_policy_name(CachePolicy policy) { return policy == CachePolicy::kLru ? "lru" : "lrfu"; }

std::optional<CachePolicy> cache_policy_by_name(std::string_view name) {
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLrfu}) {
    if (cache_policy_name(policy) == name) return policy;
  }
  return std::nullopt;
}

std::string_view look_ahead_name(LookAhead look_ahead) { return look_ahead == LookAhead::kOff ? "off" : "router"; }

std::optional<LookAhead> look_ahead_by_name(std::string_view name) {
  for (const LookAhead look_ahead : {LookAhead::kOff, LookAhead::kRouter}) {
    if (look_ahead_name(look_ahead) == name) return look_ahead;
  }
  return std::nullopt;
}

SlotPolicy make_slot_policy(CachePolicy policy, int layers, int64_t slots, int max_distinct) {
  constexpr double kMinMeanLifeSteps = 8, kTurnovers = 2, kLog2 = 0.6931471805599453;
  SlotPolicy settings{0, max_distinct};
  if (policy == CachePolicy::kLru) return settings;
  const double uses_per_step = std::max(1.0, static_cast<double>(layers) * max_distinct);
  const double mean_life = std::max(kMinMeanLifeSteps, kTurnovers * static_cast<double>(slots) / uses_per_step);
  const double half_life_plans = mean_life * kLog2 * std::max(1, layers);
  const auto log2 = static_cast<int>(std::lround(std::log2(half_life_plans))) + kUnitsPerPlanLog2;
  settings.half_life_log2 = std::clamp(log2, kMinHalfLifeLog2, kMaxHalfLifeLog2);
  return settings;
}

}  // namespace ft
