// A fixed set of threads that run one function together. The caller is one of them.
//
// Thread rule: one run() at a time, from one thread. run() and barrier() allocate, lock and log nothing. Waits spin for
// a bounded number of pauses, then yield, then sleep on a futex: one runnable spinner too many costs a scheduler tick
// at every barrier otherwise (measured: 0.17 ms steps become 8 ms), so an oversubscribed pool must stay near its speed.
// A thread whose yields give its core to others sleeps instead for a while.
// Every worker runs with FlushDenormals set, the caller for the time of run().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace ft {

struct WorkerPoolOptions {
  int threads = 1;  // the calling thread included
  // OS index to pin thread i (i >= 1) to, from CpuBudget::pinning; starts over when threads are more. Empty: not
  // pinned, and then the kernel may leave two threads on one core. The caller is never pinned, but run() moves it to
  // cpus[0] when it sits on a worker's CPU.
  std::span<const int> cpus;
  int spins_before_yield = 100;  // see worker_pool.cpp for the measurements behind the defaults
  int yields_before_sleep = 2000;
};

struct WaitHistogram {
  // Bucket i counts waits of [2^i, 2^(i+1)) microseconds, bucket 0 everything under 2 us, the last one the rest.
  std::array<uint64_t, 16> count{};
  uint64_t over_1ms = 0;  // waits long enough to say that something else holds the core
};

class WorkerPool {
 public:
  explicit WorkerPool(const WorkerPoolOptions& options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const;

  using Task = void (*)(void* context, int worker, int workers);
  void run(Task task, void* context);

  // run() for any callable f(int worker, int workers). f must not throw.
  template <class F>
  void run(F&& f) {
    run([](void* context, int worker,
           int workers) { (*static_cast<std::remove_reference_t<F>*>(context))(worker, workers); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

  // All threads of the running task wait for each other. Only inside a task.
  void barrier();

  // The same, with something to do meanwhile: while others are on their way, idle() is called until it returns false.
  // A call must be short (some 100 ns), since those who wait for this thread wait for its end.
  using Idle = bool (*)(void* context);
  void barrier(Idle idle, void* context);
  template <class F>
  void barrier(F&& idle) {
    barrier([](void* context) { return (*static_cast<std::remove_reference_t<F>*>(context))(); },
            const_cast<void*>(static_cast<const void*>(&idle)));
  }

  // How long the thread that calls run() has waited for the others, in barriers and at the end of run(), since the
  // start. Read by that thread.
  double caller_wait_seconds() const;
  WaitHistogram wait_histogram() const;  // sums over threads since the start or the last reset
  void reset_wait_histogram();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The half-open part of [0, count) that `worker` of `workers` takes: contiguous, sizes differ by at most one.
struct Range {
  int64_t begin = 0, end = 0;
};
constexpr Range split_range(int64_t count, int worker, int workers) {
  return {count * worker / workers, count * (worker + 1) / workers};
}

}  // namespace ft
