// An output must not replace what the same command reads.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ft {

struct InputPath {
  std::string name;  // as the user knows it: "BASE", "--model"
  std::string path;  // a file, or a folder whose files are read
};

// Throws Error(kUsage) naming both when `output` is there and is one of the inputs, by whatever name, link or path. Of
// a folder every file counts but those that this project's programs write beside a model: profiles and samples.
void check_no_input(std::string_view option, const std::string& output, std::span<const InputPath> inputs);

}  // namespace ft
