// One expert's FFN on the CPU, per ISA variant and thread count, and for the variant that serves some experts at once,
// as a layer with so many misses has them: next to reading the same bytes with the same threads from the same pages.
// The share of the ceiling is the ratio of the two.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "probes/expert_set.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr int64_t kSampleBytes = int64_t{128} << 20;  // of weights per sample: above a scheduler's slice
constexpr size_t kLeastExperts = 2;
constexpr int kAtOnce[] = {4, 8};                    // experts, beside one
constexpr int64_t kBurstBytes = int64_t{512} << 10;  // of weights in a burst: some 60 us
constexpr int kBursts = 12;                          // of which a sample of a kernel alone is the fastest
constexpr int kMinKernelSamples = 8;                 // at a time: what a comparison needs at least
constexpr int kYardstickPasses = kBursts / 2;        // after either kernel's sample: as many in a round
constexpr double kKernelShare = 0.2;                 // of the time, for the kernels alone
constexpr int kMinSamples = 7;                       // of whose ratio to mem_read the median is stated

// Walks round the set, so that every sample starts where the last one ended: what it reads was used longest ago.
class Walk {
 public:
  explicit Walk(const ExpertSet& set) : set_(set) {
    const auto wanted = static_cast<size_t>(kSampleBytes / set.layout.payload_bytes);
    count_ = std::clamp(wanted, std::min(kLeastExperts, set.blobs.size()), set.blobs.size());
    constexpr size_t kMultiple = kAtOnce[std::size(kAtOnce) - 1];
    if (count_ >= kMultiple) count_ -= count_ % kMultiple;
  }
  size_t count() const { return count_; }
  std::span<const std::byte* const> next() {
    if (at_ + count_ > set_.blobs.size()) at_ = 0;
    const auto blobs = std::span(set_.blobs).subspan(at_, count_);
    at_ += count_;
    return blobs;
  }

 private:
  const ExpertSet& set_;
  size_t count_ = 0, at_ = 0;
};

double read_seconds(WorkerPool& pool, MemReadFn fn, std::span<const std::byte* const> blobs, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const double start = now_seconds();
  pool.run([&](int worker, int workers) {
    const Range lines = split_range(bytes / kLine, worker, workers);
    for (const std::byte* blob : blobs) {
      MemReadArgs args{blob + lines.begin * kLine, (lines.end - lines.begin) * kLine, 0};
      fn(args);
    }
  });
  return now_seconds() - start;
}

class ExpertSingleProbe final : public Probe {
 public:
  std::string_view id() const override { return "expert_single"; }
  std::string_view measures() const override {
    return "One expert's FFN on the CPU per instruction set and thread count, next to reading its bytes.";
  }
  std::string_view unit() const override { return "GB/s"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.model.weights != nullptr || !context.expert_shapes.empty()) return {};
    return {false, "no model and no expert shape is given"};
  }

  std::vector<Samples> run(ProbeContext& context) override {
    mismatch_.clear();
    std::vector<Samples> result;
    const std::vector<ExpertSet> sets = make_expert_sets(context);
    has_copies_ = std::any_of(sets.begin(), sets.end(), [](const ExpertSet& set) { return set.own.data() != nullptr; });
    const double of_set = 1.0 / static_cast<double>(sets.size());
    const double share = of_set * (1 - kKernelShare) / static_cast<double>(context.thread_counts.size());
    for (const ExpertSet& set : sets) {
      if (context.interrupted && context.interrupted()) return result;
      for (Samples& samples : run_kernels(context, set, of_set * kKernelShare)) result.push_back(std::move(samples));
      for (const int threads : context.thread_counts) {
        if (context.interrupted && context.interrupted()) return result;
        WorkerPool pool({.threads = threads, .cpus = context.cpus->pinning});
        run_pool(context, set, pool, share, result);
      }
    }
    return result;
  }

  // Of the kernels alone. Not where experts would have to be copied anew: that takes longer than the rounds.
  std::vector<Samples> more(ProbeContext& context) override {
    std::vector<Samples> result;
    if (has_copies_) return result;
    const std::vector<ExpertSet> sets = make_expert_sets(context);
    for (const ExpertSet& set : sets) {
      for (Samples& samples : run_kernels(context, set, 1.0 / static_cast<double>(sets.size()))) {
        result.push_back(std::move(samples));
      }
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (mismatch_.empty()) return;
    throw Error(ErrorKind::kFailed,
                {.what = "an expert computed another result than the scalar reference", .value = mismatch_});
  }

 private:
  void run_pool(ProbeContext& context, const ExpertSet& set, WorkerPool& pool, double share,
                std::vector<Samples>& result) {
    Walk walk(set);
    const double bytes = static_cast<double>(set.layout.payload_bytes) * static_cast<double>(walk.count());
    std::vector<Series> series;
    const auto add = [&](const std::string& name, std::function<double()> seconds) {
      Series one;
      one.samples.name = name + ".threads=" + std::to_string(pool.threads());
      one.samples.unit = "GB/s";
      one.samples.at = {{"threads", pool.threads()},
                        {"bytes", bytes},
                        {"experts", static_cast<double>(walk.count())},
                        {"expert_bytes", static_cast<double>(set.layout.payload_bytes)},
                        {"hidden", static_cast<double>(set.layout.hidden)},
                        {"intermediate", static_cast<double>(set.layout.intermediate)},
                        {"working_set_bytes", static_cast<double>(set.payload_bytes())},
                        {"warm", set.warm ? 1 : 0}};
      one.samples.reduced = set.reduced;
      one.samples.remarks = set.remarks;
      one.sample = [bytes, seconds = std::move(seconds)] { return bytes / seconds() / 1e9; };
      series.push_back(std::move(one));
    };
    std::string format(format_info(set.layout.gate.format).name);
    if (!context.expert_shapes.empty()) format += "." + shape_text(set);
    std::vector<std::unique_ptr<ExpertRunner>> runners;
    const auto add_runner = [&](Isa isa, int at_once) {
      runners.push_back(std::make_unique<ExpertRunner>(set.layout, isa, at_once, pool));
      check(set, *runners.back(), isa, at_once);
      std::string name = format + "." + std::string(isa_name(isa));
      if (at_once > 1) name += ".n=" + std::to_string(at_once);
      add(name, [&walk, runner = runners.back().get()] { return runner->run(walk.next()); });
      series.back().samples.at["at_once"] = at_once;
    };
    for (int i = 0; i <= static_cast<int>(active_isa()); ++i) {
      const auto isa = static_cast<Isa>(i);
      // The scalar variant is the oracle of verify(), a hundred times slower than what serves.
      if (isa == Isa::kScalar && active_isa() != Isa::kScalar) continue;
      if (ExpertRunner::has_variant(set.layout, isa)) add_runner(isa, 1);
    }
    const Isa serving = serving_isa(set);
    for (const int at_once : kAtOnce) {
      if (walk.count() % static_cast<size_t>(at_once) == 0) add_runner(serving, at_once);
    }
    const MemReadFn read = resolve_kernels(active_isa()).mem_read;
    add(format + ".mem_read", [&] { return read_seconds(pool, read, walk.next(), set.layout.payload_bytes); });
    MeasureOptions options = measure_options(context, share);
    options.budget.min_samples = std::max(options.budget.min_samples, kMinSamples);
    measure(series, options);
    for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
  }

  // The two kernels that serve, apart and by themselves: which one changed shows here, also on a machine that others
  // keep busy. Such rounds are short, so that there is time for many where most are disturbed.
  static std::vector<Samples> run_kernels(ProbeContext& context, const ExpertSet& set, double share) {
    const Isa isa = serving_isa(set);
    WorkerPool one({.threads = 1, .cpus = {}});
    ExpertRunner runner(set.layout, isa, 1, one);
    const std::string name = std::string(format_info(set.layout.gate.format).name) + "." +
                             (context.expert_shapes.empty() ? "" : shape_text(set) + ".") + std::string(isa_name(isa));
    std::vector<Series> series;
    add_kernel(set, runner, ExpertRunner::Part::kGateUp, name + ".gate_up.best", series);
    add_kernel(set, runner, ExpertRunner::Part::kDown, name + ".down.best", series);
    MeasureOptions options = measure_options(context, share);
    options.budget.min_samples = std::max(options.budget.min_samples, kMinKernelSamples);
    options.yardstick_passes = kYardstickPasses;
    measure(series, options);
    return samples_of(series);
  }

  static Isa serving_isa(const ExpertSet& set) {
    return find_kernel(OpId::kGateUp, static_cast<int>(set.layout.gate.format), active_isa(), detect_quirks())->isa;
  }
  static std::string shape_text(const ExpertSet& set) {
    return std::to_string(set.layout.hidden) + "x" + std::to_string(set.layout.intermediate);
  }

  // One kernel on one thread, in bursts that are short against a scheduler's slice; a sample is the fastest of some.
  static void add_kernel(const ExpertSet& set, ExpertRunner& runner, ExpertRunner::Part part, const std::string& name,
                         std::vector<Series>& series) {
    const auto wanted = static_cast<size_t>(kBurstBytes / set.layout.payload_bytes);
    const size_t experts = std::clamp<size_t>(wanted, 1, set.blobs.size());
    const int64_t matrix = part == ExpertRunner::Part::kGateUp ? 2 * set.layout.gate.bytes : set.layout.down.bytes;
    const double bytes = static_cast<double>(matrix) * static_cast<double>(experts);
    Series one;
    one.samples.name = name;
    one.samples.unit = "GB/s";
    one.samples.at = {{"threads", 1}, {"bytes", bytes}, {"best_of", kBursts}, {"warm", set.warm ? 1 : 0}};
    one.samples.reduced = set.reduced;
    one.sample = [&set, &runner, part, experts, bytes, at = size_t{0}]() mutable {
      double best = 0;
      for (int burst = 0; burst < kBursts; ++burst) {
        if (at + experts > set.blobs.size()) at = 0;
        const double rate = bytes / runner.run(std::span(set.blobs).subspan(at, experts), part) / 1e9;
        best = std::max(best, rate);
        at += experts;
      }
      return best;
    };
    series.push_back(std::move(one));
  }

  void check(const ExpertSet& set, ExpertRunner& runner, Isa isa, int at_once) {
    WorkerPool one({.threads = 1, .cpus = {}});
    ExpertRunner reference(set.layout, Isa::kScalar, 1, one);
    const auto blobs = std::span(set.blobs).first(static_cast<size_t>(at_once));
    reference.run(blobs.last(1));
    runner.run(blobs);
    if (std::memcmp(reference.output().data(), runner.output().data(), reference.output().size_bytes()) != 0) {
      mismatch_ = isa_name(isa);
    }
  }

  bool has_copies_ = true;  // unless run() made sets without
  std::string mismatch_;
};

}  // namespace

std::vector<ReadShare> read_shares(std::span<const Samples> samples) {
  constexpr std::string_view kRead = ".mem_read.threads=";
  std::vector<ReadShare> shares;
  for (const Samples& read : samples) {
    const size_t at = read.name.find(kRead);
    if (at == std::string::npos) continue;
    const std::string prefix = read.name.substr(0, at + 1);
    const std::string suffix = read.name.substr(at + kRead.find(".threads"));
    for (const Samples& one : samples) {
      if (&one == &read || !one.name.starts_with(prefix) || !one.name.ends_with(suffix)) continue;
      ReadShare share{one.name, 0, 0, 0, std::min(one.values.size(), read.values.size())};
      std::vector<double> ratios;
      for (size_t i = 0; i < share.rounds; ++i) ratios.push_back(one.values[i] / read.values[i]);
      if (ratios.empty()) continue;
      share.ratio = median(ratios);
      share.gbps = median(one.values);
      share.read_gbps = median(read.values);
      shares.push_back(share);
    }
  }
  return shares;
}

std::unique_ptr<Probe> make_expert_single_probe() { return std::make_unique<ExpertSingleProbe>(); }

}  // namespace ft
