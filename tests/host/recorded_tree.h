// A made-up root folder with files of /proc and /sys, removed at the end.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

class RecordedTree {
 public:
  RecordedTree() {
    std::string name = (std::filesystem::temp_directory_path() / "ft-tree-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~RecordedTree() { std::filesystem::remove_all(root_); }
  RecordedTree(const RecordedTree&) = delete;
  RecordedTree& operator=(const RecordedTree&) = delete;
  RecordedTree& add(const std::string& path, const std::string& content) {
    const std::filesystem::path at = root_ / path.substr(1);
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << content;
    return *this;
  }
  RecordedTree& link(const std::string& path, const std::string& target) {
    const std::filesystem::path at = root_ / path.substr(1);
    std::filesystem::create_directories(at.parent_path());
    std::filesystem::create_symlink(target, at);
    return *this;
  }
  std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};
