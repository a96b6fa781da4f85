// Checked against: the stop rules of probes/measure.h, step by step, with a clock that the test moves.
#include "probes/measure.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <set>

#include "kernels/base/clock.h"
#include "probes/yardstick.h"

namespace ft {
namespace {

// Series that count their calls; every sample takes `seconds` of the test's time.
struct Bench {
  double time = 0;
  int calls = 0;
  std::vector<Series> series;
  MeasureOptions options;

  Bench(int count, double seconds, ProbeBudget budget) {
    for (int i = 0; i < count; ++i) {
      Series one;
      one.samples.name = std::to_string(i);
      one.sample = [this, i, seconds] {
        time += seconds;
        ++calls;
        return 100.0 * i + calls;
      };
      series.push_back(std::move(one));
    }
    options.budget = budget;
    options.clock = [this] { return time; };
  }
};

}  // namespace

TEST_CASE("stops after max_samples; the first round is discarded and counted; series take turns") {
  Bench bench(2, 0.001, {10, 3, 5});
  measure(bench.series, bench.options);
  CHECK(bench.calls == 2 * 6);
  for (const Series& one : bench.series) {
    CHECK(one.samples.values.size() == 5);
    CHECK(one.samples.discarded == 1);
    CHECK(one.samples.stop_reason == "samples");
    CHECK(!one.samples.reduced);
  }
  CHECK(bench.series[0].samples.values == std::vector<double>{3, 5, 7, 9, 11});
  CHECK(bench.series[1].samples.values == std::vector<double>{104, 106, 108, 110, 112});
}

TEST_CASE("stops when the time is over and min_samples are taken") {
  Bench bench(1, 0.3, {1, 3, 31});
  measure(bench.series, bench.options);
  CHECK(bench.series[0].samples.values.size() == 3);  // at 1.2 s; after two samples it was 0.9 s
  CHECK(bench.series[0].samples.stop_reason == "time");
  CHECK(!bench.series[0].samples.reduced);
}

TEST_CASE("a slow machine stops at twice the time with what it has, marked reduced") {
  Bench bench(1, 1.0, {1, 3, 31});
  measure(bench.series, bench.options);
  CHECK(bench.series[0].samples.values.size() == 1);
  CHECK(bench.series[0].samples.reduced);
  Bench slower(1, 100.0, {1, 3, 31});  // one sample is always taken
  measure(slower.series, slower.options);
  CHECK(slower.series[0].samples.values.size() == 1);
  CHECK(slower.series[0].samples.stop_reason == "time");
}

TEST_CASE("an interrupt stops at once and keeps what was measured") {
  Bench bench(2, 0.001, {10, 3, 31});
  bench.options.interrupted = [&] { return bench.calls == 5; };
  measure(bench.series, bench.options);
  CHECK(bench.calls == 5);
  CHECK(bench.series[0].samples.values.size() == 2);
  CHECK(bench.series[1].samples.values.size() == 1);
  CHECK(bench.series[0].samples.stop_reason == "interrupted");
  CHECK(bench.series[0].samples.reduced);
  Bench never(1, 0.001, {10, 3, 31});
  never.options.interrupted = [] { return true; };
  measure(never.series, never.options);
  CHECK(never.calls == 0);
  CHECK(samples_of(never.series).empty());  // no values: no series
}

TEST_CASE("a shuffled round takes every series once, in another order each time, the same for a seed") {
  const auto orders = [](std::optional<uint64_t> seed) {
    Bench bench(6, 0.001, {10, 3, 5});
    std::vector<size_t> taken;
    for (size_t i = 0; i < bench.series.size(); ++i) {
      bench.series[i].sample = [&taken, i] {
        taken.push_back(i);
        return 100.0 * static_cast<double>(i) + static_cast<double>(taken.size());
      };
    }
    bench.options.shuffle_seed = seed;
    measure(bench.series, bench.options);
    for (size_t i = 0; i < bench.series.size(); ++i) {  // the series stay in place: only the turns are shuffled
      CHECK(bench.series[i].samples.values.size() == 5);
      for (const double value : bench.series[i].samples.values) CHECK(static_cast<size_t>(value / 100) == i);
    }
    return taken;
  };
  const std::vector<size_t> taken = orders(7);
  REQUIRE(taken.size() == 6 * 6);
  std::set<std::vector<size_t>> different;
  for (size_t round = 0; round < 6; ++round) {
    const auto begin = taken.begin() + static_cast<int64_t>(6 * round);
    std::vector<size_t> order(begin, begin + 6);
    different.insert(order);
    std::sort(order.begin(), order.end());
    CHECK(order == std::vector<size_t>{0, 1, 2, 3, 4, 5});
  }
  CHECK(different.size() == 6);
  CHECK(orders(7) == taken);
  CHECK(orders(8) != taken);
  CHECK(orders({})[0] == 0);
}

TEST_CASE("a sample in seconds, by its unit") {
  Samples samples;
  samples.unit = "us";
  CHECK(sample_seconds(samples, 250) == doctest::Approx(250e-6));
  samples.unit = "GB/s";
  samples.at["bytes"] = 5e9;
  CHECK(sample_seconds(samples, 10) == doctest::Approx(0.5));
  samples.unit = "tok/s";
  samples.at["batch"] = 4;
  CHECK(sample_seconds(samples, 8) == doctest::Approx(0.5));
}

TEST_CASE("a yardstick takes a sample after every kept round and joins the others at the end") {
  Bench bench(2, 0.001, {10, 3, 5});
  bench.options.yardstick = true;
  bench.options.enough = [&](int) {
    CHECK(bench.series.size() == 2);
    return false;
  };
  measure(bench.series, bench.options);
  REQUIRE(bench.series.size() == 3);
  const Samples& yardstick = bench.series[2].samples;
  CHECK(yardstick.name == "yardstick.0");
  CHECK(yardstick.unit == "us");
  CHECK(yardstick.values.size() == bench.series[0].samples.values.size());
  CHECK(yardstick.at.at("version") == kYardstickVersion);
  CHECK(yardstick.at.at("others_share") >= 0);
  CHECK(yardstick.at.at("others_share") <= 1);
  for (const double us : yardstick.values) CHECK(us > 5);  // 49152 products: 1 us would be 16 a cycle at 3 GHz
  CHECK(bench.series[0].samples.values.size() >= 5);
  CHECK(bench.series[0].samples.values.size() <= 5 * kDisturbedRounds);
}

TEST_CASE("a yardstick of several passes after every sample: the fastest of a round, and how many there were") {
  Bench bench(2, 0.001, {10, 3, 5});
  bench.options.yardstick = true;
  bench.options.yardstick_passes = 6;
  measure(bench.series, bench.options);
  REQUIRE(bench.series.size() == 3);
  const Samples& fastest = bench.series[2].samples;
  CHECK(fastest.at.at("best_of") == 12);
  CHECK(fastest.values.size() == bench.series[0].samples.values.size());
  for (const double us : fastest.values) {
    CHECK(us > 5);
    CHECK(us < 1e5);  // a round without a pass would be infinite
  }
}

TEST_CASE("series of several threads have a yardstick of as many, a value for each round as well") {
  Bench bench(2, 0.001, {10, 3, 5});
  bench.options.yardstick = true;
  bench.series[0].samples.at["threads"] = 1;
  bench.series[1].samples.at["threads"] = 2;
  measure(bench.series, bench.options);
  REQUIRE(bench.series.size() == 4);
  CHECK(bench.series[2].samples.name == "yardstick.0");
  CHECK(!bench.series[2].samples.at.contains("threads"));
  const Samples& team = bench.series[3].samples;
  CHECK(team.name == "yardstick.all_threads.0");
  CHECK(team.unit == "us");
  CHECK(team.at.at("threads") == 2);
  CHECK(team.at.at("version") == kTeamYardstickVersion);
  CHECK(team.values.size() == bench.series[0].samples.values.size());
  for (const double us : team.values) CHECK(us > 5);
  Bench alone(1, 0.001, {10, 3, 5});
  alone.options.yardstick = true;
  alone.series[0].samples.at["threads"] = 1;
  measure(alone.series, alone.options);
  CHECK(alone.series.size() == 2);
}

TEST_CASE("a team of more threads than CPUs comes to its end, and is no faster than one thread alone") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  constexpr int kThreads = 4;
  const int cpus[] = {cpu};
  TeamYardstick team(kThreads, cpus);
  Yardstick alone;
  double fastest_team = 1, fastest_alone = 1;
  for (int i = 0; i < 50; ++i) {
    fastest_team = std::min(fastest_team, team.seconds());
    fastest_alone = std::min(fastest_alone, alone.seconds());
  }
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(fastest_team >= 0.9 * fastest_alone);
  CHECK(fastest_alone > 5e-6);
}

TEST_CASE("the load of others: a busy process is, time of this process is not") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  // Until it is killed; a loop without effects may be left out. NOLINTNEXTLINE(bugprone-infinite-loop)
  while (child == 0) asm volatile("");
  {
    const OtherLoad load;
    usleep(400'000);
    CHECK(load.share() > 0.7);  // all of it, but for ticks and the time until the child runs
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  {
    const OtherLoad load;
    const double start = now_seconds();
    const auto own = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
    const double own_start = own();
    while (now_seconds() - start < 0.4) {
    }
    const double own_share = (own() - own_start) / 0.4;
    CHECK(load.share() < 1 - own_share + 0.15);  // ticks of 10 ms, read twice
  }
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}

}  // namespace ft
