// Reading and atomic writing of text files (kernels/base/json.h).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

// Removes the temporary file unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

[[noreturn]] void throw_errno(std::string what, const std::string& path, int code) {
  throw Error(ErrorKind::kFailed, {.what = std::move(what) + " (" + std::strerror(code) + ")", .path = path});
}

const char* write_advice(int code) {
  switch (code) {
    case ENOENT:
      return "create the folder first, or name a file in one that exists";
    case EACCES:
    case EPERM:
    case EROFS:
      return "name a file in a folder that this user may write to";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free space, or name a file on another disk";
    default:
      return "";
  }
}

[[noreturn]] void throw_not_written(std::string what, const std::string& path, std::string action) {
  throw Error(ErrorKind::kNotWritten, {.what = std::move(what), .action = std::move(action), .path = path});
}
[[noreturn]] void throw_not_written(const std::string& path, int code) {
  throw_not_written("cannot write (" + std::string(std::strerror(code)) + ")", path, write_advice(code));
}

// The file that a rename must replace: a symbolic link stays a link.
std::string resolve_target(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return path;
    throw_not_written(path, errno);
  }
  std::string target = path;
  if (S_ISLNK(info.st_mode)) {
    const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
    if (resolved == nullptr || ::stat(resolved.get(), &info) != 0) {
      throw_not_written("cannot write through a symbolic link (" + std::string(std::strerror(errno)) + ")", path,
                        "remove the link or create what it points to");
    }
    target = resolved.get();
  }
  if (!S_ISREG(info.st_mode)) {
    throw_not_written(
        S_ISDIR(info.st_mode) ? "cannot write a file where a folder is" : "cannot replace what is not a regular file",
        path, "name a file");
  }
  return target;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "./";
  return path.substr(0, slash + 1);
}

// Created with O_EXCL under a name that does not depend on the target's (which may be as long as the file system
// allows), and with 0666 so that the user's umask decides.
std::pair<int, std::string> create_temporary(const std::string& folder, const std::string& path) {
  constexpr int kMaxTries = 100;
  for (int i = 0; i < kMaxTries; ++i) {
    std::string name = folder + ".ft-" + std::to_string(::getpid()) + "-" + std::to_string(i) + ".tmp";
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0) return {fd, std::move(name)};
    if (errno != EEXIST) throw_not_written(path, errno);
  }
  throw_not_written("cannot write: no free temporary name in " + folder, path, "remove the files .ft-*.tmp there");
}

void write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_not_written(path, errno);
    }
    content.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string read_text_file(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw_errno("cannot read", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw_errno("cannot read", path, errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorKind::kFailed, {.what = "cannot read: not a regular file", .path = path});
  }
  const auto refuse_long = [&](size_t bytes) {
    throw Error(ErrorKind::kFailed, {.what = "cannot read: file too long",
                                     .value = std::to_string(bytes) + " bytes",
                                     .allowed = "at most " + std::to_string(max_bytes) + " bytes",
                                     .path = path});
  };
  const auto size = static_cast<size_t>(info.st_size);
  if (size > max_bytes) refuse_long(size);
  // One byte more than stat says, so that a file of that size ends in one read and a growing one is noticed.
  std::string text(size + 1, '\0');
  size_t used = 0;
  for (;;) {
    if (used == text.size()) text.resize(text.size() + (64u << 10));
    const ssize_t got = ::read(file.get(), text.data() + used, text.size() - used);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_errno("cannot read", path, errno);
    }
    if (got == 0) break;
    used += static_cast<size_t>(got);
    if (used > max_bytes) refuse_long(used);
  }
  text.resize(used);
  return text;
}

void check_writable(const std::string& path) {
  const std::string target = resolve_target(path);
  auto [fd, temporary_path] = create_temporary(folder_of(target), path);
  const FileDescriptor file(fd);
  const TemporaryFile temporary(std::move(temporary_path));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string target = resolve_target(path);
  const std::string folder = folder_of(target);
  auto [fd, temporary_path] = create_temporary(folder, path);
  FileDescriptor file(fd);
  TemporaryFile temporary(temporary_path);
  write_all(file.get(), content, path);
  if (::fsync(file.get()) != 0) throw_not_written(path, errno);
  if (!file.close()) throw_not_written(path, errno);
  if (::rename(temporary_path.c_str(), target.c_str()) != 0) {
    throw_not_written(path, errno);
  }
  temporary.keep();
  // The file is in place; the sync of the folder makes the new name survive a power cut. File systems without it
  // (EINVAL) have nothing more to offer.
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0 && ::fsync(directory.get()) != 0 && errno != EINVAL && errno != EROFS) {
    throw_errno("written, but cannot sync its folder", path, errno);
  }
}

void check_output(std::string_view option, const std::string& path) {
  if (path == "-") {  // elsewhere the standard output: here it would be a file that is hard to remove
    throw Error(ErrorKind::kUsage, {.what = std::string(option) + " refused, it takes a file",
                                    .value = path,
                                    .allowed = "the name of a file, ./- for one that is called so"});
  }
  try {
    check_writable(path);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.what = std::string(option) + " refused, " + parts.what;
    throw Error(ErrorKind::kUsage, std::move(parts));
  }
}

}  // namespace ft
