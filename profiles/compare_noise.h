// What the machine did while two profiles were measured, from what they tell about it: yardsticks, plain reads, the
// load of others. Internal to profiles/.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/compare.h"
#include "profiles/compare_series.h"

namespace ft {

// Of a sample that is the fastest of some short bursts on one thread. Other processes keep the CPUs from it only now
// and then, and then another burst is the fastest, and what it takes follows the core's clock, as the yardstick does;
// where threads meet, or samples are long, every sample has its share of both.
bool finds_free_moments(const Measurement& measurement);

// Times of a series, logarithms, without those of rounds in which the machine was not itself; of series that find free
// moments as they would be at the yardstick's best.
struct Times {
  std::vector<double> logs;
  std::vector<double> yardstick, team;  // of the same rounds; empty when the profile has none
  size_t rounds = 0;                    // with the others
};

// One value for each of 8 to 10 stretches of time, the fastest: what other processes, interrupts and neighbours add to
// a time is not the build's. REQUIRES kMinComparedSamples.
std::vector<double> fastest_of_blocks(const std::vector<double>& logs);

// How busy others kept the CPUs, the worse of both; 0 when the profiles do not say.
double other_load(const NamedSeries& base, const NamedSeries& next);
inline constexpr double kLoadNotSeen = 0.02;  // of the CPUs: the system counts in ticks of 10 ms

class MachineNoise {
 public:
  MachineNoise(const Profile& base, const Profile& next);

  // Pairs of series of one name that nothing stands in the way of; all of them before floor() is asked.
  void add(const NamedSeries& base, const NamedSeries& next);

  Times undisturbed_times(const NamedSeries& series) const;
  // By how much the machine alone may have moved the metric; `a` and `b`: its undisturbed times.
  double floor(const NamedSeries& base, const NamedSeries& next, const Times& a, const Times& b) const;
  // Of what no build changes, NEW over BASE: see MachineReading.
  const std::vector<MachineReading>& readings() const { return readings_; }

 private:
  double common_shift(const NamedSeries& base) const;
  double unseen(const NamedSeries& series) const;

  std::map<int, double> best_;  // of the yardsticks, by threads
  std::vector<MachineReading> readings_;
  std::vector<double> reads_;                                // how far STREAM, plain reads and copies moved
  std::map<const Measurement*, std::vector<double>> moved_;  // series of several threads, by BASE's yardstick
};

}  // namespace ft
