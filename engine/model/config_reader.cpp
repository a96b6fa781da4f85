#include "engine/model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace ft {
namespace {

// A value as a message shows it: not the whole of a long list.
std::string shown(const Json* value) {
  if (value == nullptr) return "absent";
  return value->is_structured() ? std::string(value->type_name()) : value->dump();
}

// As a person would write it: 2, 1e+12, 0.1.
std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// Fits int64_t, or nothing.
std::optional<int64_t> as_integer(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return value.get<int64_t>();
}

}  // namespace

ConfigReader::ConfigReader(const Json& config, std::string prefix) : config_(config), prefix_(std::move(prefix)) {
  if (!config.is_object()) {
    throw Error(ErrorKind::kFailed, {.what = "config.json refused",
                                     .value = config.type_name(),
                                     .allowed = "an object",
                                     .path = prefix_.substr(0, prefix_.size() - (prefix_.empty() ? 0 : 1))});
  }
}

void ConfigReader::refuse(std::string_view key, std::string allowed, std::string action) const {
  throw Error(ErrorKind::kFailed, {.what = "config.json refused",
                                   .value = shown(find(key)),
                                   .allowed = std::move(allowed),
                                   .action = std::move(action),
                                   .path = prefix_ + std::string(key)});
}

const Json* ConfigReader::find(std::string_view key) const {
  const auto it = config_.find(std::string(key));
  return it == config_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

int64_t ConfigReader::integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback) const {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  const auto number = value == nullptr ? std::nullopt : as_integer(*value);
  if (!number || *number < low || *number > high) {
    refuse(key, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return *number;
}

int64_t ConfigReader::integer_aliased(std::string_view key, std::string_view alias, int64_t low, int64_t high,
                                      std::optional<int64_t> fallback) const {
  const int64_t value = has(key) ? integer(key, low, high) : integer(alias, low, high, fallback);
  if (has(key) && has(alias) && integer(alias, low, high) != value) {
    refuse(alias, std::to_string(value) + ", the value of " + std::string(key));
  }
  return value;
}

double ConfigReader::number(std::string_view key, double low, double high, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  const double number = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= low && number <= high)) refuse(key, "a number from " + shown(low) + " to " + shown(high));
  return number;
}

bool ConfigReader::boolean(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::initializer_list<std::string_view> allowed,
                               std::optional<std::string_view> fallback) const {
  const Json* value = find(key);
  if (value == nullptr && fallback) return std::string(*fallback);
  if (value != nullptr && value->is_string()) {
    const auto& given = value->get_ref<const std::string&>();
    if (std::find(allowed.begin(), allowed.end(), given) != allowed.end()) return given;
  }
  std::string list;
  for (const std::string_view word : allowed) {
    if (!list.empty()) list += ", ";
    list += word;
  }
  refuse(key, list);
}

std::vector<int64_t> ConfigReader::integers(std::string_view key, int64_t low, int64_t high, size_t max_size) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const std::string allowed = "a list of at most " + std::to_string(max_size) + " whole numbers from " +
                              std::to_string(low) + " to " + std::to_string(high);
  if (!value->is_array() || value->size() > max_size) refuse(key, allowed);
  std::vector<int64_t> numbers;
  for (const Json& item : *value) {
    const auto number = as_integer(item);
    if (!number || *number < low || *number > high) refuse(key, allowed);
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> ConfigReader::texts(std::string_view key, size_t max_size) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const std::string allowed = "a list of at most " + std::to_string(max_size) + " texts";
  if (!value->is_array() || value->size() > max_size) refuse(key, allowed);
  std::vector<std::string> words;
  for (const Json& item : *value) {
    if (!item.is_string()) refuse(key, allowed);
    words.push_back(item.get<std::string>());
  }
  return words;
}

const Json* ConfigReader::object(std::string_view key) const {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, "an object");
  return value;
}

}  // namespace ft
