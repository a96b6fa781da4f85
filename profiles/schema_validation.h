// Checking JSON against the built-in schemas. Internal to profiles/; programs use validate_schema of profile.h.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/json.h"

namespace ft {

// The first way in which a value breaks a schema, as a reader wants it told.
struct Violation {
  std::string what;     // "a required key is missing", "unknown key", "value refused"
  std::string path;     // "$.serve.threads", "$.candidates[2]"
  std::string value;    // compact JSON; empty for a missing key
  std::string allowed;  // "integer, 1 to 1024"
};

// Covers the keywords that our schemas use: type, properties, required, additionalProperties, items, enum, minimum,
// maximum, exclusiveMinimum, minLength, maxLength, minItems, maxItems. A test compares it with valijson.
std::optional<Violation> find_violation(const Json& value, const Json& schema);

const Json& built_in_schema(const std::string& name);  // FT_CHECKs that it exists

// `json` without the object keys that the schema does not know, except below the key `kept` of the root.
Json without_unknown_keys(const Json& json, const Json& schema, const std::string& kept);

}  // namespace ft
