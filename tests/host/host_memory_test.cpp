// Checked against: the kernel's own account (/proc/self/statm, smaps) and files written by the test.
#include "kernels/host/host_memory.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/host/worker_pool.h"

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMib = int64_t{1} << 20;

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  statm >> size;
  return size * ::sysconf(_SC_PAGESIZE);
}

bool all_zero(const ft::HostBuffer& buffer) {
  const auto* words = buffer.as<uint64_t>();
  for (int64_t i = 0; i < buffer.bytes() / 8; ++i) {
    if (words[i] != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("buffers are zero, rounded up to pages, and large ones start on a huge page") {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const ft::HostBuffer empty(0);
  CHECK(empty.data() == nullptr);
  CHECK(empty.bytes() == 0);
  for (const int64_t bytes : {int64_t{1}, page - 1, page, page + 1, 2 * kMib - 1, 2 * kMib, 5 * kMib + 1}) {
    CAPTURE(bytes);
    ft::HostBuffer buffer(bytes);
    CHECK(buffer.bytes() == (bytes + page - 1) / page * page);
    CHECK(all_zero(buffer));
    std::memset(buffer.data(), 0xff, static_cast<size_t>(buffer.bytes()));
    if (bytes >= 2 * kMib) CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % (2 * kMib) == 0);
  }
}

TEST_CASE("with a pool the pages are there before the first use, without they are not") {
  ft::WorkerPoolOptions options;
  options.threads = 3;
  ft::WorkerPool pool(options);
  constexpr int64_t kBytes = 64 * kMib;
  const int64_t before = resident_bytes();
  ft::HostBuffer lazy(kBytes);
  CHECK(resident_bytes() - before < kBytes / 2);
  ft::HostBuffer touched(kBytes + 4096, &pool);
  CHECK(resident_bytes() - before >= kBytes);
  CHECK(all_zero(touched));
}

TEST_CASE("the owner unmaps; moves leave the source empty") {
  const int64_t before = mapped_bytes();
  {
    ft::HostBuffer a(256 * kMib);
    std::byte* const data = a.data();
    ft::HostBuffer b(std::move(a));
    CHECK(b.data() == data);
    CHECK(a.data() == nullptr);  // NOLINT(bugprone-use-after-move): what a move leaves is promised
    CHECK(a.bytes() == 0);
    ft::HostBuffer c(4096);
    c = std::move(b);
    CHECK(c.data() == data);
    CHECK(c.bytes() == 256 * kMib);
  }
  CHECK(mapped_bytes() - before < 64 * kMib);
}

TEST_CASE("a forked child has no large buffer: pages that a device reads would be copied for it") {
  ft::HostBuffer small(4096), large(2 * kMib);
  large.data()[0] = small.data()[0] = std::byte{1};
  const auto absent = [](ft::HostBuffer& buffer) {
    unsigned char page = 0;
    return ::mincore(buffer.data(), 4096, &page) != 0 && errno == ENOMEM;
  };
  CHECK(!absent(small));
  CHECK(!absent(large));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit((absent(small) ? 1 : 0) + (absent(large) ? 2 : 0));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(large.data()[0] == std::byte{1});
}

TEST_CASE("a buffer larger than any machine is one clear error") {
  for (const int64_t bytes : {int64_t{1} << 60, std::numeric_limits<int64_t>::max()}) {
    try {
      ft::HostBuffer buffer(bytes);
      FAIL("mapped more than any machine has");
    } catch (const ft::Error& error) {
      const std::string message = error.what();
      CHECK(message.find(std::to_string(bytes) + " bytes") != std::string::npos);
      CHECK(message.find("available now") != std::string::npos);
    }
  }
}

TEST_CASE("the page report is the kernel's: huge pages where they are granted") {
  ft::WorkerPoolOptions options;
  ft::WorkerPool pool(options);
  const ft::HostBuffer buffer(32 * kMib, &pool);
  const ft::PageReport report = ft::page_report(buffer);
  CHECK(report.bytes == buffer.bytes());
  CHECK(report.huge_bytes >= 0);
  CHECK(report.huge_bytes <= report.bytes);
  const bool known =
      report.huge_page_mode == "always" || report.huge_page_mode == "madvise" || report.huge_page_mode == "never";
  if (!known) CHECK(report.huge_page_mode == "unknown");
  if (report.huge_page_mode == "never") CHECK(report.huge_bytes == 0);
  MESSAGE("2 MiB pages: " << report.huge_bytes * 100 / report.bytes << " %, mode " << report.huge_page_mode);
  const ft::HostBuffer untouched(32 * kMib);
  CHECK(ft::page_report(untouched).huge_bytes == 0);
  CHECK(ft::page_report(ft::HostBuffer()).bytes == 0);
}

TEST_CASE("a mapped file is its bytes; what cannot be mapped is named") {
  std::string folder = (fs::temp_directory_path() / "ft-map-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string content = "first line\n" + std::string(10'000, 'z');
  std::ofstream(folder + "/file") << content;
  std::ofstream(folder + "/empty").flush();
  REQUIRE(::mkfifo((folder + "/pipe").c_str(), 0600) == 0);
  {
    ft::MappedFile file(folder + "/file");
    const ft::MappedFile moved(std::move(file));
    CHECK(file.bytes().empty());  // NOLINT(bugprone-use-after-move): what a move leaves is promised
    REQUIRE(moved.bytes().size() == content.size());
    CHECK(std::memcmp(moved.bytes().data(), content.data(), content.size()) == 0);
    CHECK(ft::MappedFile(folder + "/empty").bytes().empty());
  }
  for (const std::string& path : {folder + "/none", folder, folder + "/pipe", folder + "/file/below"}) {
    try {
      ft::MappedFile file(path);
      FAIL("mapped " << path);
    } catch (const ft::Error& error) {
      CHECK(std::string(error.what()).find(path) != std::string::npos);
    }
  }
  fs::remove_all(folder);
}
