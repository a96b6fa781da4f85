#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "profiles/schema_validation.h"

namespace ft {
namespace {

std::string shown(const Json& value) {
  constexpr size_t kMaxShownItems = 8;  // an array of a million samples is not dumped for an error message
  if (value.is_structured() && value.size() > kMaxShownItems) {
    return std::string(value.is_array() ? "array of " : "object of ") + std::to_string(value.size());
  }
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return text.empty() ? "(empty)" : text;
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "integer, 1 to 1024", "one of host, cuda", "text of 1 to 64 characters", "array of 2 to 4097 items".
std::string allowed_text(const Json& schema) {
  if (const auto choices = schema.find("enum"); choices != schema.end()) {
    std::string text = "one of ";
    for (const Json& choice : *choices) text += (text.size() > 7 ? ", " : "") + shown(choice);
    return text;
  }
  const std::string type = schema.at("type");
  const auto bound = [&](const char* key) { return schema.contains(key) ? schema.at(key).dump() : std::string(); };
  std::string low, high, text = type, unit;
  if (type == "string") low = bound("minLength"), high = bound("maxLength"), text = "text", unit = " characters";
  if (type == "array") low = bound("minItems"), high = bound("maxItems"), unit = " items";
  if (type == "integer" || type == "number") {
    low = bound("minimum"), high = bound("maximum"), text += ",";
    if (schema.contains("exclusiveMinimum")) low = "more than " + bound("exclusiveMinimum");
  }
  if (low.empty() && high.empty()) return type == "string" ? "text" : type;
  if (low.empty()) return text + " at most " + high + unit;
  if (high.empty()) return text + " at least " + low + unit;
  return text + (unit.empty() ? " " : " of ") + low + " to " + high + unit;
}

size_t code_points(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  FT_CHECK(type == "number");
  return value.is_number();
}

bool within(const Json& schema, const char* low, const char* high, double value) {
  return !(schema.contains(low) && value < schema.at(low).get<double>()) &&
         !(schema.contains(high) && value > schema.at(high).get<double>());
}

bool value_allowed(const Json& value, const Json& schema) {
  if (schema.contains("type") && !has_type(value, schema.at("type"))) return false;
  if (const auto choices = schema.find("enum"); choices != schema.end()) {
    return std::find(choices->begin(), choices->end(), value) != choices->end();
  }
  if (value.is_string()) {
    return within(schema, "minLength", "maxLength",
                  static_cast<double>(code_points(value.get_ref<const std::string&>())));
  }
  if (value.is_array()) return within(schema, "minItems", "maxItems", static_cast<double>(value.size()));
  if (!value.is_number()) return true;
  const auto number = value.get<double>();
  if (schema.contains("exclusiveMinimum") && !(number > schema.at("exclusiveMinimum").get<double>())) return false;
  return within(schema, "minimum", "maximum", number);
}

std::string keys_text(const Json& properties) {
  std::string text = "keys ";
  for (const auto& [key, schema] : properties.items()) text += (text.size() > 5 ? ", " : "") + key;
  return text;
}

std::optional<Violation> violation_at(const Json& value, const Json& schema, const std::string& path);

std::optional<Violation> object_violation(const Json& object, const Json& schema, const std::string& path) {
  const Json& properties = schema.at("properties");
  if (const auto required = schema.find("required"); required != schema.end()) {
    for (const std::string key : *required) {
      if (object.contains(key)) continue;
      return Violation{"a required key is missing", path + "." + key, "", allowed_text(properties.at(key))};
    }
  }
  const Json& additional = schema.at("additionalProperties");
  for (const auto& [key, value] : object.items()) {
    const std::string below = path + "." + key;
    const auto known = properties.find(key);
    if (known == properties.end() && additional.is_boolean()) {
      return Violation{"unknown key", below, shown(value), keys_text(properties)};
    }
    if (auto found = violation_at(value, known == properties.end() ? additional : *known, below)) return found;
  }
  return std::nullopt;
}

// Text is told from what it spells: "2" is no integer.
std::string shown_with_type(const Json& value, const Json& schema) {
  const bool other_type = schema.contains("type") && !has_type(value, schema.at("type"));
  return value.is_string() && other_type ? "the text \"" + shown(value) + "\"" : shown(value);
}

std::optional<Violation> violation_at(const Json& value, const Json& schema, const std::string& path) {
  if (!value_allowed(value, schema)) {
    return Violation{"value refused", path, shown_with_type(value, schema), allowed_text(schema)};
  }
  if (value.is_object()) return object_violation(value, schema, path);
  if (value.is_array()) {
    const Json& items = schema.at("items");
    for (size_t i = 0; i < value.size(); ++i) {
      if (auto found = violation_at(value[i], items, path + "[" + std::to_string(i) + "]")) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Violation> find_violation(const Json& value, const Json& schema) {
  return violation_at(value, schema, "$");
}

Json without_unknown_keys(const Json& json, const Json& schema, const std::string& kept) {
  if (json.is_array() && schema.contains("items")) {
    Json list = Json::array();
    for (const Json& item : json) list.push_back(without_unknown_keys(item, schema.at("items"), ""));
    return list;
  }
  if (!json.is_object() || !schema.contains("properties") || !schema.at("additionalProperties").is_boolean())
    return json;
  Json object = Json::object();
  for (const auto& [key, value] : json.items()) {
    const auto known = schema.at("properties").find(key);
    if (known == schema.at("properties").end()) continue;
    object[key] = key == kept ? value : without_unknown_keys(value, *known, "");
  }
  return object;
}

}  // namespace ft
