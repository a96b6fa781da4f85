#include "tuner/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr std::string_view kOwner = "ft-tune, process ";
constexpr size_t kMaxOwnerBytes = 64;

std::string content_of(int fd) {
  std::string text(kMaxOwnerBytes, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text.substr(0, text.find('\n'));
}

// Whoever held it may have removed it between our opening and our locking.
bool is_still(int fd, const std::string& path) {
  struct stat ours {
  }, there{};
  return ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

}  // namespace

std::string lock_path(const std::string& output) { return output + ".tuning"; }

OutputLock::OutputLock(const std::string& output) : path_(lock_path(output)) {
  for (;;) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd_ < 0) {
      throw Error(ErrorKind::kNotWritten, {.what = "cannot write (" + std::string(std::strerror(errno)) + ")",
                                           .action = "name an --output in a folder that this user may write to",
                                           .path = path_});
    }
    const bool held = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const std::string owner = content_of(fd_);
    const bool foreign = !owner.empty() && !owner.starts_with(kOwner);
    if (!held && !foreign && !is_still(fd_, path_)) {
      ::close(fd_);
      continue;
    }
    if (held || foreign) ::close(fd_);
    if (foreign) {
      throw Error(ErrorKind::kUsage, {.what = "--output refused, a file that is not ft-tune's has the name of its lock",
                                      .action = "move that file, or give another --output",
                                      .path = path_});
    }
    if (held) {
      throw Error(ErrorKind::kUsage, {.what = "--output refused, a tuning that writes there is running (" +
                                              (owner.empty() ? "its process is not known" : owner) + ")",
                                      .action = "wait until it has ended, or give another --output",
                                      .path = output});
    }
    break;
  }
  const std::string text = std::string(kOwner) + std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, text.data(), text.size(), 0) < 0)
    return;  // a disk that is full: no name
}

OutputLock::~OutputLock() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace ft
