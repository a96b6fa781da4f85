// The fewest misses that any cache of so many slots could have had on a trace, knowing the future: what a policy is
// compared with.
//
// Belady's MIN (1966) over one pool for all layers: the victim is the expert whose next use is farthest away. It takes
// experts one by one in the order of layers, may give away a slot as soon as its expert was used, and knows no pins:
// so it is a bound from below for every policy that fetches what it misses, prefetches not counted.
#pragma once

#include <cstdint>
#include <vector>

#include "tuner/replay.h"

namespace ft {

struct OptimumResult {
  int64_t experts = 0;  // distinct experts of counted steps
  int64_t misses = 0;
};

// As replay() counts: sequences decoded together until the shortest ends, the first discard_steps not counted (but
// cached for; misses are the fewest over all steps, and those of the counted ones are given). REQUIRES slots >= 1.
OptimumResult offline_optimum(const std::vector<TraceSequence>& sequences, int64_t slots, int64_t discard_steps);

}  // namespace ft
