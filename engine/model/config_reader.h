// Reads config.json key by key: every number has a range, and an Error names the key, its value and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/json.h"

namespace ft {

class ConfigReader {
 public:
  // `config` outlives the reader. `prefix` goes before keys in messages ("rope_scaling.").
  // Throws Error when `config` is not an object.
  explicit ConfigReader(const Json& config, std::string prefix = {});

  // A key that is absent or null counts as not given.
  bool has(std::string_view key) const;

  // Without a default the key is required.
  int64_t integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
  double number(std::string_view key, double low, double high, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::initializer_list<std::string_view> allowed,
                   std::optional<std::string_view> fallback = {}) const;
  // Empty when not given.
  std::vector<int64_t> integers(std::string_view key, int64_t low, int64_t high, size_t max_size) const;
  std::vector<std::string> texts(std::string_view key, size_t max_size) const;
  // An object; null when not given.
  const Json* object(std::string_view key) const;

  // A setting under two names: the one that is given; both must agree.
  int64_t integer_aliased(std::string_view key, std::string_view alias, int64_t low, int64_t high,
                          std::optional<int64_t> fallback = {}) const;

  // Throws the Error of a refused key.
  [[noreturn]] void refuse(std::string_view key, std::string allowed, std::string action = {}) const;

 private:
  const Json* find(std::string_view key) const;

  const Json& config_;
  std::string prefix_;
};

}  // namespace ft
