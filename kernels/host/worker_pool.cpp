// How threads wait, and the measurements behind the defaults (taken with a prototype of these waits; the tests measure
// this file). Machines: 16 cores (Xeon, one node, Linux 6.18, virtual machine, otherwise idle) and 2 of these cores;
// threads pinned; medians of an empty run() and of a phase between two barriers. "N+1": one thread too many, time over
// that of N. "two": two pools on the same cores, sum over one alone.
//
//   waits                             empty run(), us:      phase 10 / 60 / 200 us             4 other busy threads
//                                     at once   100 us      N+1                    two         on the 16 cores:
//                                               later                                          empty run(), us
//   spin for ever                     1.9       2.0         437 / 74 / 23          0.00-0.08   -
//   100 spins, sleep                  27        28          1.5 / 1.5 / 1.6        0.92-1.00   29
//   100 spins, 2000 yields, sleep     1.8       2.1         1.9 / 1.6 / 1.6        0.89-1.02   4000
//   the same, backing off (500 us)    1.6       1.8         1.8 / 1.5 / 1.6        0.91-1.02   9
//   the same, backing off (10 us)     1.8       2.0         2.1 / 1.9 / 1.7        0.40-0.87   11
//   500 spins, 2000 yields, 10 us     2.1       2.3         3.0 / 2.2 / 1.9        0.94        -
//
// On 2 cores: empty run() 0.6 us, barrier 0.3 us, N+1 1.5 / 1.3 / 1.3 (the even split alone makes 1.33: one core has
// two of three threads), two pools 1.0.
//   - Spins: a pause is 13 to 22 ns here and up to 60 ns on others, so 100 are 1.3 to 6 us. More only steals from the
//     thread that is waited for when it shares the core.
//   - Yields: 0.3 us each when nobody else wants the core, so 2000 answer within 0.6 ms nearly as fast as spinning,
//   where
//     a futex wake-up costs 25 us on 16 threads.
//   - Backing off: a yield to a busy thread of somebody else costs a scheduler slice, 3 to 4 ms, at every wait. A yield
//     that took 500 us met such a thread (pools among themselves take turns far faster), and the thread sleeps at its
//     next 1, 2, 4, .. 1024 waits before it yields again. A sleeper keeps its share and preempts when it is woken.
//   - The caller is moved off a worker's CPU (leave_worker_cpu): left there, a pool of 2 took 15 us instead of 6 us a
//     phase, and one of 16 that spins 8 ms.
#include "kernels/host/worker_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/host/flush_denormals.h"

namespace ft {
namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kLineBytes = 64;
constexpr double kContendedYieldSeconds = 500e-6;
constexpr int kMaxBackoffWaits = 1024;
constexpr double kMovePeriodSeconds = 2e-3;  // a move costs some 10 us: at most 1 % of the time

// How one thread waits.
struct Waiter {
  int spins = 0;
  int yields = 0;
  int waits_without_yields = 0;  // to come
  int backoff = 0;               // how many after the last contended yield
};

// A counter that threads wait on until it changes. Waits return at once, spin, yield, or sleep, in this order.
class alignas(kLineBytes) WaitWord {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  // seq_cst on both sides of value and sleepers: a sleeper either sees the new value or is seen here.
  void store_and_wake(uint32_t value) {
    value_.store(value, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      ::syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
  }

  void wait_while(uint32_t old, Waiter& waiter) {
    for (int i = 0; i < waiter.spins; ++i) {
      if (load() != old) return;
      _mm_pause();
    }
    if (waiter.waits_without_yields > 0) {
      --waiter.waits_without_yields;
    } else if (yield_while(old, waiter)) {
      return;
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == old) {
      ::syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  // True when the value changed. A yield that takes long gave the core to somebody. Then the next waits sleep instead,
  // twice as many each time: on Linux with EEVDF a yield forfeits a slice of the yielder's share, a sleeper keeps it.
  bool yield_while(uint32_t old, Waiter& waiter) {
    double before = now_seconds();
    for (int i = 0; i < waiter.yields; ++i) {
      if (load() != old) {
        waiter.backoff /= 2;
        return true;
      }
      ::sched_yield();
      const double after = now_seconds();
      if (after - before > kContendedYieldSeconds) {
        waiter.backoff = std::clamp(2 * waiter.backoff, 1, kMaxBackoffWaits);
        waiter.waits_without_yields = waiter.backoff;
        break;
      }
      before = after;
    }
    return load() != old;
  }

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

constexpr int kBuckets = static_cast<int>(std::tuple_size_v<decltype(WaitHistogram::count)>);

int bucket_of(double seconds) {
  const double microseconds = seconds * 1e6;
  if (microseconds < 2) return 0;
  const auto whole = static_cast<uint64_t>(std::min(microseconds, 1e12));
  return std::min(static_cast<int>(std::bit_width(whole)) - 1, kBuckets - 1);
}

// One thread's waiting, on lines of its own. Counts are added to by its thread, read and cleared by any.
struct alignas(kLineBytes) ThreadWaits {
  Waiter waiter;
  std::array<std::atomic<uint64_t>, kBuckets> count{};
  std::atomic<uint64_t> over_1ms{0};
  double total_seconds = 0;  // read by its thread alone

  void add(double seconds) {
    total_seconds += seconds;
    count[static_cast<size_t>(bucket_of(seconds))].fetch_add(1, std::memory_order_relaxed);
    if (seconds > 1e-3) over_1ms.fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace

struct WorkerPool::State {
  int threads = 1;

  // Written by the caller before `started` changes, read by workers after.
  Task task = nullptr;
  void* context = nullptr;
  bool stopping = false;
  bool running = false;

  WaitWord started;   // number of the run that workers may begin
  WaitWord finished;  // number of the last run that all workers have ended
  WaitWord passed;    // number of barriers passed
  alignas(kLineBytes) std::atomic<int> working{0};
  alignas(kLineBytes) std::atomic<int> arrived{0};
  int home_cpu = -1;  // where the caller belongs; -1: workers are not pinned, or there are too few CPUs
  cpu_set_t worker_cpus{};
  double next_move_seconds = 0;
  std::vector<ThreadWaits> waits;
  std::vector<std::thread> workers;

  void work(int worker);
  void stop();
  void leave_worker_cpu();
  void timed_wait(WaitWord& word, uint32_t old, Idle idle, void* context);
};

namespace {
// Which element of waits the running thread adds to.
thread_local int current_worker = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): per thread
}  // namespace

void WorkerPool::State::timed_wait(WaitWord& word, uint32_t old, Idle idle, void* context) {
  ThreadWaits& mine = waits[static_cast<size_t>(current_worker)];
  if (word.load() != old) {
    mine.add(0);
    return;
  }
  const double begin = now_seconds();
  while (word.load() == old && idle(context)) {
  }
  word.wait_while(old, mine.waiter);
  mine.add(now_seconds() - begin);
}

void WorkerPool::State::work(int worker) {
  const FlushDenormals flush;
  current_worker = worker;
  for (uint32_t run = 0;; ++run) {
    started.wait_while(run, waits[static_cast<size_t>(worker)].waiter);
    if (stopping) return;
    task(context, worker, threads);
    if (working.fetch_sub(1, std::memory_order_acq_rel) == 1) finished.store_and_wake(run + 1);
  }
}

// A caller that the kernel put on a pinned worker's CPU would stay there for tens of milliseconds while a core idles:
// two threads that yield to each other look content to the load balancer (measured: 15 us instead of 6 us a phase).
// It is moved to its own CPU and its affinity given back, so that it stays free and its children inherit nothing.
void WorkerPool::State::leave_worker_cpu() {
  const int cpu = ::sched_getcpu();
  if (home_cpu < 0 || cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(static_cast<size_t>(cpu), &worker_cpus)) return;
  const double now = now_seconds();
  if (now < next_move_seconds) return;
  next_move_seconds = now + kMovePeriodSeconds;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (!CPU_ISSET(static_cast<size_t>(home_cpu), &allowed)) return;
  cpu_set_t home;
  CPU_ZERO(&home);
  CPU_SET(static_cast<size_t>(home_cpu), &home);
  if (::sched_setaffinity(0, sizeof home, &home) == 0) ::sched_setaffinity(0, sizeof allowed, &allowed);
}

void WorkerPool::State::stop() {
  stopping = true;
  started.store_and_wake(started.load() + 1);
  for (std::thread& worker : workers) worker.join();
  workers.clear();
}

namespace {

void pin_thread(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  const int code = ::pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
  if (code != 0) {
    throw Error(ErrorKind::kFailed,
                {.what = std::string("cannot pin a worker thread to a CPU (") + std::strerror(code) + ")",
                 .value = std::to_string(cpu),
                 .allowed = "a CPU in this process's affinity mask"});
  }
}

void place_caller(const WorkerPoolOptions& options, int& home_cpu, cpu_set_t& worker_cpus) {
  CPU_ZERO(&worker_cpus);
  const auto threads = static_cast<size_t>(options.threads);
  if (threads < 2 || options.cpus.size() < threads) return;
  for (const int cpu : options.cpus.subspan(1, threads - 1)) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &worker_cpus);
  }
  const int home = options.cpus[0];
  if (home >= 0 && home < CPU_SETSIZE && !CPU_ISSET(static_cast<size_t>(home), &worker_cpus)) home_cpu = home;
}

}  // namespace

WorkerPool::WorkerPool(const WorkerPoolOptions& options) : state_(std::make_unique<State>()) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    throw Error(ErrorKind::kUsage, {.what = "worker threads out of range",
                                    .value = std::to_string(options.threads),
                                    .allowed = "1 to " + std::to_string(kMaxThreads)});
  }
  State& s = *state_;
  s.threads = options.threads;
  s.waits = std::vector<ThreadWaits>(static_cast<size_t>(s.threads));
  for (ThreadWaits& thread : s.waits) {
    thread.waiter.spins = std::max(options.spins_before_yield, 0);
    thread.waiter.yields = std::max(options.yields_before_sleep, 0);
  }
  place_caller(options, s.home_cpu, s.worker_cpus);
  s.workers.reserve(static_cast<size_t>(s.threads - 1));
  try {
    for (int i = 1; i < s.threads; ++i) {
      s.workers.emplace_back([&s, i] { s.work(i); });
      if (!options.cpus.empty()) {
        pin_thread(s.workers.back(), options.cpus[static_cast<size_t>(i) % options.cpus.size()]);
      }
    }
  } catch (const std::system_error& error) {
    const size_t started = s.workers.size();
    s.stop();
    throw Error(ErrorKind::kFailed, {.what = std::string("cannot start worker threads (") + error.what() + ")",
                                     .value = std::to_string(options.threads),
                                     .allowed = "at most " + std::to_string(started + 1) + " started here",
                                     .action = "use fewer threads or raise the limit on processes (ulimit -u)"});
  } catch (...) {
    s.stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { state_->stop(); }

int WorkerPool::threads() const { return state_->threads; }

void WorkerPool::run(Task task, void* context) {
  State& s = *state_;
  FT_CHECK(!s.running);
  s.running = true;
  const FlushDenormals flush;
  if (s.threads == 1) {
    task(context, 0, 1);
    s.running = false;
    return;
  }
  s.leave_worker_cpu();
  const int outer_worker = std::exchange(current_worker, 0);  // another pool's, when its task calls this one
  s.task = task;
  s.context = context;
  s.working.store(s.threads - 1, std::memory_order_relaxed);
  const uint32_t run = s.started.load();
  s.started.store_and_wake(run + 1);
  task(context, 0, s.threads);
  s.timed_wait(
      s.finished, run, [](void*) { return false; }, nullptr);
  current_worker = outer_worker;
  s.running = false;
}

void WorkerPool::barrier() {
  barrier([](void*) { return false; }, nullptr);
}

void WorkerPool::barrier(Idle idle, void* context) {
  State& s = *state_;
  if (s.threads == 1) return;
  const uint32_t passed = s.passed.load();
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == s.threads) {
    s.arrived.store(0, std::memory_order_relaxed);
    s.passed.store_and_wake(passed + 1);
    return;
  }
  s.timed_wait(s.passed, passed, idle, context);
}

double WorkerPool::caller_wait_seconds() const { return state_->waits[0].total_seconds; }

WaitHistogram WorkerPool::wait_histogram() const {
  WaitHistogram sum;
  for (const ThreadWaits& counts : state_->waits) {
    for (size_t i = 0; i < sum.count.size(); ++i) sum.count[i] += counts.count[i].load(std::memory_order_relaxed);
    sum.over_1ms += counts.over_1ms.load(std::memory_order_relaxed);
  }
  return sum;
}

void WorkerPool::reset_wait_histogram() {
  for (ThreadWaits& counts : state_->waits) {
    for (auto& count : counts.count) count.store(0, std::memory_order_relaxed);
    counts.over_1ms.store(0, std::memory_order_relaxed);
  }
}

}  // namespace ft
