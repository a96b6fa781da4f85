// The two ends of a decode step: inputs in and the first rows; logits, their largest, and the word that says it is over
// out. One launch each.
#pragma once

#include "kernels/base/largest_logit.h"
#include "kernels/cuda/moe.h"

namespace ft::cuda {

// Copies the step's inputs from pinned to device memory and embeds its tokens, whose ids it reads on the way. No later
// kernel of the step starts before it has ended, so that they may read the inputs before they wait (launch.cuh).
struct BeginStepArgs {
  const std::byte* pinned = nullptr;  // device address; 16-byte boundary
  std::byte* inputs = nullptr;        // 16-byte boundary
  int64_t bytes = 0;                  // rounded up to 16 on both sides
  EmbedArgs embed;                    // ids: in `pinned`
};
void begin_step(const BeginStepArgs& args, StreamHandle stream);

// Everything before it is visible to the host when box->finished changes to *step_number + 1, which it also stores in
// *step_number (device memory, 0 at first). Skips 0.
struct EndStepArgs {
  CpuMailbox* box = nullptr;
  uint32_t* step_number = nullptr;
  bool after_join = false;  // another stream was joined just before
  // (rows, vocab), copied to pinned memory; rows 0: none.
  const float* logits = nullptr;
  int64_t rows = 0, vocab = 0;
  float* pinned_logits = nullptr;
  LargestLogit* pinned_largest = nullptr;  // (rows)
  // Zero between launches.
  uint32_t* arrived = nullptr;            // [1]
  unsigned long long* largest = nullptr;  // (rows)
};
void end_step(const EndStepArgs& args, StreamHandle stream);

}  // namespace ft::cuda
