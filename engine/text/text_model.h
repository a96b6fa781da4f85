// The text side of a checkpoint folder, as far as it is there: tokenizer, chat template, generation defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/sampler.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace ft {

struct TextModel {
  std::unique_ptr<Tokenizer> tokenizer;         // null: scored and tuned only
  std::unique_ptr<ChatTemplate> chat_template;  // null: completions only
  std::vector<int32_t> eos_ids;                 // generation_config.json, else config.json
  SamplingOptions defaults;                     // generation_config.json; do_sample false: temperature 0
  std::string bos_token, eos_token;             // as templates see them
  std::string missing;                          // why text entry points cannot work; empty when they can
};
TextModel load_text_model(const std::string& model_directory);

// For synthetic weights, in place of a tokenizer that is not there: make_byte_tokenizer's, and no id ends an answer.
// False, and nothing has changed: there is one, or the vocabulary is smaller than kByteTokens.
bool use_byte_tokenizer(TextModel& text, int64_t vocab);

}  // namespace ft
