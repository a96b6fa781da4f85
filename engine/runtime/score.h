// Logits of given ids: for checks and perplexity. The engine's own steps; end-of-text and stops do not exist here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "kernels/base/json.h"

namespace ft {

struct ScoreInput {
  std::vector<int32_t> input_ids;
  int64_t greedy = 0;
  std::vector<std::vector<int32_t>> batch_with;  // decoded in the same batch
  std::vector<std::vector<int32_t>> warm_with;   // run before, to fill the cache
};
// Throws Error(kUsage) with the JSON path. Checks ids against the vocabulary and lengths against max_context.
ScoreInput parse_score_input(const Json& json, int64_t vocab, int64_t max_context, int max_batch);

struct ScoreOutput {
  std::vector<float> logits;         // (input_ids, vocab)
  std::vector<int64_t> greedy_ids;   // (greedy)
  std::vector<float> greedy_logits;  // (greedy, vocab), row i chose id i
};
ScoreOutput score(Engine& engine, const ScoreInput& input);

// `logits`, and when greedy > 0 `greedy_ids` and `greedy_logits`, as safetensors, atomically.
void write_score(const std::string& path, const ScoreOutput& output, int64_t vocab);

}  // namespace ft
