// Loading a checkpoint into packed banks: it was just written, so the page cache has it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/model/checkpoint.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/size_text.h"
#include "kernels/base/statistics.h"
#include "kernels/host/worker_pool.h"
#include "tests/bench/bench.h"
#include "tests/bench/made_checkpoint.h"

namespace ft::bench {
namespace {

constexpr int kLoads = 3;

// Memory of this process that is no page cache, in bytes.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// The largest anonymous_bytes() while it lives, looked at every few milliseconds.
class PeakMemory {
 public:
  PeakMemory() : before_(anonymous_bytes()), thread_([this] { watch(); }) {}
  ~PeakMemory() { stop(); }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;
  int64_t stop() {  // beyond what there was before
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return std::max(peak_, anonymous_bytes()) - before_;
  }
  int64_t now() const { return anonymous_bytes() - before_; }

 private:
  void watch() {
    while (!done_) {
      peak_ = std::max(peak_, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  int64_t before_ = 0, peak_ = 0;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

void report_loads(Bench& bench, const std::string& name, const MadeCheckpoint& made, const std::vector<double>& seconds,
                  double memory_ratio, int64_t dense_bytes) {
  constexpr double kRateGoal = 5, kMemoryGoal = 1.1;
  const double gigabytes = static_cast<double>(made.bytes) * 1e-9;
  char note[128];
  std::snprintf(note, sizeof note, "%s in %.2f s, median of %zu loads, %d threads", size_text(made.bytes).c_str(),
                median(seconds), seconds.size(), bench.threads());
  bench.report.goal({"loading",
                     name + " checkpoint to banks, warm page cache",
                     gigabytes / median(seconds),
                     "GB/s",
                     kRateGoal,
                     false,
                     {},
                     note});
  std::snprintf(note, sizeof note, "dense weights that stay, %s here, not counted", size_text(dense_bytes).c_str());
  bench.report.goal({"loading", name + " peak host memory over banks", memory_ratio, "x", kMemoryGoal, true, {}, note});
  Samples samples;
  samples.name = name;
  samples.unit = "s";
  samples.values = seconds;
  samples.at = {{"bytes", static_cast<double>(made.bytes)}, {"threads", bench.threads()}};
  bench.report.samples("loading", std::move(samples));
}

}  // namespace

void run_loading(Bench& bench) {
  const bool tiny = std::all_of(bench.options.geometries.begin(), bench.options.geometries.end(),
                                [](const GeometryCase* one) { return one->tiny; });
  const GeometryCase& geometry = *find_geometry_case(tiny ? "tiny-nvfp4" : "A12-nvfp4");
  const std::string name(geometry.name);
  if (!bench.has_time(tiny ? 1 : 15, "loading", name)) return;
  bench.progress("writing a checkpoint of " + name);
  bench.report.heading("loading");
  MadeCheckpoint made;
  try {
    WorkerPool pool({.threads = bench.threads(), .cpus = bench.cpus.pinning});
    made = write_checkpoint(geometry, bench.options.folder, pool);
    WeightSource source;
    source.model_path = made.path;
    const std::unique_ptr<Family> family = make_family(load_model_config(made.path));
    const ModelFormats formats = inspect_formats(*family, source);
    std::vector<double> seconds;
    double ratio = 0;
    for (int i = 0; i < kLoads; ++i) {
      bench.progress("loading " + name + " from its checkpoint");
      PeakMemory peak;
      const double begin = now_seconds();
      const std::shared_ptr<const ModelWeights> weights = load_weights(*family, source, pool);
      seconds.push_back(now_seconds() - begin);
      const int64_t banks = formats.expert_bytes_total, beside = peak.stop() - peak.now();
      ratio = std::max(ratio, static_cast<double>(banks + beside) / static_cast<double>(banks));
    }
    report_loads(bench, name, made, seconds, ratio, formats.dense_bytes);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) throw;
    bench.report.not_run("loading", name, error.what());
  }
  std::error_code ignored;
  std::filesystem::remove_all(bench.options.folder + "/checkpoint", ignored);
}

}  // namespace ft::bench
