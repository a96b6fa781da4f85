// The "post_processor" of tokenizer.json, as far as it adds ids: null, ByteLevel (adds none), TemplateProcessing, and
// Sequence of these.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/tokenizer_json.h"

namespace ft {

struct AddedIds {
  std::vector<int32_t> before, after;  // the ids of a text
};
AddedIds parse_post_processor(const JsonNode& node);

}  // namespace ft
