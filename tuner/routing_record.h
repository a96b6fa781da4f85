// Misses and hit rate against slots: the routing trace replayed through caches of a grid of sizes, and the best that
// any cache could have done. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiles/profile.h"
#include "tuner/search.h"

namespace ft {

inline constexpr int kRoutingSlotCounts = 10;  // of the grid
// Expert uses that all replays of the record take together; a use costs about 0.15 us in a replay and in the
// optimum (one core at 3.7 GHz). A longer trace is cut to its first tokens.
inline constexpr int64_t kMaxRoutingUses = 8'000'000;

// Slot counts from `low` to `high`, both among them, with equal ratios between neighbours; ascending, no duplicates,
// at most kRoutingSlotCounts. REQUIRES 1 <= low <= high.
std::vector<int64_t> routing_slot_counts(int64_t low, int64_t high);

// Every miss is fetched, nothing is prefetched: what the policy does with so many slots. Slots from the least that work
// to all that fit the memory plan, per batch. nullopt when not even the least fit.
std::optional<RoutingRecord> routing_record(const SearchInput& input);

}  // namespace ft
