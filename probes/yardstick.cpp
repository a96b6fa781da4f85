#include "probes/yardstick.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/host/worker_pool.h"

namespace ft {
namespace {

constexpr size_t kCodes = 4096;
constexpr int kRepeats = 12;  // of the data in a pass: 49152 products
constexpr size_t kTeamPasses = 3;
constexpr int kSpins = 10000;  // some 20 us; where threads outnumber CPUs the one that is awaited needs this one's

__attribute__((noinline, aligned(64))) void pass(const uint8_t* codes, const float* values, const float* table,
                                                 float& sum) {
  // Eight sums that do not wait for each other, each in a register.
  float a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
  const auto add = [&](float& chain, size_t at) {
    chain = chain * 0.5f + (table[codes[at] & 15u] + table[codes[at] >> 4u]) * values[at];
  };
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (size_t i = 0; i < kCodes; i += 8) {
      add(a, i), add(b, i + 1), add(c, i + 2), add(d, i + 3);
      add(e, i + 4), add(f, i + 5), add(g, i + 6), add(h, i + 7);
    }
  }
  sum = sum * 0.5f + (((a + b) + (c + d)) + ((e + f) + (g + h)));
}

}  // namespace

struct alignas(4096) Yardstick::Data {
  float values[kCodes];
  float table[16];
  uint8_t codes[kCodes];
  float sum;  // carried on, so that no pass can be left out
};

Yardstick::~Yardstick() = default;

Yardstick::Yardstick() : data_(std::make_unique<Data>()) {
  Random random(1);
  for (uint8_t& code : data_->codes) code = static_cast<uint8_t>(random.below(256));
  for (float& value : data_->values) value = static_cast<float>(random.normal());
  for (float& entry : data_->table) entry = static_cast<float>(random.normal());
}

double Yardstick::seconds() {
  pass(data_->codes, data_->values, data_->table, data_->sum);
  const double start = now_seconds();
  pass(data_->codes, data_->values, data_->table, data_->sum);
  return now_seconds() - start;
}

// A line of its own for what each thread writes.
struct TeamYardstick::State {
  struct alignas(64) Times {
    std::array<double, kTeamPasses> seconds{};
  };
  State(int threads, std::span<const int> cpus)
      : pool({.threads = threads, .cpus = cpus, .spins_before_yield = 0, .yields_before_sleep = 0}),
        yardsticks(static_cast<size_t>(threads)),
        times(static_cast<size_t>(threads)) {}

  // A barrier that sleeps lets threads begin up to 50 us apart, longer than a pass takes.
  void meet(int64_t threads) {
    const int64_t place = arrived.fetch_add(1, std::memory_order_acq_rel);
    const int64_t all = (place / threads + 1) * threads;
    for (int spins = 0; arrived.load(std::memory_order_acquire) < all; ++spins) {
      if (spins >= kSpins) sched_yield();
    }
  }

  WorkerPool pool;
  std::vector<Yardstick> yardsticks;
  std::vector<Times> times;
  std::atomic<int64_t> arrived{0};
};

TeamYardstick::TeamYardstick(int threads, std::span<const int> cpus) : state_(std::make_unique<State>(threads, cpus)) {}

TeamYardstick::~TeamYardstick() = default;

double TeamYardstick::seconds() {
  State& state = *state_;
  state.pool.run([&](int worker, int workers) {
    const auto own = static_cast<size_t>(worker);
    for (double& seconds : state.times[own].seconds) {
      state.meet(workers);
      seconds = state.yardsticks[own].seconds();
    }
  });
  double fastest = std::numeric_limits<double>::infinity();
  for (size_t pass = 0; pass < kTeamPasses; ++pass) {
    double slowest = 0;
    for (const State::Times& times : state.times) slowest = std::max(slowest, times.seconds[pass]);
    fastest = std::min(fastest, slowest);
  }
  return fastest;
}

OtherLoad::OtherLoad() : start_(read()) {}

double OtherLoad::share() const {
  const Reading now = read();
  const double all = now.all - start_.all;
  if (all <= 0) return 0;
  return std::clamp((now.busy - start_.busy - (now.own - start_.own)) / all, 0.0, 1.0);
}

// /proc/stat, a line per CPU: name, then ticks of user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
OtherLoad::Reading OtherLoad::read() {
  constexpr int kIdle = 3, kWaiting = 4, kColumns = 8;
  Reading reading;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return reading;
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int cpu = 0;
    if (line[3] == ' ' || !(words >> cpu) || cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &usable)) continue;
    double ticks = 0;
    for (int column = 0; column < kColumns && words >> ticks; ++column) {
      reading.all += ticks / ticks_per_second;
      if (column != kIdle && column != kWaiting) reading.busy += ticks / ticks_per_second;
    }
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return {};
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  reading.own = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return reading;
}

}  // namespace ft
