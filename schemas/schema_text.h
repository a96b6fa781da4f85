// The JSON Schemas (schemas/*.schema.json), built into the program: nothing is looked up on disk at run time.
#pragma once

#include <span>
#include <string_view>

namespace ft {

struct SchemaText {
  std::string_view name;  // "profile", "samples", "machine", "recorded_decision", "recorded_inputs", "routing_trace"
  std::string_view text;  // JSON Schema, draft 7
};
std::span<const SchemaText> schema_texts();

}  // namespace ft
