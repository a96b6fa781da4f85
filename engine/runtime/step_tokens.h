// The tokens of a step as flat arrays, in order of runs: what the backends loop over. Filled once per step.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/step.h"

namespace ft {

class StepTokens {
 public:
  explicit StepTokens(int64_t max_tokens);

  // REQUIRES batch.tokens <= max_tokens. Allocates nothing.
  void assign(const StepBatch& batch);

  int64_t count() const { return static_cast<int64_t>(ids.size()); }

  // Tokens [first, first + count) follow each other in one sequence.
  struct Run {
    int sequence = 0;
    int64_t first = 0, count = 0;
  };

  std::vector<int32_t> ids;
  std::vector<int> sequence;
  std::vector<int64_t> position;
  std::vector<int64_t> logits_tokens;  // indexes of the tokens that get a logits row, ascending
  std::vector<Run> runs;
  bool decode = false;  // every run has one token and is no prompt
};

}  // namespace ft
