// Reading tokenizer.json: members with their JSON path, so that what is refused can be found in the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/json.h"

namespace ft {

// A place in the file. `path` reads "tokenizer.json: $.model.vocab".
struct JsonNode {
  const Json& value;
  std::string path;

  bool is_null() const;
  bool has(const char* key) const;                                   // present and not null
  JsonNode at(const char* key) const;                                // throws when absent
  JsonNode at(size_t index) const;                                   // REQUIRES: an array, index < size()
  size_t size() const;                                               // of an array; throws when it is none
  std::string text() const;                                          // throws when it is no string
  int64_t integer(int64_t low, int64_t high) const;                  // throws when it is none or outside
  std::string text_or(const char* key, const char* fallback) const;  // fallback when absent or null
  bool flag_or(const char* key, bool fallback) const;

  // `what` is not what this program can do.
  [[noreturn]] void refuse(std::string what, std::string found, std::string allowed) const;
};

}  // namespace ft
