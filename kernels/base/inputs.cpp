#include "kernels/base/inputs.h"

#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {
namespace {

constexpr size_t kMaxOwnBytes = 64u << 20;  // of a profile

bool is_same_file(const std::string& path, const struct stat& file) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && info.st_dev == file.st_dev && info.st_ino == file.st_ino;
}

// What profiles and samples of any version begin with; no file of a checkpoint has both.
bool is_ours(const std::string& path) try {
  const Json json = parse_json(read_text_file(path, kMaxOwnBytes), path);
  return json.is_object() && json.contains("version") && json.contains("identity");
} catch (const Error&) {
  return false;
}

// The file of the folder that is the same as `file`; empty: none.
std::string same_in_folder(const std::string& folder, const struct stat& file) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_same_file(entry.path().string(), file)) return entry.path().string();
  }
  return {};
}

}  // namespace

void check_no_input(std::string_view option, const std::string& output, std::span<const InputPath> inputs) {
  struct stat file {};
  if (::stat(output.c_str(), &file) != 0) return;
  for (const InputPath& input : inputs) {
    std::error_code error;
    std::string read = is_same_file(input.path, file) ? input.path : std::string();
    if (read.empty() && std::filesystem::is_directory(input.path, error)) {
      read = same_in_folder(input.path, file);
      if (!read.empty() && is_ours(output)) continue;
    }
    if (read.empty()) continue;
    throw Error(ErrorKind::kUsage,
                {.what = std::string(option) + " refused, it would overwrite " + input.name + " (" + read + ")",
                 .value = output,
                 .allowed = "a file that is not read"});
  }
}

}  // namespace ft
