// Developer bench, not a test: the CPU experts of a layer as the engine computes them (ExpertWork: gate and up of n
// experts, barrier, down of n experts, barrier; cold weights) against a plain read of the same pages with
// the same threads, interleaved. Ratios, because absolute numbers of a shared machine mean little.
//
//   bench_experts [--threads 1,2] [--experts 1,4,8] [--tokens 1] [--formats nvfp4,mxfp4] [--shapes 2560x640,4096x2048]
//                 [--rounds 9]
//
// wall: time of reading over time of computing. busy: the same of the threads' CPU time inside kernels, from samples of
// their own, which leaves out preemption by others and waits at barriers. hot: GB/s of one thread over
// weights that stay in its L2, what the arithmetic allows. The working set is at least 2.2 GB (eight times the largest
// last-level cache met) and samples walk through it.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "engine/runtime/expert_work.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/topology.h"
#include "kernels/host/worker_pool.h"

namespace {

constexpr int64_t kWorkingSetBytes = 2'200'000'000;
constexpr int64_t kSampleBytes = 130'000'000;
constexpr int64_t kHotBytes = 600'000;  // of weights, beside activations, in an L2 of 1 MiB or more
constexpr double kHotSeconds = 0.003;

struct Options {
  std::vector<int> threads{1, 2};
  std::vector<int> experts{1, 4, 8};
  std::vector<int> tokens{1};  // each of which goes to all of a layer's experts
  std::vector<std::string> formats{"nvfp4", "mxfp4"};
  std::vector<std::string> shapes{"2560x640", "4096x2048"};
  int rounds = 9;
};

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Bank {
  ft::ExpertLayout layout;
  int64_t experts = 0;
  ft::HostBuffer memory;
  int64_t next = 0;  // where the next sample starts

  const std::byte* blob(int64_t index) const { return memory.data() + index % experts * layout.bytes; }
};

// Values do not change the time: one expert is made, the others are copies of it.
Bank make_bank(ft::FormatId format, int64_t hidden, int64_t intermediate, ft::WorkerPool& pool) {
  Bank bank{ft::expert_layout(format, hidden, intermediate), 0, {}};
  bank.experts = kWorkingSetBytes / bank.layout.bytes + 1;
  bank.memory = ft::HostBuffer(bank.experts * bank.layout.bytes, &pool);
  ft::synthesize_expert(bank.layout, 1, bank.memory.data());
  pool.run([&](int worker, int workers) {
    for (int64_t e = worker + 1; e < bank.experts; e += workers) {
      std::memcpy(bank.memory.data() + e * bank.layout.bytes, bank.memory.data(),
                  static_cast<size_t>(bank.layout.bytes));
    }
  });
  return bank;
}

// The kernels of exactly this ISA, also those that quirks pass over.
ft::KernelTable kernels_of(ft::FormatId format, ft::Isa isa) {
  ft::KernelTable table = ft::resolve_kernels(isa);
  const auto index = static_cast<int>(format);
  table.gate_up[index] = std::get<ft::GateUpFn>(ft::find_kernel(ft::OpId::kGateUp, index, isa)->fn);
  table.matvec[index] = std::get<ft::MatvecFn>(ft::find_kernel(ft::OpId::kMatvec, index, isa)->fn);
  return table;
}

struct Variant {
  std::string name;
  ft::KernelTable kernels;
};

std::vector<Variant> variants_of(ft::FormatId format) {
  std::vector<Variant> variants;
  for (int isa = 1; isa <= static_cast<int>(ft::detect_isa()); ++isa) {
    const auto id = static_cast<ft::Isa>(isa);
    if (ft::find_kernel(ft::OpId::kGateUp, static_cast<int>(format), id)->isa != id) continue;
    variants.push_back({std::string(ft::isa_name(id)), kernels_of(format, id)});
  }
  return variants;
}

std::vector<uint32_t> packed_input(int64_t hidden) {
  std::vector<float> x(static_cast<size_t>(hidden));
  ft::Random random(1);
  for (float& value : x) value = static_cast<float>(random.normal());
  std::vector<uint32_t> words(static_cast<size_t>(ft::activation_words(hidden)));
  ft::resolve_kernels(ft::Isa::kScalar).pack_activations({x.data(), hidden, 1, hidden, words.data()});
  return words;
}

struct Sample {
  double wall_seconds = 0;
  double busy_seconds = 0;  // mean over threads
};

// f(worker, workers) returns its busy seconds.
template <class F>
Sample sample(ft::WorkerPool& pool, F f) {
  std::vector<double> busy(static_cast<size_t>(pool.threads()));
  Sample result;
  const double begin = ft::now_seconds();
  pool.run([&](int worker, int workers) { busy[static_cast<size_t>(worker)] = f(worker, workers); });
  result.wall_seconds = ft::now_seconds() - begin;
  for (const double seconds : busy) result.busy_seconds += seconds / pool.threads();
  return result;
}

// Layers of n experts, one after the other, `count` experts in all.
class Layers {
 public:
  Layers(const Bank& bank, const ft::KernelTable& kernels, int n, int tokens, ft::WorkerPool& pool)
      : bank_(bank),
        pool_(pool),
        n_(n),
        tokens_(tokens),
        x_(packed_input(bank.layout.hidden)),
        y_(static_cast<size_t>(n * tokens * bank.layout.hidden)),
        marks_(pool.threads()),
        work_(kernels, n * tokens, bank.layout.intermediate, marks_, nullptr) {
    for (int i = 0; i < n * tokens; ++i) work_.set_row(i, x_.data(), i, y_.data() + i * bank.layout.hidden);
  }

  double wall_seconds(int64_t first, int64_t count) {
    return each(first, count,
                [&](std::span<const ft::ExpertItem> layer, int worker) {
                  work_.compute(bank_.layout, layer, worker, pool_);
                  pool_.barrier();
                  return 0.0;
                })
        .wall_seconds;
  }
  double busy_seconds(int64_t first, int64_t count) {
    return each(first, count,
                [&](std::span<const ft::ExpertItem> layer, int worker) {
                  const double start = thread_cpu_seconds();
                  work_.gate_up(bank_.layout, layer, worker, pool_.threads());
                  const double middle = thread_cpu_seconds();
                  pool_.barrier();
                  const double again = thread_cpu_seconds();
                  work_.down(bank_.layout, layer, worker, pool_.threads());
                  const double end = thread_cpu_seconds();
                  pool_.barrier();
                  return middle - start + end - again;
                })
        .busy_seconds;
  }

 private:
  template <class F>
  Sample each(int64_t first, int64_t count, F layer) {
    items_.clear();
    for (int64_t i = 0; i < count; ++i)
      items_.push_back(ft::make_expert_item(0, bank_.blob(first + i), i % n_ * tokens_, tokens_));
    const auto experts = static_cast<size_t>(n_);
    return sample(pool_, [&](int worker, int) {
      double busy = 0;
      for (size_t i = 0; i + experts <= items_.size(); i += experts) {
        busy += layer(std::span<const ft::ExpertItem>(items_).subspan(i, experts), worker);
      }
      return busy;
    });
  }

  const Bank& bank_;
  ft::WorkerPool& pool_;
  int n_, tokens_;
  std::vector<uint32_t> x_;
  std::vector<float> y_;
  ft::WorkerMarks marks_;
  ft::ExpertWork work_;
  std::vector<ft::ExpertItem> items_;
};

Sample read_sample(const Bank& bank, int64_t first, int64_t count, ft::WorkerPool& pool, ft::MemReadFn mem_read) {
  return sample(pool, [&](int worker, int workers) {
    const int64_t begin = std::min(first, bank.experts - count) * bank.layout.bytes;
    const ft::Range lines = ft::split_range(count * bank.layout.bytes / 64, worker, workers);
    ft::MemReadArgs args{bank.memory.data() + begin + lines.begin * 64, (lines.end - lines.begin) * 64};
    const double start = thread_cpu_seconds();
    mem_read(args);
    return thread_cpu_seconds() - start;
  });
}

struct Ratios {
  std::vector<double> wall, busy;
};

void bench_layers(Bank& bank, const std::vector<Variant>& variants, int n, int tokens, int rounds,
                  ft::WorkerPool& pool) {
  const int64_t count = std::max<int64_t>(1, kSampleBytes / bank.layout.bytes / n) * n;
  const ft::MemReadFn mem_read = ft::resolve_kernels(ft::detect_isa()).mem_read;
  std::vector<Ratios> ratios(variants.size());
  std::vector<double> read_gbps;
  for (int round = 0; round <= rounds; ++round) {  // round 0 is not counted
    const auto advance = [&] { bank.next = (bank.next + count) % bank.experts; };
    const Sample read = read_sample(bank, bank.next, count, pool, mem_read);
    advance();
    if (round > 0) read_gbps.push_back(static_cast<double>(count * bank.layout.bytes) * 1e-9 / read.wall_seconds);
    for (size_t v = 0; v < variants.size(); ++v) {
      Layers layers(bank, variants[v].kernels, n, tokens, pool);
      const double wall = layers.wall_seconds(bank.next, count);
      advance();
      const double busy = layers.busy_seconds(bank.next, count);
      advance();
      if (round == 0) continue;
      ratios[v].wall.push_back(read.wall_seconds / wall);
      ratios[v].busy.push_back(read.busy_seconds / busy);
    }
  }
  std::printf("%7d %2d %2d  read %5.1f ", pool.threads(), n, tokens, median(read_gbps));
  for (size_t v = 0; v < variants.size(); ++v) {
    std::printf("| %s %.2f (%.2f) ", variants[v].name.c_str(), median(ratios[v].wall), median(ratios[v].busy));
  }
  std::printf("\n");
}

// GB/s of gate and up, and of down, over weights in L2.
void bench_hot(const Bank& bank, const Variant& variant) {
  const std::vector<uint32_t> x = packed_input(std::max(bank.layout.hidden, bank.layout.intermediate));
  const uint32_t* rows[] = {x.data()};
  std::vector<uint32_t> activated(static_cast<size_t>(ft::activation_words(bank.layout.intermediate)));
  std::vector<float> output(static_cast<size_t>(bank.layout.hidden));
  uint32_t* a = activated.data();
  float* y = output.data();
  const auto index = static_cast<int>(bank.layout.gate.format);
  const ft::PackedMatrix down = ft::expert_down(bank.layout, bank.blob(0));
  const auto tile_bytes = [](const ft::PackedLayout& l) { return l.code_bytes_per_tile + l.scale_bytes_per_tile; };
  const auto gbps = [&](const ft::PackedLayout& layout, int matrices, auto kernel) {
    const int64_t tiles = std::min(layout.row_tiles, kHotBytes / matrices / tile_bytes(layout));
    double best = 1e9;
    for (const double end = ft::now_seconds() + kHotSeconds; ft::now_seconds() < end;) {
      const double start = ft::now_seconds();
      kernel(tiles);
      best = std::min(best, ft::now_seconds() - start);
    }
    return static_cast<double>(tiles * matrices * tile_bytes(layout)) * 1e-9 / best;
  };
  const double both = gbps(bank.layout.gate, 2, [&](int64_t tiles) {
    variant.kernels.gate_up[index]({&bank.layout, bank.blob(0), rows, 1, 0, tiles, &a});
  });
  const double one = gbps(bank.layout.down, 1, [&](int64_t tiles) {
    variant.kernels.matvec[index]({&down, rows, 1, 0, tiles, &y});
  });
  std::printf("| %s %.1f, %.1f ", variant.name.c_str(), both, one);
}

// Microseconds of a barrier between empty phases.
double barrier_microseconds(ft::WorkerPool& pool) {
  constexpr int kPhases = 2000;
  const double begin = ft::now_seconds();
  pool.run([&](int, int) {
    for (int i = 0; i < kPhases; ++i) pool.barrier();
  });
  return (ft::now_seconds() - begin) / kPhases * 1e6;
}

void bench_shape(const Options& options, ft::FormatId format, const std::string& shape,
                 std::vector<std::unique_ptr<ft::WorkerPool>>& pools) {
  const size_t x = shape.find('x');
  Bank bank = make_bank(format, std::stol(shape.substr(0, x)), std::stol(shape.substr(x + 1)), *pools.back());
  std::printf(
      "%s %s: %ld experts of %.2f MB, %ld %% huge pages; threads, experts, tokens, share of read: wall (busy)\n",
      std::string(ft::format_info(format).name).c_str(), shape.c_str(), bank.experts,
      static_cast<double>(bank.layout.bytes) * 1e-6,
      ft::page_report(bank.memory).huge_bytes * 100 / bank.memory.bytes());
  const std::vector<Variant> variants = variants_of(format);
  std::printf("  hot, gate and up, down, GB/s: ");
  for (const Variant& variant : variants) bench_hot(bank, variant);
  std::printf("\n");
  for (const auto& pool : pools) {
    for (const int n : options.experts) {
      for (const int tokens : options.tokens) bench_layers(bank, variants, n, tokens, options.rounds, *pool);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"CPU experts against a plain read of the same memory"};
  app.add_option("--threads", options.threads, "thread counts")->delimiter(',')->check(CLI::Range(1, 256));
  app.add_option("--experts", options.experts, "experts computed at once")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--tokens", options.tokens, "tokens at once")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--formats", options.formats, "weight formats")->delimiter(',');
  app.add_option("--shapes", options.shapes, "hidden x intermediate")->delimiter(',');
  app.add_option("--rounds", options.rounds, "rounds whose medians are printed")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const ft::CpuBudget cpus = ft::detect_cpu_budget(ft::detect_topology());
  std::vector<std::unique_ptr<ft::WorkerPool>> pools;
  std::sort(options.threads.begin(), options.threads.end());
  for (const int threads : options.threads) {
    pools.push_back(std::make_unique<ft::WorkerPool>(ft::WorkerPoolOptions{.threads = threads, .cpus = cpus.pinning}));
    std::printf("%d threads: %.2f us a barrier\n", threads, barrier_microseconds(*pools.back()));
  }
  for (const ft::FormatInfo& format : ft::all_formats()) {
    if (std::find(options.formats.begin(), options.formats.end(), format.name) == options.formats.end()) continue;
    for (const std::string& shape : options.shapes) bench_shape(options, format.id, shape, pools);
  }
  return 0;
}
