// Experts on the CPU as a step on the device hands them over: n experts of one token at once, by the CPU arm itself,
// beside a plain read of the same blobs with the same threads, in turns.
#include <algorithm>
#include <numeric>

#include "engine/runtime/cuda/cpu_arm.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/statistics.h"
#include "kernels/host/worker_pool.h"
#include "kernels/ops/activations.h"
#include "probes/measure.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

constexpr int kMostExperts = 8;
constexpr int64_t kSampleBytes = int64_t{256} << 20;  // about the last-level cache: a sample's blobs do not return soon
constexpr double kSeconds = 2;

// Experts of all layers in a shuffled order, n of one layer at a time; goes on where it stopped.
class ColdExperts {
 public:
  explicit ColdExperts(const ExpertBank& bank) : bank_(bank), ids_(static_cast<size_t>(bank.experts())) {
    std::iota(ids_.begin(), ids_.end(), 0);
    Random random(7);
    for (size_t left = ids_.size(); left > 1; --left) std::swap(ids_[left - 1], ids_[random.below(left)]);
  }
  int layer() const { return layer_; }
  // n distinct ids of layer().
  void next(int n, std::span<int32_t> out) {
    layer_ = (layer_ + 1) % bank_.layers();
    if (layer_ == 0) at_ = (at_ + static_cast<size_t>(n)) % ids_.size();
    for (int i = 0; i < n; ++i) out[static_cast<size_t>(i)] = ids_[(at_ + static_cast<size_t>(i)) % ids_.size()];
  }

 private:
  const ExpertBank& bank_;
  std::vector<int> ids_;
  int layer_ = -1;
  size_t at_ = 0;
};

class ArmBench {
 public:
  explicit ArmBench(ModelCase& one)
      : bank_(one.model.weights->bank),
        pool_({.threads = one.bench.threads(), .cpus = one.bench.cpus.pinning}),
        marks_(pool_.threads()),
        kernels_(resolve_kernels(active_isa())),
        ids_(kMostExperts, -1),
        x_(activation_words(bank_.layout(0).hidden) * 4, &pool_),
        out_(kMostExperts * bank_.layout(0).hidden * 4, &pool_),
        arm_(bank_, kMostExperts, 1, kernels_, pool_, marks_, {ids_.data(), x_.as<uint32_t>(), out_.as<float>()}),
        cold_(bank_) {
    Random random(3);
    auto* words = x_.as<uint32_t>();  // pairs of bf16 near 1
    for (int64_t i = 0; i < activation_words(bank_.layout(0).hidden); ++i) {
      words[i] =
          0x3f003f00u | static_cast<uint32_t>(random.below(128)) | static_cast<uint32_t>(random.below(128)) << 16;
    }
  }

  int groups(int n) const {
    return static_cast<int>(std::max<int64_t>(1, kSampleBytes / (n * bank_.layout(0).payload_bytes)));
  }
  double bytes(int n) const {
    return static_cast<double>(groups(n)) * n * static_cast<double>(bank_.layout(0).payload_bytes);
  }

  double compute_seconds(int n) {
    std::fill(ids_.begin(), ids_.end(), -1);
    double seconds = 0;
    for (int i = groups(n); i > 0; --i) {
      cold_.next(n, ids_);
      const double begin = now_seconds();
      arm_.serve(cold_.layer(), 1);
      seconds += now_seconds() - begin;
    }
    return seconds;
  }

  // All groups in one task: the ceiling waits for nothing.
  double read_seconds(int n) {
    std::vector<const std::byte*> blobs;
    for (int i = groups(n); i > 0; --i) {
      cold_.next(n, ids_);
      for (int k = 0; k < n; ++k) blobs.push_back(bank_.blob(cold_.layer(), ids_[static_cast<size_t>(k)]));
    }
    constexpr int64_t kLine = 64;
    const int64_t bytes = bank_.layout(0).payload_bytes;
    const double begin = now_seconds();
    pool_.run([&](int worker, int workers) {
      const Range lines = split_range(bytes / kLine, worker, workers);
      for (const std::byte* blob : blobs) {
        MemReadArgs args{blob + lines.begin * kLine, (lines.end - lines.begin) * kLine, 0};
        kernels_.mem_read(args);
      }
    });
    return now_seconds() - begin;
  }

 private:
  const ExpertBank& bank_;
  WorkerPool pool_;
  WorkerMarks marks_;
  KernelTable kernels_;
  std::vector<int32_t> ids_;
  HostBuffer x_, out_;
  CpuArm arm_;
  ColdExperts cold_;
};

}  // namespace

void run_experts_on_cpu(ModelCase& one) {
  constexpr double kGoalOfOne = 0.65, kGoal = 0.8;
  Bench& bench = one.bench;
  const std::string base = std::string(one.geometry.name) + " experts on the CPU over a plain read, n = ";
  if (!bench.has_time(3 * kSeconds, "cpu", base + "1, 4, 8")) return;
  bench.progress(base + "1, 4, 8");
  ArmBench arm(one);
  std::vector<Series> series;
  const std::vector<int> counts = {1, 4, 8};
  for (const int n : counts) {
    for (const bool read : {false, true}) {
      Series line;
      line.samples.name = (read ? "mem_read.n=" : "experts.n=") + std::to_string(n);
      line.samples.unit = "GB/s";
      line.samples.at = {{"n", n}, {"threads", bench.threads()}, {"bytes", arm.bytes(n)}};
      line.sample = [&arm, n, read] {
        return arm.bytes(n) / (read ? arm.read_seconds(n) : arm.compute_seconds(n)) * 1e-9;
      };
      series.push_back(std::move(line));
    }
  }
  MeasureOptions options;
  options.budget = bench.sample_budget(3 * kSeconds);
  measure(series, options);
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::vector<double>& computed = series[2 * i].samples.values;
    const std::vector<double>& read = series[2 * i + 1].samples.values;
    std::vector<double> ratios;
    for (size_t k = 0; k < std::min(computed.size(), read.size()); ++k) ratios.push_back(computed[k] / read[k]);
    char note[96];
    std::snprintf(note, sizeof note, "%.1f of %.1f GB/s, %d threads, %zu rounds", median(computed), median(read),
                  bench.threads(), ratios.size());
    bench.report.goal({"cpu",
                       base + std::to_string(counts[i]),
                       median(ratios),
                       "x",
                       counts[i] == 1 ? kGoalOfOne : kGoal,
                       false,
                       {},
                       note});
  }
  bench.report.samples("cpu." + std::string(one.geometry.name), samples_of(series));
}

}  // namespace ft::bench
