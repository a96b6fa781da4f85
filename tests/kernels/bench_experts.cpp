// Developer bench, not a test: decode speed of cold experts against a plain read of the same bytes, both with the same
// threads, interleaved. Prints ratios, because absolute numbers of a shared machine mean little.
//
//   bench_experts [threads] [rounds]        defaults: 2, 7
//
// One sample of an expert FFN: for each of a run of experts gate_up over all row tiles, barrier, down over all row
// tiles, barrier; one token. One sample of reading: the same threads read the same run of blobs by vector loads. The
// working set is at least 2.1 GB (eight times the largest last-level cache met) and samples walk through it, so weights
// come from memory. Two ratios: of wall time, and of the threads' CPU time inside kernels, which leaves out preemption
// by other processes and waits at barriers.
#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/isa.h"
#include "kernels/host/worker_pool.h"
#include "kernels/registry.h"

namespace {

constexpr int64_t kWorkingSetBytes = 2'200'000'000;
constexpr int64_t kSampleBytes = 130'000'000;

struct Bank {
  ft::ExpertLayout layout;
  int64_t experts = 0;
  ft::HostBuffer memory;
};

// Seconds of f(thread) on all threads.
template <class F>
double timed(ft::WorkerPool& pool, F f) {
  const double begin = ft::now_seconds();
  pool.run([&](int thread, int) { f(thread); });
  return ft::now_seconds() - begin;
}

Bank make_bank(ft::FormatId format, int64_t hidden, int64_t intermediate, ft::WorkerPool& pool) {
  Bank bank{ft::expert_layout(format, hidden, intermediate), 0, {}};
  bank.experts = kWorkingSetBytes / bank.layout.bytes + 1;
  bank.memory = ft::HostBuffer(bank.experts * bank.layout.bytes, &pool);
  const double seconds = timed(pool, [&](int thread) {
    for (int64_t e = thread; e < bank.experts; e += pool.threads()) {
      ft::synthesize_expert(bank.layout, static_cast<uint64_t>(e), bank.memory.data() + e * bank.layout.bytes);
    }
  });
  std::printf("%s H %ld I %ld: %ld experts of %.2f MB, synthesized at %.1f GB/s, %ld %% huge pages\n",
              std::string(ft::format_info(format).name).c_str(), hidden, intermediate, bank.experts,
              static_cast<double>(bank.layout.bytes) * 1e-6,
              static_cast<double>(bank.experts * bank.layout.bytes) * 1e-9 / seconds,
              ft::page_report(bank.memory).huge_bytes * 100 / bank.memory.bytes());
  return bank;
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Buffers {
  std::vector<uint32_t> x, a;
  std::vector<float> y;
};

// One run of `count` experts from `first` on (modulo the bank). Returns this thread's CPU seconds inside kernels.
double run_experts(const Bank& bank, ft::GateUpFn gate_up, ft::MatvecFn matvec, Buffers& buffers, int64_t first,
                   int64_t count, int thread, ft::WorkerPool& pool) {
  const auto part = [&](int64_t tiles, int who) { return tiles * who / pool.threads(); };
  const uint32_t* x = buffers.x.data();
  uint32_t* a = buffers.a.data();
  const uint32_t* a_in = a;
  float* y = buffers.y.data();
  double busy = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* blob = bank.memory.data() + (first + i) % bank.experts * bank.layout.bytes;
    const int64_t gate_tiles = bank.layout.gate.row_tiles;
    double start = thread_cpu_seconds();
    gate_up({&bank.layout, blob, &x, 1, part(gate_tiles, thread), part(gate_tiles, thread + 1), &a});
    busy += thread_cpu_seconds() - start;
    pool.barrier();
    start = thread_cpu_seconds();
    const ft::PackedMatrix down = ft::expert_down(bank.layout, blob);
    const int64_t down_tiles = down.layout.row_tiles;
    matvec({&down, &a_in, 1, part(down_tiles, thread), part(down_tiles, thread + 1), &y});
    busy += thread_cpu_seconds() - start;
    pool.barrier();
  }
  return busy;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Buffers make_buffers(int64_t hidden, int64_t intermediate) {
  std::vector<float> x(static_cast<size_t>(hidden));
  ft::Random random(1);
  for (float& value : x) value = static_cast<float>(random.normal());
  Buffers buffers;
  buffers.x.resize(static_cast<size_t>(ft::activation_words(hidden)));
  buffers.a.resize(static_cast<size_t>(ft::activation_words(intermediate)));
  buffers.y.resize(static_cast<size_t>(hidden));
  ft::resolve_kernels(ft::Isa::kScalar).pack_activations({x.data(), hidden, 1, hidden, buffers.x.data()});
  return buffers;
}

struct Sample {
  double wall_seconds = 0;
  double busy_seconds = 0;  // mean over threads
};

// f(thread) returns its busy seconds.
template <class F>
Sample sample(ft::WorkerPool& pool, F f) {
  std::vector<double> busy(static_cast<size_t>(pool.threads()));
  Sample result;
  result.wall_seconds = timed(pool, [&](int thread) { busy[static_cast<size_t>(thread)] = f(thread); });
  for (const double seconds : busy) result.busy_seconds += seconds / pool.threads();
  return result;
}

// The variant of exactly this ISA, also one that quirks pass over.
template <class Fn>
Fn kernel(ft::OpId op, ft::FormatId format, int isa) {
  return std::get<Fn>(ft::find_kernel(op, static_cast<int>(format), static_cast<ft::Isa>(isa))->fn);
}

struct Ratios {
  std::vector<double> wall, busy;
};

void bench(ft::FormatId format, int64_t hidden, int64_t intermediate, ft::WorkerPool& pool, int rounds) {
  const Bank bank = make_bank(format, hidden, intermediate, pool);
  const int64_t count = std::max<int64_t>(1, kSampleBytes / bank.layout.bytes);
  const double gigabytes = static_cast<double>(count * bank.layout.bytes) * 1e-9;
  Buffers buffers = make_buffers(hidden, intermediate);
  const ft::MemReadFn mem_read = ft::resolve_kernels(ft::detect_isa()).mem_read;
  int64_t first = 0;
  std::vector<double> read_busy;
  Ratios ratios[ft::kIsaCount];
  for (int round = 0; round <= rounds; ++round) {  // round 0 is not counted
    const Sample read = sample(pool, [&](int thread) {
      const int64_t bytes = count * bank.layout.bytes / pool.threads() / 64 * 64;
      const int64_t offset = std::min(first, bank.experts - count) * bank.layout.bytes;
      ft::MemReadArgs args{bank.memory.data() + offset + thread * bytes, bytes};
      const double start = thread_cpu_seconds();
      mem_read(args);
      return thread_cpu_seconds() - start;
    });
    first = (first + count) % bank.experts;
    for (int isa = 1; isa <= static_cast<int>(ft::detect_isa()); ++isa) {
      const ft::MatvecFn matvec = kernel<ft::MatvecFn>(ft::OpId::kMatvec, format, isa);
      const ft::GateUpFn gate_up = kernel<ft::GateUpFn>(ft::OpId::kGateUp, format, isa);
      const Sample ffn = sample(
          pool, [&](int thread) { return run_experts(bank, gate_up, matvec, buffers, first, count, thread, pool); });
      first = (first + count) % bank.experts;
      if (round == 0) continue;
      ratios[isa].wall.push_back(read.wall_seconds / ffn.wall_seconds);
      ratios[isa].busy.push_back(read.busy_seconds / ffn.busy_seconds);
    }
    if (round > 0) read_busy.push_back(read.busy_seconds);
  }
  std::printf("  plain read   %5.1f GB/s of busy time\n", gigabytes / median(read_busy));
  for (int isa = 1; isa <= static_cast<int>(ft::detect_isa()); ++isa) {
    const auto [low, high] = std::minmax_element(ratios[isa].busy.begin(), ratios[isa].busy.end());
    std::printf("  %-12s of plain read: %.2f wall, %.2f busy (%.2f .. %.2f)\n",
                std::string(ft::isa_name(static_cast<ft::Isa>(isa))).c_str(), median(ratios[isa].wall),
                median(ratios[isa].busy), *low, *high);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (threads < 1 || threads > 256 || rounds < 1 || rounds > 1000) {
    std::fprintf(stderr, "usage: bench_experts [threads 1..256] [rounds 1..1000]\n");
    return 2;
  }
  ft::WorkerPool pool({.threads = threads, .cpus = {}});
  for (const ft::FormatInfo& format : ft::all_formats()) {
    bench(format.id, 2560, 640, pool, rounds);
    bench(format.id, 4096, 2048, pool, rounds);
  }
  return 0;
}
