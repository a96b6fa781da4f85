// One forward step as plain data: which tokens of which sequences, and which logits are wanted.
#pragma once

#include <cstdint>
#include <span>

namespace ft {

// Consecutive tokens of one sequence. Decode: one token. Prefill: up to prefill_chunk tokens.
struct TokenRun {
  int sequence = -1;     // slot of the KV cache, 0 .. max_batch - 1
  int64_t position = 0;  // of the first token; must equal the sequence's length so far
  std::span<const int32_t> ids;
  bool logits_for_all = false;  // one logits row per token; otherwise `last_logits` says if the last token gets one
  bool last_logits = true;
  // Tokens of a prompt have prefill's arithmetic, however few they are; several tokens always have. A step is all
  // prompts, or all decode.
  bool prompt = false;
};

struct StepBatch {
  std::span<const TokenRun> runs;
  int64_t tokens = 0;       // sum of ids
  int64_t logits_rows = 0;  // rows asked for, in order of runs and tokens
  bool decode = false;      // every run has one token and is no prompt: the expert cache is used and updated
};

}  // namespace ft
