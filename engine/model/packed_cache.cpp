#include "engine/model/packed_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/model/packed_file.h"
#include "engine/model/packing_fingerprint.h"
#include "engine/model/run_items.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/json.h"
#include "kernels/base/size_text.h"
#include "kernels/host/host_memory.h"

namespace ft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOption = "--packed-cache";
constexpr const char* kModified = "modified_ns";
constexpr JsonLimits kDescriptionLimits{kMaxPackedDescriptionBytes, 8, size_t{1} << 20, size_t{1} << 16};

// The description without the files' times: what the name is a hash of.
Json content_of(const WeightPlan& plan) {
  Json json = {{"version", kPackedFileVersion},
               {"packing", packing_fingerprint()},
               {"index_hash", plan.checkpoint->index_hash()},
               {"data_sample_hash", plan.checkpoint->data_sample_hash()}};
  const auto layout_json = [](const PackedLayout& layout) {
    return Json::array({format_info(layout.format).name, layout.rows, layout.cols, layout.bytes});
  };
  Json matrices = Json::array();
  for (size_t i = 0; i < plan.layouts.size(); ++i) {
    // The name of the tensor too: two of one shape could change places.
    matrices.push_back({plan.matrices[i].name, layout_json(plan.layouts[i])});
  }
  json["matrices"] = std::move(matrices);
  Json vectors = Json::array();
  for (const VectorSpec& spec : plan.list.vectors) {
    vectors.push_back({spec.names.front(), spec.size, spec.form.transpose, spec.form.add, spec.form.multiply});
  }
  json["vectors"] = std::move(vectors);
  Json experts = Json::array();
  for (size_t layer = 0; layer < plan.expert_layouts.size(); ++layer) {
    const ExpertLayout& layout = plan.expert_layouts[layer];
    const ExpertLayerSpec& spec = plan.list.expert_layers[layer];
    experts.push_back({spec.prefixes.front(), plan.experts[layer].size(), layout_json(layout.gate),
                       layout_json(layout.down), layout.bytes, layout.bias_offset, spec.interleaved, spec.input_major});
  }
  json["experts"] = std::move(experts);
  return json;
}

std::vector<int64_t> regions_of(const WeightPlan& plan) {
  int64_t matrices = 0, vectors = 0;
  for (const PackedLayout& layout : plan.layouts) matrices += layout.bytes;
  for (const VectorSpec& spec : plan.list.vectors) vectors += spec.size * int64_t{sizeof(float)};
  const auto globals = static_cast<int64_t>(plan.layouts.size() * sizeof(float));
  return {plan.formats.expert_bytes_total, matrices, globals, vectors};
}

// Owns a descriptor; closing it releases the lock.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

[[noreturn]] void throw_errno(const std::string& what, int code, const std::string& path) {
  throw Error(ErrorKind::kFailed, {.what = what + " (" + std::strerror(code) + ")", .path = path});
}

void write_at(int fd, std::span<const std::byte> bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("cannot write", errno, path);
    offset += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

bool same_file(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

// The temporary file, locked: -1 when another process holds it. A file that was renamed or removed between opening and
// locking is not the one by that name any more, and then the name is opened again.
int open_locked(const std::string& path) {
  constexpr int kMaxTries = 16;
  for (int i = 0; i < kMaxTries; ++i) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file.get() < 0) throw_errno("cannot write", errno, path);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return -1;
      throw_errno("cannot lock", errno, path);
    }
    if (same_file(file.get(), path)) return ::dup(file.get());
  }
  return -1;  // as busy as a held lock
}

// Reserves the space, so that a full disk is found before minutes of writing. Some file systems cannot reserve.
void reserve(int fd, int64_t bytes, const std::string& path) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    throw_errno("cannot write", EFBIG, path);  // writing past it would end this process with SIGXFSZ
  }
  if (::ftruncate(fd, 0) != 0) throw_errno("cannot write", errno, path);
  if (::fallocate(fd, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) {
    throw_errno("cannot write", errno, path);
  }
}

uint64_t inode_of(const std::string& path) {  // 0: there is no such file
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

void sync_folder(const std::string& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) ::fsync(fd.get());  // without it a crash may lose the name, which costs packing once more
}

}  // namespace

namespace {

// Whether create_directories could make it, as far as can be told without trying; if not, why.
bool can_be_made(const fs::path& folder, std::error_code& code) {
  fs::path parent = fs::absolute(folder).lexically_normal();
  std::error_code ignored;
  while (parent.has_relative_path() && !fs::exists(parent, ignored)) parent = parent.parent_path();
  if (!fs::is_directory(parent, ignored)) {
    code = std::make_error_code(std::errc::not_a_directory);
  } else if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    code = std::error_code(errno, std::generic_category());
  }
  return !code;
}

}  // namespace

void check_packed_cache(const WeightSource& source, bool dry_run) {
  const std::string& folder = source.packed_cache;
  if (folder.empty()) return;
  if (source.synthetic) {
    throw Error(ErrorKind::kUsage,
                {.what = "a packed cache has an effect only with a checkpoint: synthetic weights are "
                         "made faster than they are read",
                 .action = "leave --packed-cache out",
                 .path = kOption});
  }
  std::error_code code;
  if (fs::is_directory(folder, code)) return;
  const bool there = fs::exists(fs::symlink_status(folder, code));
  code.clear();
  if (!there && !dry_run && (fs::create_directories(folder, code) || !code)) return;
  if (!there && dry_run && can_be_made(folder, code)) return;
  throw Error(ErrorKind::kUsage, {.what = there ? "option refused, it is not a folder"
                                                : "option refused, the folder cannot be made (" + code.message() + ")",
                                  .value = folder,
                                  .allowed = "a folder, or a place where one can be made",
                                  .path = kOption});
}

PackedCache::PackedCache(std::string folder, const WeightPlan& plan)
    : folder_(std::move(folder)), region_bytes_(regions_of(plan)) {
  FT_CHECK(plan.checkpoint != nullptr);
  Json content = content_of(plan);
  path_ = folder_ + "/" + hash_hex(content.dump()) + ".ftpack";
  Json times = Json::object();
  for (const Checkpoint::File& file : plan.checkpoint->files()) times[file.name] = file.modified_ns;
  content[kModified] = std::move(times);
  description_ = content.dump();
  header_bytes_ = packed_header_bytes(description_.size(), region_bytes_);
  for (const int64_t bytes : region_bytes_) data_bytes_ += bytes;
}

void PackedCache::refuse_other_content(const std::string& description) const {
  if (description == description_) return;
  Json found = parse_json(description, path_ + " (description)", kDescriptionLimits);
  Json wanted = Json::parse(description_);
  const auto refuse = [&](std::string what) {
    throw Error(ErrorKind::kFailed, {.what = std::move(what), .path = path_});
  };
  if (!found.is_object()) refuse("the packed file describes nothing");
  found.erase(kModified);
  wanted.erase(kModified);
  if (found != wanted) refuse("the packed file is of another model or build");
  refuse("the checkpoint's files were changed after the packed file was made");
}

bool PackedCache::read(const Regions& regions, WorkerPool& pool, const LoadOptions& options) {
  refused_inode_ = inode_of(path_);
  if (refused_inode_ == 0) return false;
  try {
    const MappedFile file(path_);
    const PackedHeader header = parse_packed_header(file.bytes(), path_);
    refuse_other_content(header.description);
    if (header.region_bytes != region_bytes_) {
      throw Error(ErrorKind::kFailed, {.what = "the packed file has regions of other sizes", .path = path_});
    }
    const std::vector<PackedSection> sections = packed_sections(region_bytes_);
    std::atomic<int64_t> done{0};
    const auto report = [&] {
      if (options.progress) options.progress({"reading packed weights", done.load(), data_bytes_});
    };
    report();
    run_items(
        pool, static_cast<int64_t>(sections.size()),
        [&](int, int64_t i) {
          const PackedSection& section = sections[static_cast<size_t>(i)];
          const auto bytes =
              regions[section.region].subspan(static_cast<size_t>(section.offset), static_cast<size_t>(section.bytes));
          file.read(static_cast<size_t>(header.bytes + section.in_data), bytes);
          if (hash64(bytes) != header.sums[static_cast<size_t>(i)]) {
            throw Error(ErrorKind::kFailed,
                        {.what = "the packed file is damaged",
                         .value = "other bytes than were written at " + std::to_string(header.bytes + section.in_data),
                         .path = path_});
          }
          done += section.bytes;
        },
        report);
    report();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) throw;
    if (options.notice) {
      options.notice(std::string("packed cache not used, the checkpoint is packed again: ") + error.what(), true);
    }
    return false;
  }
  if (options.notice) options.notice("packed cache: read " + path_ + " (" + size_text(file_bytes()) + ")", false);
  return true;
}

void PackedCache::write(const Regions& regions, WorkerPool& pool, const LoadOptions& options) const {
  const auto notice = [&](const std::string& text, bool warning) {
    if (options.notice) options.notice(text, warning);
  };
  const std::string temporary = path_ + ".tmp";
  Descriptor file(-1);
  try {
    file.reset(open_locked(temporary));
    if (file.get() < 0) return notice("packed cache: another process is writing " + path_, false);
    if (const uint64_t inode = inode_of(path_); inode != 0 && inode != refused_inode_) {
      ::unlink(temporary.c_str());
      return notice("packed cache: another process wrote " + path_, false);
    }
    write_locked(file.get(), temporary, regions, pool, options);
    notice("packed cache: wrote " + path_ + " (" + size_text(file_bytes()) + ")", false);
  } catch (const Error& error) {
    // The lock is still held: whoever opened this name meanwhile finds that it is gone and makes another.
    if (file.get() >= 0) ::unlink(temporary.c_str());
    if (error.kind() == ErrorKind::kInterrupted) throw;
    notice("packed cache not written (it needs " + size_text(file_bytes()) +
               "), the next start packs again: " + error.what(),
           true);
  } catch (...) {
    if (file.get() >= 0) ::unlink(temporary.c_str());
    throw;
  }
}

// Data first, header last, synced before it gets its name.
void PackedCache::write_locked(int fd, const std::string& temporary, const Regions& regions, WorkerPool& pool,
                               const LoadOptions& options) const {
  reserve(fd, file_bytes(), temporary);
  const std::vector<PackedSection> sections = packed_sections(region_bytes_);
  PackedHeader header{description_, region_bytes_, std::vector<uint64_t>(sections.size()), header_bytes_};
  std::atomic<int64_t> done{0};
  const auto report = [&] {
    if (options.progress) options.progress({"writing the packed cache", done.load(), data_bytes_});
  };
  report();
  run_items(
      pool, static_cast<int64_t>(sections.size()),
      [&](int, int64_t i) {
        const PackedSection& section = sections[static_cast<size_t>(i)];
        const auto bytes =
            regions[section.region].subspan(static_cast<size_t>(section.offset), static_cast<size_t>(section.bytes));
        header.sums[static_cast<size_t>(i)] = hash64(bytes);
        write_at(fd, bytes, header_bytes_ + section.in_data, temporary);
        done += section.bytes;
      },
      report);
  report();  // the last place where being told to stop leaves no file
  const std::string head = write_packed_header(header);
  write_at(fd, std::as_bytes(std::span(head.data(), head.size())), 0, temporary);
  if (::fsync(fd) != 0) throw_errno("cannot write", errno, temporary);
  if (::rename(temporary.c_str(), path_.c_str()) != 0) throw_errno("cannot rename", errno, temporary);
  sync_folder(folder_);
}

std::string PackedCache::state_text() const {
  const std::string what = path_ + " (" + size_text(file_bytes()) + ")";
  std::error_code code;
  std::string reason;
  if (fs::exists(path_, code)) {
    try {
      const MappedFile file(path_);
      refuse_other_content(parse_packed_header(file.bytes(), path_).description);
      return what + " is there and would be read";
    } catch (const Error& error) {
      reason = std::string(error.what()) + "; ";
    }
  }
  if (!fs::is_directory(folder_, code)) return reason + what + " would be written to a new folder";
  if (::access(folder_.c_str(), W_OK) != 0) return reason + what + " cannot be written: " + std::strerror(errno);
  struct statvfs disk {};
  if (::statvfs(folder_.c_str(), &disk) == 0) {
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (free < file_bytes()) return reason + what + " cannot be written: " + size_text(free) + " are free there";
  }
  return reason + what + " would be written after loading";
}

std::string packed_cache_text(const Family& family, const WeightSource& source) {
  if (source.packed_cache.empty()) return {};
  const WeightPlan plan = plan_weights(family, source);
  return "packed cache: " + PackedCache(source.packed_cache, plan).state_text() + "\n";
}

}  // namespace ft
