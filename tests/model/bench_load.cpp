// GB/s of loading: checkpoint to banks from a cold and from a warm page cache, writing the packed file, packed file to
// banks cold and warm, synthetic weights into new memory and into memory that was used before. Run by hand:
//
//   bench_load FOLDER [GB [threads [formats]]]     bench_load /tmp/bench 12 16 bf16,nvfp4,fp8_block
//
// makes a checkpoint of about so many GB under FOLDER for each format and removes it. Bytes are those of the
// checkpoint's tensors; `peak` is the largest anonymous memory while loading, over the banks. A cold cache needs files
// that are synced, and an operating system that follows POSIX_FADV_DONTNEED.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "engine/model/weights.h"
#include "kernels/base/clock.h"
#include "kernels/host/topology.h"
#include "kernels/host/worker_pool.h"
#include "tests/model/made_model.h"

namespace {

namespace fs = std::filesystem;
using namespace ft;

// Anonymous resident bytes of this process now: what is neither page cache nor shared.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) return std::atoll(line.c_str() + 8) * 1024;
  }
  return 0;
}

void drop_from_cache(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

class Bench {
 public:
  Bench(test::MadeModel model, std::string folder, double gb, int threads, const std::vector<int>& cpus)
      : model_(model), folder_(std::move(folder)), pool_({.threads = threads, .cpus = cpus}) {
    const double layer_bytes = static_cast<double>(model_.experts) * 3 * static_cast<double>(model_.hidden) *
                               static_cast<double>(model_.intermediate) * bytes_per_weight();
    model_.layers = std::max(1, static_cast<int>(gb * 1e9 / layer_bytes));
  }

  void run() {
    fs::create_directories(folder_ + "/model");
    fs::create_directories(folder_ + "/packed");
    const double begin = now_seconds();
    bytes_ = test::write_made_model(model_, folder_ + "/model", pool_.threads());
    const double seconds = now_seconds() - begin;
    print("write the checkpoint", seconds, -1);
    source_.model_path = folder_ + "/model";
    time("checkpoint, warm", {});
    time("checkpoint, warm again", {});
    drop_from_cache(folder_ + "/model");
    time("checkpoint, cold", {});
    source_.packed_cache = folder_ + "/packed";
    time("checkpoint and writing packed", {});
    time("packed, warm", {});
    time("packed, warm again", {});
    drop_from_cache(folder_ + "/packed");
    time("packed, cold", {});
    const auto arena = std::make_shared<HostBuffer>(bank_bytes_);
    source_.packed_cache.clear();
    source_.synthetic = true;
    time("synthetic, new memory", {});
    time("synthetic, memory given", {.bank_memory = arena});
    time("synthetic, memory used before", {.bank_memory = arena});
    fs::remove_all(folder_ + "/model");
    fs::remove_all(folder_ + "/packed");
  }

 private:
  double bytes_per_weight() const { return format_info(*format_by_name(model_.format)).bytes_per_weight; }

  void print(const char* what, double seconds, double peak) const {
    std::printf("%-10s %-32s %6.2f s %7.2f GB/s", std::string(model_.format).c_str(), what, seconds,
                static_cast<double>(bytes_) * 1e-9 / seconds);
    if (peak >= 0) std::printf("  peak %.3f of banks", peak);
    std::printf("\n");
    std::fflush(stdout);
  }

  void time(const char* what, LoadOptions options) {
    const int64_t before = anonymous_bytes();
    int64_t peak = 0;
    double looked = 0;
    options.progress = [&](const LoadProgress&) {
      if (now_seconds() - looked < 0.02) return;
      peak = std::max(peak, anonymous_bytes() - before);
      looked = now_seconds();
    };
    options.notice = [](std::string_view text, bool warning) {
      if (warning) std::printf("%s\n", std::string(text).c_str());
    };
    const std::unique_ptr<Family> family = make_family(load_model_config(source_.model_path));
    const double begin = now_seconds();
    const auto weights = load_weights(*family, source_, pool_, options);
    const double seconds = now_seconds() - begin;
    peak = std::max(peak, anonymous_bytes() - before);
    bank_bytes_ = weights->formats.expert_bytes_total;
    print(what, seconds, static_cast<double>(peak) / static_cast<double>(bank_bytes_));
  }

  test::MadeModel model_;
  std::string folder_;
  WorkerPool pool_;
  WeightSource source_;
  int64_t bytes_ = 0, bank_bytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_load FOLDER [GB [threads [formats]]]\n");
    return 2;
  }
  const CpuBudget cpus = detect_cpu_budget(detect_topology());
  const double gb = argc > 2 ? std::atof(argv[2]) : 4;
  const int threads = argc > 3 ? std::atoi(argv[3]) : cpus.usable_cores;
  std::string formats = std::string(argc > 4 ? argv[4] : "bf16,nvfp4,fp8_block") + ",";
  std::printf("%d threads, about %.1f GB a checkpoint\n", threads, gb);
  for (size_t comma = formats.find(','); comma != std::string::npos; comma = formats.find(',')) {
    test::MadeModel model;
    model.hidden = 2048;
    model.intermediate = 768;
    model.experts = 128;
    model.top_k = 8;
    model.vocab = 8192;
    const std::string format = formats.substr(0, comma);
    model.format = format;
    formats.erase(0, comma + 1);
    Bench(model, argv[1], gb, threads, cpus.pinning).run();
  }
  return 0;
}
