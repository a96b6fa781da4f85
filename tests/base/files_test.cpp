// Checked against: the file system itself, after every failure that can be brought about without a special disk.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/json.h"

namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ft-files-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string error_of_write(const std::string& path, std::string_view content) {
  try {
    ft::write_file_atomically(path, content);
  } catch (const ft::Error& error) {
    return error.what();
  }
  return "";
}

std::string error_of_read(const std::string& path, size_t max_bytes) {
  try {
    ft::read_text_file(path, max_bytes);
  } catch (const ft::Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a file is written whole, replaced whole, and nothing else is left in the folder") {
  const Folder folder;
  const std::string content = std::string("a\0b\n", 4) + std::string(1'000'000, 'x');
  ft::write_file_atomically(folder / "f.json", content);
  CHECK(ft::read_text_file(folder / "f.json") == content);
  ft::write_file_atomically(folder / "f.json", "");
  CHECK(ft::read_text_file(folder / "f.json").empty());
  CHECK(folder.entries() == 1);
}

TEST_CASE("the longest name a file system takes can be written") {
  const Folder folder;
  const std::string name(255, 'n');
  ft::write_file_atomically(folder / name, "x");
  CHECK(ft::read_text_file(folder / name) == "x");
  CHECK(contains(error_of_write(folder / std::string(256, 'n'), "x"), "cannot write"));
  CHECK(folder.entries() == 1);
}

TEST_CASE("a relative name without a folder is written where the program stands") {
  const Folder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  ft::write_file_atomically("plain.json", "x");
  fs::current_path(before);
  CHECK(ft::read_text_file(folder / "plain.json") == "x");
}

TEST_CASE("what cannot be written is one clear error and leaves nothing behind") {
  const Folder folder;
  CHECK(contains(error_of_write(folder / "none/f.json", "x"), "create the folder first"));
  fs::create_directory(folder / "d");
  CHECK(contains(error_of_write(folder / "d", "x"), "cannot write a file where a folder is"));
  CHECK(contains(error_of_write(folder / "d/", "x"), "cannot write a file where a folder is"));
  ft::write_file_atomically(folder / "file", "x");
  CHECK(contains(error_of_write(folder / "file/f.json", "x"), "Not a directory"));
  CHECK(contains(error_of_write("", "x"), "cannot write"));
  CHECK(contains(error_of_write("/dev/null", "x"), "not a regular file"));
  CHECK(fs::is_character_file("/dev/null"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(error_of_write(folder / "pipe", "x"), "not a regular file"));
  CHECK(folder.entries() == 3);
}

TEST_CASE("check_writable refuses what writing would refuse, and changes nothing") {
  const Folder folder;
  ft::write_file_atomically(folder / "file", "old");
  ft::check_writable(folder / "file");
  ft::check_writable(folder / "new");
  ft::check_output("--json", folder / "new");
  CHECK(ft::read_text_file(folder / "file") == "old");
  CHECK(folder.entries() == 1);
  for (const std::string& path : {folder / "none/f", std::string(folder.path()), std::string("/dev/null"),
                                  folder / "file/f", folder / std::string(256, 'x')}) {
    CAPTURE(path);
    CHECK_THROWS_AS(ft::check_writable(path), ft::Error);
    try {
      ft::check_output("--json", path);
      FAIL_CHECK("accepted");
    } catch (const ft::Error& error) {
      CHECK(error.kind() == ft::ErrorKind::kUsage);
      CHECK(contains(error.what(), "--json refused, "));
      CHECK(contains(error.what(), path));
    }
  }
  CHECK(folder.entries() == 1);
  CHECK_THROWS_WITH_AS(
      ft::check_output("--json", "-"),
      "--json refused, it takes a file: '-'; allowed: the name of a file, ./- for one that is called so", ft::Error);
}

TEST_CASE("symbolic links are followed, dangling ones refused") {
  const Folder folder;
  ft::write_file_atomically(folder / "real", "old");
  fs::create_symlink("real", folder / "link");
  ft::write_file_atomically(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(ft::read_text_file(folder / "real") == "new");
  fs::create_symlink("nowhere", folder / "dangling");
  CHECK(contains(error_of_write(folder / "dangling", "x"), "symbolic link"));
  CHECK(folder.entries() == 3);
}

TEST_CASE("a write that fails half-way keeps the old file and removes the temporary one") {
  const Folder folder;
  ft::write_file_atomically(folder / "f", "old");
  // A full disk stands in as a limit on file size: write() fails the same way, with EFBIG.
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 4096, before.rlim_max };
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = error_of_write(folder / "f", std::string(100'000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(contains(message, "File too large"));
  CHECK(contains(message, "another disk"));
  CHECK(ft::read_text_file(folder / "f") == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("a folder without permission is one clear error") {
  const Folder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  const pid_t child = ::fork();  // as nobody, because root may write anywhere
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    const std::string message = error_of_write(folder / "f", "x");
    ::_exit(contains(message, "Permission denied") && contains(message, "may write to") ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  fs::permissions(folder.path(), fs::perms::owner_all);
  CHECK(folder.entries() == 0);
}

TEST_CASE("reading refuses what is missing, not a file, or too long") {
  const Folder folder;
  CHECK(contains(error_of_read(folder / "none", 10), "No such file"));
  CHECK(contains(error_of_read(folder.path().string(), 10), "not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(error_of_read(folder / "pipe", 10), "not a regular file"));  // and does not wait for a writer
  ft::write_file_atomically(folder / "ten", "0123456789");
  CHECK(error_of_read(folder / "ten", 10).empty());
  CHECK(contains(error_of_read(folder / "ten", 9), "'10 bytes'; allowed: at most 9 bytes"));
}

TEST_CASE("files whose size the kernel does not tell are read to their end") {
  CHECK(ft::read_text_file("/proc/self/status").find("Name:") == 0);
  CHECK(contains(error_of_read("/proc/self/status", 100), "too long"));
}

TEST_CASE("read_json_file names the file") {
  const Folder folder;
  ft::write_file_atomically(folder / "good.json", R"({"a":[1]})");
  CHECK(ft::read_json_file(folder / "good.json")["a"][0] == 1);
  ft::write_file_atomically(folder / "bad.json", R"({"a":[1})");
  try {
    ft::read_json_file(folder / "bad.json");
    FAIL("not refused");
  } catch (const ft::Error& error) {
    CHECK(contains(error.what(), "bad.json"));
  }
}
