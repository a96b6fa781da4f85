// STREAM (McCalpin, https://www.cs.virginia.edu/stream/ref.html) by its own rules: arrays of doubles at least four
// times the last-level cache, all four kernels in turn, the first round not counted; the figure to quote is the best
// sample. Beside it mem_read, the ceiling of whatever only reads weights.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/worker_pool.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr int64_t kCacheFactor = 4;                        // STREAM's run rule
constexpr int64_t kDefaultCacheBytes = int64_t{32} << 20;  // when the machine does not say
constexpr double kMemoryShare = 0.5;                       // of what is available, for all three arrays
constexpr double kScalar = 3.0;

struct Arrays {
  HostBuffer memory;
  double* a = nullptr;
  double* b = nullptr;
  double* c = nullptr;
  int64_t count = 0;
  bool shortened = false;
};

// One pass of `fn` over all threads' parts, in seconds. Parts are whole cache lines.
double stream_pass(WorkerPool& pool, StreamFn fn, const Arrays& arrays) {
  constexpr int64_t kLine = 8;  // doubles
  const double start = now_seconds();
  pool.run([&](int worker, int workers) {
    const Range lines = split_range(arrays.count / kLine, worker, workers);
    const int64_t begin = lines.begin * kLine;
    fn({arrays.a + begin, arrays.b + begin, arrays.c + begin, (lines.end - lines.begin) * kLine, kScalar});
  });
  return now_seconds() - start;
}

struct ReadPass {
  double seconds = 0;
  uint64_t checksum = 0;
};

ReadPass read_pass(WorkerPool& pool, MemReadFn fn, const std::byte* data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  std::vector<uint64_t> checksums(static_cast<size_t>(pool.threads()) * 8);  // a cache line each
  const double start = now_seconds();
  pool.run([&](int worker, int workers) {
    const Range lines = split_range(bytes / kLine, worker, workers);
    MemReadArgs args{data + lines.begin * kLine, (lines.end - lines.begin) * kLine, 0};
    fn(args);
    checksums[static_cast<size_t>(worker) * 8] = args.checksum;
  });
  const double seconds = now_seconds() - start;
  return {seconds, std::accumulate(checksums.begin(), checksums.end(), uint64_t{0}, std::bit_xor<>())};
}

class StreamProbe final : public Probe {
 public:
  std::string_view id() const override { return "stream"; }
  std::string_view measures() const override {
    return "Memory bandwidth: STREAM copy, scale, add, triad, and reading alone.";
  }
  std::string_view unit() const override { return "GB/s"; }
  Applies applies(const ProbeContext&) const override { return {}; }

  std::vector<Samples> run(ProbeContext& context) override {
    mismatch_.clear();
    std::vector<Samples> result;
    struct Place {
      int node = -1;
      int threads = 1;
      std::vector<int> cpus;
    };
    std::vector<Place> places;
    for (const int threads : context.thread_counts) places.push_back({-1, threads, context.base.pinning});
    if (context.topology->numa_nodes.size() > 1) {
      for (const NumaNode& node : context.topology->numa_nodes) {
        const auto usable = std::min<size_t>(node.cpus.size(), static_cast<size_t>(context.cpus->usable_cores));
        if (usable > 0) places.push_back({node.os_index, static_cast<int>(usable), node.cpus});
      }
    }
    for (const Place& place : places) {
      WorkerPool pool({.threads = place.threads, .cpus = place.cpus});
      run_place(context, pool, place.node, 1.0 / static_cast<double>(places.size()), result);
      if (context.interrupted && context.interrupted()) break;
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (mismatch_.empty()) return;
    throw Error(ErrorKind::kFailed, {.what = "stream moved wrong data", .value = mismatch_});
  }

 private:
  Arrays make_arrays(const ProbeContext& context, WorkerPool& pool) const {
    const int64_t cache =
        context.topology->last_level_cache_bytes > 0 ? context.topology->last_level_cache_bytes : kDefaultCacheBytes;
    const int64_t wanted = kCacheFactor * cache;
    const auto room = static_cast<int64_t>(kMemoryShare * static_cast<double>(context.memory->available_bytes) / 3);
    // A sample moves ten arrays and the memory must be touched first: at 4 GB/s, well below any machine, a fifth of the
    // budget.
    const auto affordable = static_cast<int64_t>(context.budget.seconds * 4e9 / 50);
    constexpr int64_t kLeast = int64_t{4} << 20;
    Arrays arrays;
    const int64_t bytes = std::max(kLeast, std::min({wanted, room, affordable})) / 4096 * 4096;
    arrays.shortened = bytes < wanted / 4096 * 4096;
    arrays.count = bytes / static_cast<int64_t>(sizeof(double));
    arrays.memory = HostBuffer(3 * bytes, &pool);
    arrays.a = arrays.memory.as<double>();
    arrays.b = arrays.a + arrays.count;
    arrays.c = arrays.b + arrays.count;
    std::fill_n(arrays.a, arrays.count, 1.0);
    std::fill_n(arrays.b, arrays.count, 2.0);
    std::fill_n(arrays.c, arrays.count, 0.0);
    return arrays;
  }

  void run_place(ProbeContext& context, WorkerPool& pool, int node, double share, std::vector<Samples>& result) {
    const KernelTable kernels = resolve_kernels(active_isa());
    Arrays arrays = make_arrays(context, pool);
    const int64_t bytes = arrays.count * static_cast<int64_t>(sizeof(double));
    struct Kernel {
      const char* name;
      StreamFn fn;
      int arrays;
    };
    const Kernel list[] = {{"copy", kernels.stream_copy, 2},
                           {"scale", kernels.stream_scale, 2},
                           {"add", kernels.stream_add, 3},
                           {"triad", kernels.stream_triad, 3}};
    std::vector<Series> series;
    const auto add = [&](const std::string& name, double moved, std::function<double()> sample) {
      Series one{.samples = {}, .sample = std::move(sample)};
      one.samples.name = name + ".threads=" + std::to_string(pool.threads());
      if (node >= 0) one.samples.name += ".node=" + std::to_string(node);
      one.samples.unit = "GB/s";
      one.samples.at = {{"threads", pool.threads()}, {"bytes", moved}, {"array_bytes", static_cast<double>(bytes)}};
      if (node >= 0) one.samples.at["node"] = node;
      one.samples.reduced = arrays.shortened;
      if (arrays.shortened) one.samples.remarks.push_back("arrays below 4x the last-level cache: memory or budget");
      series.push_back(std::move(one));
    };
    for (const Kernel& kernel : list) {
      const double moved = static_cast<double>(kernel.arrays * bytes);
      add(kernel.name, moved,
          [&pool, &arrays, kernel, moved] { return moved / stream_pass(pool, kernel.fn, arrays) / 1e9; });
    }
    const auto all = 3 * bytes;
    add("mem_read", static_cast<double>(all), [&] {
      return static_cast<double>(all) / read_pass(pool, kernels.mem_read, arrays.memory.data(), all).seconds / 1e9;
    });
    measure(series, measure_options(context, share));
    check_values(arrays, series[0].samples);
    check_read(pool, kernels.mem_read, arrays);
    for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
  }

  // As STREAM does: what the arrays must hold after so many rounds, all elements alike.
  void check_values(const Arrays& arrays, const Samples& copy) {
    double a = 1, b = 2, c = 0;
    const uint64_t rounds = copy.discarded + copy.values.size();
    for (uint64_t i = 0; i < rounds; ++i) {
      c = a;
      b = kScalar * c;
      c = a + b;
      a = b + kScalar * c;
    }
    for (const int64_t i : {int64_t{0}, arrays.count / 2, arrays.count - 1}) {
      // An interrupt may end a round after any kernel; a multiple of full rounds must match, up to overflow.
      if (copy.stop_reason == "interrupted" || !std::isfinite(a)) continue;
      if (arrays.a[i] != a || arrays.b[i] != b || arrays.c[i] != c) {
        mismatch_ =
            "element " + std::to_string(i) + ": a is " + std::to_string(arrays.a[i]) + ", not " + std::to_string(a);
      }
    }
  }

  void check_read(WorkerPool& pool, MemReadFn fn, Arrays& arrays) {
    const int64_t words = std::min<int64_t>(3 * arrays.count, int64_t{1} << 20) / 8 * 8;
    auto* data = arrays.memory.as<uint64_t>();
    uint64_t expected = 0;
    for (int64_t i = 0; i < words; ++i) {
      data[i] = mix64(static_cast<uint64_t>(i));
      expected ^= data[i];
    }
    const uint64_t got = read_pass(pool, fn, arrays.memory.data(), words * 8).checksum;
    if (got != expected) mismatch_ = "mem_read gave " + std::to_string(got) + ", not " + std::to_string(expected);
  }

  std::string mismatch_;
};

}  // namespace

std::unique_ptr<Probe> make_stream_probe() { return std::make_unique<StreamProbe>(); }

}  // namespace ft
