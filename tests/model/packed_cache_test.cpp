// Checked against: the same model loaded from its checkpoint without a cache, byte by byte, after everything that can
// happen to a packed file: damage at every section, cuts, other models, changed checkpoints, killed writers, writers at
// the same time, places that cannot be written.
#include "engine/model/packed_cache.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/model/packed_file.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "tests/model/support.h"

namespace {

namespace fs = std::filesystem;
using namespace ft;
using namespace ft::test;

constexpr const char* kReading = "reading packed weights";
constexpr const char* kPacking = "packing weights";
constexpr const char* kWriting = "writing the packed cache";

// Everything a load fills, as one hash.
std::string content_hash(const ModelWeights& weights) {
  Hasher hasher;
  hasher.add(weights.bank.bytes());
  for (const PackedMatrix& matrix : weights.matrices) {
    hasher.add({matrix.data, static_cast<size_t>(matrix.layout.bytes)});
    hasher.add(std::as_bytes(std::span(&matrix.global, 1)));
  }
  for (const auto& vector : weights.vectors) hasher.add(std::as_bytes(vector));
  for (const EmbeddingTable& table : weights.tables) {
    hasher.add(std::as_bytes(std::span(table.rows, static_cast<size_t>(table.count * table.width))));
  }
  return hasher.hex();
}

struct Loaded {
  std::string hash, notices, warnings;
  std::set<std::string> stages;
};

Loaded load_cached(const std::string& model, const std::string& cache, const ProgressFn& also = {}) {
  WorkerPool pool(pool_of(2));
  WeightSource source = real_weights(model);
  source.packed_cache = cache;
  Loaded loaded;
  LoadOptions options;
  options.progress = [&](const LoadProgress& progress) {
    loaded.stages.emplace(progress.stage);
    if (also) also(progress);
  };
  options.notice = [&](std::string_view text, bool warning) {
    (warning ? loaded.warnings : loaded.notices) += std::string(text) + "\n";
  };
  loaded.hash = content_hash(*load_weights(*family_of(model), source, pool, options));
  return loaded;
}

bool was_read(const Loaded& loaded) {
  return loaded.stages == std::set<std::string>{kReading} && mentions(loaded.notices, {"packed cache: read"}) &&
         loaded.warnings.empty();
}
bool was_written(const Loaded& loaded) {
  return loaded.stages.contains(kPacking) && loaded.stages.contains(kWriting) &&
         mentions(loaded.notices, {"packed cache: wrote"});
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string only_file(const std::string& folder) {
  const std::vector<std::string> names = files_in(folder);
  REQUIRE(names.size() == 1);
  REQUIRE(names.front().ends_with(".ftpack"));
  return names.front();
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
void put(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  REQUIRE(file.good());
}

std::string plain_hash(const std::string& model) { return content_hash(*load(model)); }

// Runs f in a process of its own; its wait status.
template <class F>
int in_child(F&& f) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int code = 99;
    try {
      code = f();
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

// The same answer from the checkpoint whatever is wrong with the file, a warning, and a good file afterwards.
void check_replaced(const std::string& model, const std::string& cache, const std::string& expected,
                    std::initializer_list<std::string_view> why) {
  const Loaded loaded = load_cached(model, cache);
  CHECK(loaded.hash == expected);
  CHECK_MESSAGE(mentions(loaded.warnings, {"packed cache not used", ".ftpack"}), loaded.warnings);
  CHECK_MESSAGE(mentions(loaded.warnings, why), loaded.warnings);
  CHECK(was_written(loaded));
  CHECK(was_read(load_cached(model, cache)));
}

}  // namespace

TEST_CASE("what was packed once is read back, byte for byte, for every golden case and the bundled model") {
  std::vector<std::string> folders = all_golden_folders();
  folders.push_back(bundled_model_folder());
  for (const std::string& model : folders) {
    CAPTURE(model);
    const TempFolder cache;
    const std::string expected = plain_hash(model);
    const Loaded first = load_cached(model, cache.path());
    CHECK(first.hash == expected);
    CHECK(was_written(first));
    CHECK(first.warnings.empty());
    const Loaded second = load_cached(model, cache.path());
    CHECK(second.hash == expected);
    CHECK(was_read(second));
    only_file(cache.path());
  }
}

TEST_CASE("models share a folder") {
  const TempFolder cache;
  const std::string a = golden_folder("qwen3_moe-nvfp4_ct"), b = golden_folder("qwen3_moe-nvfp4_modelopt");
  CHECK(was_written(load_cached(a, cache.path())));
  CHECK(was_written(load_cached(b, cache.path())));
  CHECK(files_in(cache.path()).size() == 2);
  CHECK(was_read(load_cached(a, cache.path())));
  CHECK(was_read(load_cached(b, cache.path())));
}

TEST_CASE("a byte changed anywhere in the data is noticed, the checkpoint is loaded and the file replaced") {
  const TempFolder cache;
  const std::string model = golden_folder("qwen3_moe-fp8_block");
  const std::string expected = plain_hash(model);
  load_cached(model, cache.path());
  const std::string path = only_file(cache.path()), good = content_of(path);
  const PackedHeader header = parse_packed_header(std::as_bytes(std::span(good.data(), good.size())), path);
  const auto sections = packed_sections(header.region_bytes);
  REQUIRE(sections.size() >= 4);  // of four regions, the first longer than a section
  for (const PackedSection& section : sections) {
    for (const int64_t at : {int64_t{0}, section.bytes / 2, section.bytes - 1}) {
      std::string bad = good;
      char& byte = bad[static_cast<size_t>(header.bytes + section.in_data + at)];
      byte = static_cast<char>(byte ^ 4);
      put(path, bad);
      const Loaded loaded = load_cached(model, cache.path());
      CHECK(loaded.hash == expected);
      CHECK_MESSAGE(mentions(loaded.warnings, {"damaged", std::to_string(header.bytes + section.in_data)}),
                    loaded.warnings);
      CHECK(content_of(only_file(cache.path())) == good);
    }
  }
  for (const size_t bytes : {size_t{0}, size_t{100}, static_cast<size_t>(header.bytes), good.size() - 1}) {
    put(path, good.substr(0, bytes));
    check_replaced(model, cache.path(), expected, {"not a usable file of packed weights"});
  }
  for (const PackedSection& section : sections) {
    put(path, good.substr(0, static_cast<size_t>(header.bytes + section.in_data)));
    check_replaced(model, cache.path(), expected, {"not a usable file"});
  }
  put(path, good + "x");
  check_replaced(model, cache.path(), expected, {"as its header says"});
  std::string other_version = good;
  other_version[8] = 2;
  put(path, other_version);
  check_replaced(model, cache.path(), expected, {"version 2", "version 1"});
}

TEST_CASE("another model's file under this model's name is refused") {
  const TempFolder cache, other;
  const std::string model = golden_folder("qwen3_moe-nvfp4_ct");
  load_cached(model, cache.path());
  load_cached(golden_folder("qwen3_moe-nvfp4_modelopt"), other.path());
  put(only_file(cache.path()), content_of(only_file(other.path())));
  check_replaced(model, cache.path(), plain_hash(model), {"another model or build"});
}

TEST_CASE("a checkpoint that was written again is packed again, also when the samples of its data are the same") {
  const TempFolder folder, cache;
  EditableModel model = read_model(bundled_model_folder());
  model.write(folder);
  load_cached(folder.path(), cache.path());
  const std::string before = only_file(cache.path());
  // Where no sample is: the samples are both ends of 64 KiB and four places of 4 KiB of 15 MB.
  const std::string file = folder.path() + "/model.safetensors";
  std::string bytes = content_of(file);
  const auto checkpoint = Checkpoint::open(folder.path());
  const std::string sampled = checkpoint->data_sample_hash();
  size_t at = bytes.size() / 2;
  for (;; at += 8192) {
    REQUIRE(at < bytes.size());
    const char old = bytes[at];
    bytes[at] = static_cast<char>(old ^ 1);
    put(file, bytes);
    if (Checkpoint::open(folder.path())->data_sample_hash() == sampled) break;
    bytes[at] = old;
  }
  check_replaced(folder.path(), cache.path(), plain_hash(folder.path()), {"changed after the packed file was made"});
  CHECK(only_file(cache.path()) == before);  // the same name: no file is left over
}

TEST_CASE("a process that is killed while it writes leaves nothing that is read, and the next one writes") {
  const TempFolder cache;
  const std::string model = golden_folder("qwen3_moe-fp8_block");
  const int status = in_child([&] {
    load_cached(model, cache.path(), [](const LoadProgress& progress) {
      if (progress.stage == kWriting && progress.done_bytes > 0) ::raise(SIGKILL);
    });
    return 0;
  });
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(files_in(cache.path()).size() == 1);
  REQUIRE(files_in(cache.path()).front().ends_with(".tmp"));
  const Loaded next = load_cached(model, cache.path());
  CHECK(next.hash == plain_hash(model));
  CHECK(was_written(next));
  CHECK(next.warnings.empty());
  only_file(cache.path());
  CHECK(was_read(load_cached(model, cache.path())));
}

TEST_CASE("an interrupted write leaves no file") {
  const TempFolder cache;
  const std::string message = error_of([&] {
    load_cached(golden_folder("qwen3_moe-fp8_block"), cache.path(), [](const LoadProgress& progress) {
      if (progress.stage == kWriting) throw Error(ErrorKind::kInterrupted, {.what = "stopped"});
    });
  });
  CHECK(mentions(message, {"stopped"}));
  CHECK(files_in(cache.path()).empty());
}

TEST_CASE("processes that load at the same time all get the right weights and leave one good file") {
  constexpr int kProcesses = 4, kRounds = 5;
  const std::string model = golden_folder("qwen3_moe-fp8_block");
  const std::string expected = plain_hash(model);
  for (int round = 0; round < kRounds; ++round) {
    const TempFolder cache;
    int gate[2];
    REQUIRE(::pipe(gate) == 0);
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        int code = 9;
        try {
          char go = 0;
          ::close(gate[1]);
          static_cast<void>(::read(gate[0], &go, 1));  // until the parent closes its end
          const Loaded loaded = load_cached(model, cache.path());
          code = loaded.hash == expected && loaded.warnings.empty() ? 0 : 1;
        } catch (...) {
        }
        ::_exit(code);
      }
      children.push_back(child);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    for (const pid_t child : children) {
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK(status == 0);
    }
    only_file(cache.path());
    const Loaded after = load_cached(model, cache.path());
    CHECK(was_read(after));
    CHECK(after.hash == expected);
  }
}

TEST_CASE("while another process writes, this one serves from the checkpoint and writes nothing") {
  const TempFolder cache, scratch;
  const std::string model = golden_folder("qwen3_moe.b");
  load_cached(model, scratch.path());
  const std::string name = fs::path(only_file(scratch.path())).filename().string();
  const std::string temporary = cache.path() + "/" + name + ".tmp";
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT, 0666);
  REQUIRE(fd >= 0);
  REQUIRE(::flock(fd, LOCK_EX) == 0);
  const Loaded loaded = load_cached(model, cache.path());
  CHECK(loaded.hash == plain_hash(model));
  CHECK(mentions(loaded.notices, {"another process is writing"}));
  CHECK(loaded.warnings.empty());
  CHECK(files_in(cache.path()) == std::vector<std::string>{temporary});
  ::close(fd);
  CHECK(was_written(load_cached(model, cache.path())));
}

TEST_CASE("a folder in which no file can be made costs a warning") {
  const std::string model = golden_folder("qwen3_moe.b");
  const Loaded loaded = load_cached(model, "/proc");  // not even root makes files there
  CHECK(loaded.hash == plain_hash(model));
  CHECK_MESSAGE(mentions(loaded.warnings, {"packed cache not written", "cannot write", "/proc/"}), loaded.warnings);
}

TEST_CASE("a read-only folder: without a file a warning, with one it is read") {
  const TempFolder folder, cache;
  read_model(golden_folder("qwen3_moe.b")).write(folder);
  for (const TempFolder* open : {&folder, &cache}) REQUIRE(::chmod(open->path().c_str(), 0755) == 0);
  const std::string expected = plain_hash(folder.path());
  const auto load_read_only = [&](const auto& good) {
    REQUIRE(::chmod(cache.path().c_str(), 0555) == 0);
    const int status = in_child([&] {
      constexpr uid_t kNobody = 65534;
      if (::geteuid() == 0 && ::setuid(kNobody) != 0) return 2;  // root writes everywhere
      const Loaded loaded = load_cached(folder.path(), cache.path());
      return loaded.hash == expected && good(loaded) ? 0 : 1;
    });
    CHECK(status == 0);
    REQUIRE(::chmod(cache.path().c_str(), 0755) == 0);
  };
  load_read_only([](const Loaded& l) {
    return mentions(l.warnings, {"packed cache not written", "Permission denied"});
  });
  load_cached(folder.path(), cache.path());
  load_read_only(was_read);
}

TEST_CASE("a full disk and a limit of file size cost a warning, and no part of a file stays") {
  const TempFolder cache;
  const std::string model = golden_folder("qwen3_moe-fp8_block");
  const std::string expected = plain_hash(model);
  const int limited = in_child([&] {
    const rlimit small{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return 2;
    const Loaded loaded = load_cached(model, cache.path());
    const bool warned = mentions(loaded.warnings, {"packed cache not written", "File too large", "it needs"});
    return loaded.hash == expected && warned && files_in(cache.path()).empty() ? 0 : 1;
  });
  CHECK(limited == 0);
  if (::mount("tmpfs", cache.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    MESSAGE("skipped: a full disk, since no small file system can be mounted here");
    return;
  }
  const Loaded loaded = load_cached(model, cache.path());
  CHECK(loaded.hash == expected);
  CHECK_MESSAGE(mentions(loaded.warnings, {"packed cache not written", "No space left", "it needs"}), loaded.warnings);
  CHECK(files_in(cache.path()).empty());
  REQUIRE(::umount(cache.path().c_str()) == 0);
}

TEST_CASE("a value that cannot work is refused before anything is loaded") {
  const TempFolder folder;
  folder.write("file", "x");
  WeightSource source = real_weights("model");
  check_packed_cache(source, false);  // none asked for
  const auto refusal = [&](const std::string& cache, bool dry_run) {
    source.packed_cache = cache;
    return error_of([&] { check_packed_cache(source, dry_run); });
  };
  for (const bool dry_run : {true, false}) {
    CHECK(mentions(refusal(folder.path() + "/file", dry_run), {"--packed-cache", "not a folder", "/file"}));
    CHECK(refusal(folder.path(), dry_run) == "no error");
  }
  CHECK(mentions(refusal("/proc/new", false), {"--packed-cache", "cannot be made", "/proc/new"}));
  CHECK(refusal(folder.path() + "/a/b", true) == "no error");
  CHECK_FALSE(fs::exists(folder.path() + "/a"));
  CHECK(refusal(folder.path() + "/a/b", false) == "no error");
  CHECK(fs::is_directory(folder.path() + "/a/b"));
  source.synthetic = true;
  CHECK(mentions(refusal(folder.path(), true), {"only with a checkpoint", "leave --packed-cache out"}));
}

TEST_CASE("a dry run says what would happen") {
  const TempFolder folder;
  const std::string model = golden_folder("qwen3_moe.b"), cache = folder.path() + "/new";
  const auto text = [&] {
    WeightSource source = real_weights(model);
    source.packed_cache = cache;
    return packed_cache_text(*family_of(model), source);
  };
  CHECK(packed_cache_text(*family_of(model), real_weights(model)).empty());
  CHECK(mentions(text(), {"would be written to a new folder", "B)", cache}));
  fs::create_directory(cache);
  CHECK(mentions(text(), {"would be written after loading"}));
  load_cached(model, cache);
  CHECK(mentions(text(), {"is there and would be read"}));
  put(only_file(cache), "x");
  CHECK(mentions(text(), {"not a usable file", "would be written after loading"}));
}
