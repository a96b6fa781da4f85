#include "kernels/host/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/host/topology.h"
#include "kernels/host/worker_pool.h"

namespace ft {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t page_bytes() { return ::sysconf(_SC_PAGESIZE); }

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Writes one byte a page. Threads take whole huge pages, so that each is placed and zeroed by one thread.
void touch(std::byte* data, int64_t bytes, WorkerPool* pool) {
  const int64_t step = page_bytes();
  const int64_t huge_pages = round_up(bytes, kHugePageBytes) / kHugePageBytes;
  const auto part = [&](int worker, int workers) {
    const Range range = split_range(huge_pages, worker, workers);
    const int64_t end = std::min(range.end * kHugePageBytes, bytes);
    for (int64_t i = range.begin * kHugePageBytes; i < end; i += step) {
      *static_cast<volatile std::byte*>(data + i) = std::byte{0};
    }
  };
  pool->run(part);
}

[[noreturn]] void throw_no_memory(int64_t bytes, int code) {
  throw Error(ErrorKind::kFailed,
              {.what = std::string("cannot reserve host memory (") + std::strerror(code) + ")",
               .value = std::to_string(bytes) + " bytes",
               .allowed = "about " + std::to_string(detect_memory_budget().available_bytes) + " bytes available now",
               .action = "free memory, or use a smaller model, context or batch"});
}

}  // namespace

// Aligned to huge pages: the mapping is made one huge page longer and its ends are given back, because the kernel
// places a mapping on any page and an unaligned one loses its first and last huge page.
HostBuffer::HostBuffer(int64_t bytes, WorkerPool* pool) {
  FT_CHECK(bytes >= 0);
  if (bytes == 0) return;
  if (bytes > std::numeric_limits<int64_t>::max() / 2) throw_no_memory(bytes, ENOMEM);
  const int64_t rounded = round_up(bytes, page_bytes());
  const int64_t slack = rounded >= kHugePageBytes ? kHugePageBytes : 0;
  const auto mapped_bytes = static_cast<size_t>(rounded + slack);
  void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw_no_memory(bytes, errno);
  auto* begin = static_cast<std::byte*>(mapped);
  if (slack != 0) {
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapped));
    const int64_t head = round_up(address, kHugePageBytes) - address;
    if (head != 0) ::munmap(begin, static_cast<size_t>(head));
    begin += head;
    if (slack != head) ::munmap(begin + rounded, static_cast<size_t>(slack - head));
    ::madvise(begin, static_cast<size_t>(rounded), MADV_HUGEPAGE);  // advice: page_report() says what came of it
    // A forked child has none of it. Pages pinned for a device are copied when a process forks, not shared: that is
    // what 0.75 s for every GB of banks, between loading and the first probe, are taken for (an H200, likwid in a
    // child).
    ::madvise(begin, static_cast<size_t>(rounded), MADV_DONTFORK);
  }
  data_ = begin;
  bytes_ = rounded;
  if (pool != nullptr) touch(data_, bytes_, pool);
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::fail(std::string what, int code) const {
  const std::string reason = code != 0 ? std::string(" (") + std::strerror(code) + ")" : "";
  throw Error(ErrorKind::kFailed, {.what = std::move(what) + reason,
                                   .action = code == EMFILE ? "raise the limit of open files (ulimit -n)" : "",
                                   .path = path_});
}

// Members that own something are set one by one, and whatever throws in between leaves them to be released: a throwing
// constructor runs no destructor of its own class, so the work is done on a complete object.
MappedFile::MappedFile(const std::string& path, bool keep_open) {
  MappedFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) file.fail("cannot open", errno);
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) file.fail("cannot open", errno);
  if (!S_ISREG(info.st_mode)) file.fail("cannot map: not a regular file", 0);
  file.modified_ns_ = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (info.st_size > 0) {
    const auto size = static_cast<size_t>(info.st_size);
    void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd_, 0);
    if (mapped == MAP_FAILED) file.fail("cannot map", errno);
    file.data_ = static_cast<const std::byte*>(mapped);
    file.size_ = size;
  }
  if (!keep_open) ::close(std::exchange(file.fd_, -1));
  *this = std::move(file);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

void MappedFile::read(size_t offset, std::span<std::byte> to) const {
  FT_CHECK(offset <= size_ && to.size() <= size_ - offset);
  if (fd_ < 0 && !to.empty()) {
    std::memcpy(to.data(), data_ + offset, to.size());
    return;
  }
  while (!to.empty()) {
    const ssize_t got = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read", errno);
    if (got == 0) fail("the file became shorter while it was read", 0);
    offset += static_cast<size_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
}

void MappedFile::will_read(std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(part.data()) % page;  // madvise wants the start of a page
  ::madvise(const_cast<std::byte*>(part.data()) - before, before + part.size(), MADV_WILLNEED);
}

// From /proc/self/smaps: the kernel may have merged the mapping with a neighbour or split it, so the entries that
// overlap the buffer are added and each counts at most its overlap.
PageReport page_report(const HostBuffer& buffer) {
  PageReport report;
  report.bytes = buffer.bytes();
  std::ifstream mode_file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(mode_file, modes);
  const size_t open = modes.find('[');
  const size_t close = modes.find(']');
  report.huge_page_mode =
      open != std::string::npos && close != std::string::npos ? modes.substr(open + 1, close - open - 1) : "unknown";
  const auto begin = reinterpret_cast<uintptr_t>(buffer.data());
  const uintptr_t end = begin + static_cast<uintptr_t>(buffer.bytes());
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  int64_t overlap = 0;
  while (std::getline(smaps, line)) {
    uintptr_t from = 0;
    uintptr_t to = 0;
    long long kib = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &from, &to) == 2) {
      overlap = static_cast<int64_t>(std::min(to, end)) - static_cast<int64_t>(std::max(from, begin));
    } else if (overlap > 0 && std::sscanf(line.c_str(), "AnonHugePages: %lld kB", &kib) == 1) {
      report.huge_bytes += std::min<int64_t>(kib * 1024, overlap);
    }
  }
  return report;
}

}  // namespace ft
