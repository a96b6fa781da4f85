// Logits of given ids: for checks and perplexity. The engine's own steps; end-of-text and stops do not exist here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "kernels/base/json.h"

namespace ft {

inline constexpr int64_t kMaxScoreGreedy = 1'000'000;
inline constexpr size_t kMaxWarmSequences = 1024;
inline constexpr int64_t kWarmDecodeTokens = 16;  // greedy steps after a warm_with prompt: they fill the cache

struct ScoreInput {
  std::vector<int32_t> input_ids;  // at least 1; with the greedy ids but the last at most max_context
  int64_t greedy = 0;
  std::vector<std::vector<int32_t>> batch_with;  // decoded in the same batch: at most max_batch - 1, none empty
  std::vector<std::vector<int32_t>> warm_with;   // run before, to fill the cache
};
// Throws Error(kUsage) with the JSON path. Refuses unknown keys, checks ids against the vocabulary and lengths against
// max_context.
ScoreInput parse_score_input(const Json& json, int64_t vocab, int64_t max_context, int max_batch);

struct ScoreOutput {
  std::vector<float> logits;         // (input_ids, vocab)
  std::vector<int64_t> greedy_ids;   // (greedy)
  std::vector<float> greedy_logits;  // (greedy, vocab), row i chose id i
};
// Runs warm_with one after another (prompt, then a few greedy tokens), then the input and batch_with together: their
// prompts in shared prefill steps, then greedy decode steps of the whole batch, so that the expert cache is used as in
// serving. Sequences of batch_with continue greedily until max_context. REQUIRES no open sequence. `interrupted` is
// asked before every step; Error(kInterrupted) when it says so.
ScoreOutput score(Engine& engine, const ScoreInput& input, const std::function<bool()>& interrupted = {});

// `logits`, and when greedy > 0 `greedy_ids` and `greedy_logits`, as safetensors, atomically.
void write_score(const std::string& path, const ScoreOutput& output, int64_t vocab);

}  // namespace ft
