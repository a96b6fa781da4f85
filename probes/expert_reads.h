// What expert kernels read from memory, by the memory controllers' own count: whether they read every weight once.
#pragma once

#include "kernels/host/dram_counter.h"
#include "probes/expert_set.h"

namespace ft {

struct ExpertReads {
  double expected_bytes = 0;  // of the weights of the experts that were computed
  double counted_bytes = 0;   // what other programs read meanwhile is taken off, by what they read just before
  bool cold = false;          // the experts do not fit the cache, so that all of it must come from memory
};
// Computes experts of a made-up set (NVFP4, 2048 x 768) for about `seconds`. Both 0: the counter failed. Throws Error.
ExpertReads count_expert_reads(ProbeContext& context, DramCounter& counter, double seconds);

}  // namespace ft
