// The one loop that takes samples: several series interleaved, so that a drift of the machine meets all of them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "probes/probe.h"

namespace ft {

// One series: `samples` says what it is, `sample` takes one value in its unit. May throw Error.
struct Series {
  Samples samples;
  std::function<double()> sample;
};

inline constexpr std::string_view kYardstickPrefix = "yardstick.";
inline constexpr std::string_view kTeamYardstickPrefix = "yardstick.all_threads.";

inline constexpr double kUndisturbed = 1.08;  // a yardstick's time, against its best
inline constexpr int kDisturbedRounds = 16;
inline constexpr double kReadingSeconds = 10e-3;  // between two readings of the team's yardstick, within a round too

struct MeasureOptions {
  ProbeBudget budget;
  int discard_rounds = 1;  // first rounds, which warm caches, pages and clocks
  // Every round takes the series in another order, reproducible for a seed: where a machine changes its speed within a
  // round, it is not always the same ones that meet it. Empty: the given order.
  std::optional<uint64_t> shuffle_seed;
  std::function<bool()> interrupted;
  std::function<bool(int rounds)> enough;  // asked after every kept round, from min_samples on; empty: never
  std::function<double()> clock;           // seconds; empty: now_seconds
  // One more series at the end, kYardstickPrefix + the first one's name, in "us": a Yardstick after every round, and
  // how busy others kept the CPUs meanwhile, as at["others_share"]. Where a series has at["threads"] above 1, another
  // one after it, kTeamYardstickPrefix + the first one's name, with the most of them as its at["threads"]: the slowest
  // reading of a TeamYardstick in every round.
  bool yardstick = false;
  // Of the Yardstick after every sample, not only after every round; of a round the fastest counts. For samples that
  // are the fastest of some themselves: one pass would be slow where they found a free moment.
  int yardstick_passes = 0;
  std::vector<int> cpus;  // that those threads are pinned to (WorkerPoolOptions::cpus)
};

// Rounds over all series, one sample each: value i of every series is of round i. Stops
//   after max_samples rounds, or when enough() says so:                "samples"
//     with yardsticks only when they were undisturbed in half as many, or after kDisturbedRounds times as many
//   when budget.seconds are over and min_samples rounds are taken:     "time"
//   when twice budget.seconds are over and one round is taken:         "time", reduced
//   when interrupted() says so, even within a round:                   "interrupted", reduced
// Fewer than min_samples values mark a series reduced.
void measure(std::vector<Series>& series, const MeasureOptions& options);
std::vector<Samples> samples_of(std::vector<Series>& series);

MeasureOptions measure_options(const ProbeContext& context, double share_of_budget);

// Seconds that `value` of `samples` stands for, by its unit: "us", "GB/s" (needs at["bytes"]), "tok/s" (at["batch"]).
double sample_seconds(const Samples& samples, double value);

}  // namespace ft
