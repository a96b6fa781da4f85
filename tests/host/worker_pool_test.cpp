// Checked against: what each thread writes down itself, the process's own clocks, and exact counts of waits.
// How the pool behaves when threads outnumber cores is in worker_pool_contention_test.cpp.
#include "kernels/host/worker_pool.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/host/topology.h"

namespace {

std::atomic<long> allocations{0};

ft::WorkerPoolOptions pool_of(int threads) {
  ft::WorkerPoolOptions options;
  options.threads = threads;
  return options;
}

uint64_t total(const ft::WaitHistogram& histogram) {
  return std::accumulate(histogram.count.begin(), histogram.count.end(), uint64_t{0});
}

double cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

TEST_CASE("split_range covers everything once, in order, sizes at most one apart") {
  for (const int64_t count : {0, 1, 2, 3, 7, 16, 1000}) {
    for (const int workers : {1, 2, 3, 16, 64}) {
      int64_t next = 0;
      for (int w = 0; w < workers; ++w) {
        const ft::Range range = ft::split_range(count, w, workers);
        REQUIRE(range.begin == next);
        REQUIRE(range.end - range.begin >= count / workers);
        REQUIRE(range.end - range.begin <= (count + workers - 1) / workers);
        next = range.end;
      }
      REQUIRE(next == count);
    }
  }
}

TEST_CASE("every worker runs every task once, and run() returns after the last") {
  for (const int threads : {1, 2, 3, 7}) {
    CAPTURE(threads);
    ft::WorkerPool pool(pool_of(threads));
    CHECK(pool.threads() == threads);
    std::vector<long> calls(static_cast<size_t>(threads), 0);
    constexpr int kRuns = 500;
    for (int i = 0; i < kRuns; ++i) {
      pool.run([&](int worker, int workers) {
        if (workers == threads) ++calls[static_cast<size_t>(worker)];  // plain memory: run() orders it
      });
      REQUIRE(std::accumulate(calls.begin(), calls.end(), 0L) == static_cast<long>(i + 1) * threads);
    }
    for (const long count : calls) CHECK(count == kRuns);
  }
}

TEST_CASE("no thread passes a barrier before all have come, whichever way they wait") {
  struct Case {
    int spins, yields;
  };
  for (const Case how : {Case{100, 2000}, Case{0, 0}, Case{0, 50}, Case{50, 0}}) {  // {0, 0}: every wait is a sleep
    CAPTURE(how.spins);
    CAPTURE(how.yields);
    ft::WorkerPoolOptions options = pool_of(3);
    options.spins_before_yield = how.spins;
    options.yields_before_sleep = how.yields;
    ft::WorkerPool pool(options);
    std::vector<int> phase(3, 0);
    std::atomic<int> early{0};
    constexpr int kPhases = 300;
    for (int run = 0; run < 5; ++run) {
      pool.run([&](int worker, int) {
        for (int i = 0; i < kPhases; ++i) {
          ++phase[static_cast<size_t>(worker)];
          pool.barrier();
          for (const int other : phase) {
            if (other != run * kPhases + i + 1) early.fetch_add(1);
          }
          pool.barrier();
        }
      });
    }
    CHECK(early.load() == 0);
  }
}

TEST_CASE("the caller is worker 0, and one thread means a direct call") {
  const std::thread::id caller = std::this_thread::get_id();
  ft::WorkerPool one(pool_of(1));
  one.run([&](int worker, int workers) {
    CHECK(std::this_thread::get_id() == caller);
    CHECK(worker == 0);
    CHECK(workers == 1);
    one.barrier();
  });
  CHECK(total(one.wait_histogram()) == 0);
  ft::WorkerPool two(pool_of(2));
  std::thread::id ids[2];
  two.run([&](int worker, int) { ids[worker] = std::this_thread::get_id(); });
  CHECK(ids[0] == caller);
  CHECK(ids[1] != caller);
}

TEST_CASE("a pool may be used from inside another pool's task") {
  ft::WorkerPool outer(pool_of(2));
  ft::WorkerPool inner(pool_of(2));
  std::atomic<int> calls{0};
  outer.run([&](int worker, int) {
    if (worker == 1) inner.run([&](int, int) { calls.fetch_add(1); });
    outer.barrier();
  });
  CHECK(calls.load() == 2);
}

TEST_CASE("denormals are flushed in every worker and the caller gets its own mode back") {
  const volatile float tiny = std::numeric_limits<float>::min();
  const auto half = [&] { return tiny * 0.5f; };
  CHECK(half() > 0);
  for (const int threads : {1, 3}) {
    ft::WorkerPool pool(pool_of(threads));
    std::vector<float> results(static_cast<size_t>(threads), -1.0f);
    pool.run([&](int worker, int) { results[static_cast<size_t>(worker)] = half(); });
    for (const float result : results) CHECK(result == 0.0f);
    CHECK(half() > 0);
  }
}

TEST_CASE("run() and barrier() do not allocate") {
  ft::WorkerPool pool(pool_of(3));
  const long before = allocations.load();
  for (int i = 0; i < 50; ++i) {
    pool.run([&](int, int) { pool.barrier(); });
  }
  CHECK(allocations.load() == before);
}

TEST_CASE("the histogram counts every wait once, long ones as such, and is cleared by a reset") {
  ft::WorkerPool pool(pool_of(3));
  constexpr int kRuns = 20;
  constexpr int kBarriers = 5;
  for (int i = 0; i < kRuns; ++i) {
    pool.run([&](int, int) {
      for (int b = 0; b < kBarriers; ++b) pool.barrier();
    });
  }
  // The last to reach a barrier does not wait; the caller waits for the end of each run.
  CHECK(total(pool.wait_histogram()) == kRuns * (kBarriers * (3 - 1) + 1));
  pool.reset_wait_histogram();
  CHECK(total(pool.wait_histogram()) == 0);
  CHECK(pool.wait_histogram().over_1ms == 0);
  pool.run([&](int worker, int) {
    if (worker == 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.barrier();
  });
  const ft::WaitHistogram histogram = pool.wait_histogram();
  CHECK(histogram.over_1ms >= 2);
  uint64_t from_4ms = 0;  // bucket 12 begins at 4096 us
  for (size_t i = 12; i < histogram.count.size(); ++i) from_4ms += histogram.count[i];
  CHECK(from_4ms >= 2);
}

TEST_CASE("an idle pool uses no CPU") {
  ft::WorkerPool pool(pool_of(4));
  pool.run([](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // all workers are asleep by now
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(cpu_seconds() - before < 0.02);
}

TEST_CASE("the number of threads is limited") {
  for (const int threads : {0, -1, 1025}) CHECK_THROWS_AS(ft::WorkerPool(pool_of(threads)), ft::Error);
  ft::WorkerPool largest(pool_of(1024));
  std::atomic<int> calls{0};
  largest.run([&](int, int) { calls.fetch_add(1); });
  CHECK(calls.load() == 1024);
}

TEST_CASE("workers run where they are pinned; a CPU that does not exist is one clear error") {
  const std::vector<int> cpus = ft::affinity_cpus();
  ft::WorkerPoolOptions options = pool_of(static_cast<int>(cpus.size()) + 2);  // pinning starts over
  options.cpus = cpus;
  ft::WorkerPool pool(options);
  std::vector<int> seen(static_cast<size_t>(options.threads), -1);
  pool.run([&](int worker, int) { seen[static_cast<size_t>(worker)] = ::sched_getcpu(); });
  for (size_t i = 1; i < seen.size(); ++i) CHECK(seen[i] == cpus[i % cpus.size()]);
  const std::vector<int> absent = {0, 1023};
  options.threads = 2;
  options.cpus = absent;
  try {
    ft::WorkerPool refused(options);
    FAIL("pinned to a CPU that is not there");
  } catch (const ft::Error& error) {
    CHECK(std::string(error.what()).find("'1023'") != std::string::npos);
  }
}

TEST_CASE("a caller on a worker's CPU is moved to its own and keeps its affinity") {
  const std::vector<int> cpus = ft::affinity_cpus();
  if (cpus.size() < 2) {
    MESSAGE("skipped: one CPU");
    return;
  }
  ft::WorkerPoolOptions options = pool_of(2);
  options.cpus = cpus;
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  int moved = 0;
  for (int i = 0; i < 10 && moved == 0; ++i) {  // the kernel may put it back at once on a busy machine
    ft::WorkerPool pool(options);
    cpu_set_t worker_cpu;
    CPU_ZERO(&worker_cpu);
    CPU_SET(static_cast<size_t>(cpus[1]), &worker_cpu);
    REQUIRE(::sched_setaffinity(0, sizeof worker_cpu, &worker_cpu) == 0);
    REQUIRE(::sched_getcpu() == cpus[1]);
    REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
    int cpu = -1;
    pool.run([&](int worker, int) {
      if (worker == 0) cpu = ::sched_getcpu();
    });
    if (cpu == cpus[0]) ++moved;
  }
  CHECK(moved > 0);
  cpu_set_t after;
  REQUIRE(::sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after) != 0);
}
