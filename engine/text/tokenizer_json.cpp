#include "engine/text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace ft {

bool JsonNode::is_null() const { return value.is_null(); }

bool JsonNode::has(const char* key) const {
  if (!value.is_object()) return false;
  const auto found = value.find(key);
  return found != value.end() && !found->is_null();
}

JsonNode JsonNode::at(const char* key) const {
  if (!value.is_object()) refuse("not an object", value.type_name(), "an object");
  const auto found = value.find(key);
  if (found == value.end()) JsonNode{value, path + "." + key}.refuse("a member is missing", "", "");
  return {*found, path + "." + key};
}

JsonNode JsonNode::at(size_t index) const { return {value[index], path + "[" + std::to_string(index) + "]"}; }

size_t JsonNode::size() const {
  if (!value.is_array()) refuse("not an array", value.type_name(), "an array");
  return value.size();
}

std::string JsonNode::text() const {
  if (!value.is_string()) refuse("not a string", value.type_name(), "a string");
  return value.get<std::string>();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  const std::string allowed = std::to_string(low) + " to " + std::to_string(high);
  if (!value.is_number_integer()) refuse("not an integer", value.type_name(), allowed);
  // An unsigned value above INT64_MAX must not wrap into the range.
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high)) {
    refuse("integer out of range", std::to_string(value.get<uint64_t>()), allowed);
  }
  const auto number = value.get<int64_t>();
  if (number < low || number > high) refuse("integer out of range", std::to_string(number), allowed);
  return number;
}

std::string JsonNode::text_or(const char* key, const char* fallback) const {
  return has(key) ? at(key).text() : std::string(fallback);
}

bool JsonNode::flag_or(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  const JsonNode node = at(key);
  if (!node.value.is_boolean()) node.refuse("not true or false", node.value.type_name(), "true, false");
  return node.value.get<bool>();
}

void JsonNode::refuse(std::string what, std::string found, std::string allowed) const {
  throw Error(ErrorKind::kFailed, {std::move(what), std::move(found), std::move(allowed), "", path});
}

}  // namespace ft
