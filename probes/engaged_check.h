// Whether an engine did what it was asked: a sample of another way to serve says nothing of the candidate.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine_config.h"
#include "engine/runtime/counters.h"

namespace ft {

// What differs, each with both values: "threads: 4 asked, 1 engaged; split: all fetched asked, 12 on the CPU engaged".
// Empty: nothing. `row_tiles`: of an expert; on a GPU a pool with more threads than that cannot all have work.
// Compared: strategy, slots, threads, mechanism, cache policy, look-ahead, and that no arm worked which the strategy
// does not have. Pure.
std::string engaged_difference(const EngineConfig& asked, const EngagedRecord& engaged, const EngineCounters& counters,
                               int64_t row_tiles);

// The remark of a series whose values were dropped for it begins with this.
inline constexpr std::string_view kRefused = "refused: ";

}  // namespace ft
