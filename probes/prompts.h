// Texts whose routing the probes use: short, of several domains, and the recorder that sends them through the real
// router.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/text/tokenizer.h"

namespace ft {

struct Prompt {
  std::string_view domain;  // "prose", "code", "chat", "maths", "table"
  std::string_view text;
};
inline constexpr std::string_view kPromptsVersion = "prompts v1";
std::span<const Prompt> prompts();

// Token ids of every prompt; with tokenizer null, seeded ids below `vocab` in as many sequences.
std::vector<std::vector<int32_t>> prompt_ids(const Tokenizer* tokenizer, int64_t vocab, uint64_t seed);
// All of them in one, to feed a decode run.
std::vector<int32_t> joined(const std::vector<std::vector<int32_t>>& sequences);

struct RecordOptions {
  int64_t max_tokens = 512;  // over all sequences, shared out evenly
  double seconds = 0;        // likewise; 0: no bound
  int64_t min_tokens = 0;    // recorded even when the seconds are over, likewise shared: a replay needs some
  std::function<bool()> interrupted;
};
struct RecordedTrace {
  RoutingTrace trace;
  std::vector<int64_t> text_at;  // of every token of the trace, its index in joined(sequences)
};
// Decodes the sequences one after the other, each id given rather than sampled, and records which experts the router
// chose. Throws Error(kFailed) when nothing could be recorded.
RecordedTrace record_trace(Engine& engine, const std::vector<std::vector<int32_t>>& sequences,
                           const RecordOptions& options);

}  // namespace ft
