// Shared by the text tests: where test data lies, and reading it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/json.h"

namespace ft_test {

inline std::string folder_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}
inline std::string data_path(const std::string& name) { return folder_of("FT_TEST_DATA") + "/" + name; }
// Empty when the folder with more data is not there.
inline std::string shared_path(const std::string& name) {
  const std::string path = folder_of("FT_SHARED") + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}
inline ft::OrderedJson read_ordered(const std::string& path) { return ft::OrderedJson::parse(ft::read_text_file(path)); }

}  // namespace ft_test
