#include "profiles/compare_noise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/base/statistics.h"
#include "profiles/rank_test.h"

namespace ft {
namespace {

// At least 8 (kMinComparedSamples), so that a test can speak against a family of 600; more would leave fewer samples to
// be the fastest of.
constexpr size_t kLeastBlocks = 8, kMostBlocks = 10, kSamplesPerBlock = 3;
// A round counts when its yardstick took at most so much of the best of both profiles. On a core that shares its units
// with a busy neighbour (SMT) the yardstick takes 1.2 to 1.4, a kernel 1.4 to 1.5 times as long: no two such rounds are
// alike.
constexpr double kUndisturbed = 1.08;
// The same for series that find free moments, whose times are put right by the yardstick of their round: clocks move in
// steps of 3.5 % and kernel and yardstick with them, one to one; beside a busy neighbour each slows by a share of its
// own.
constexpr double kOwnCore = 1.16;
constexpr double kLoadWeight = 5;  // a worker that waits for its CPU stops all others at the next barrier
// Profiles without a yardstick of all threads: by how much such series of one probe moved, three in four of them at
// most, is what the machine may have done to any of them. A build that makes all of them slower passes for it.
constexpr double kCommonQuantile = 0.75;

double value_at(const Measurement* measurement, const char* key, double otherwise) {
  if (measurement == nullptr) return otherwise;
  const auto found = measurement->at.find(key);
  return found == measurement->at.end() ? otherwise : found->second;
}

int threads_of(const Measurement& measurement) { return static_cast<int>(value_at(&measurement, "threads", 1)); }

// How far NEW's series lies above BASE's, in logarithms; nothing where that cannot be told.
std::optional<double> plain_shift(const std::vector<double>& base, const std::vector<double>& next) {
  if (std::min(base.size(), next.size()) < kMinComparedSamples) return std::nullopt;
  return estimate_shift(fastest_of_blocks(base), fastest_of_blocks(next), kRatioConfidence).estimate;
}

// What the yardsticks of so many threads take at the machine's own speed: the better of the two profiles, each by its
// eighth best value, so that a few odd ones say nothing.
std::map<int, double> best_yardsticks(const Profile& base, const Profile& next) {
  std::map<int, double> best;
  for (const Profile* profile : {&base, &next}) {
    std::map<int, std::vector<double>> all;
    for (const Measurement& m : profile->measurements) {
      if (m.probe != kYardstickProbe) continue;
      const std::vector<double> logs = log_times(m);
      std::vector<double>& values = all[threads_of(m)];
      values.insert(values.end(), logs.begin(), logs.end());
    }
    for (auto& [threads, values] : all) {
      if (values.size() < kMinComparedSamples) continue;
      std::sort(values.begin(), values.end());
      const double value = values[kMinComparedSamples - 1];
      const auto [found, is_new] = best.emplace(threads, value);
      if (!is_new) found->second = std::min(found->second, value);
    }
  }
  return best;
}

}  // namespace

bool finds_free_moments(const Measurement& measurement) { return measurement.at.contains("best_of"); }

std::vector<double> fastest_of_blocks(const std::vector<double>& logs) {
  const size_t blocks = std::clamp(logs.size() / kSamplesPerBlock, kLeastBlocks, kMostBlocks);
  std::vector<double> fastest;
  for (size_t block = 0; block < blocks; ++block) {
    const auto from = logs.begin() + static_cast<std::ptrdiff_t>(block * logs.size() / blocks);
    const auto to = logs.begin() + static_cast<std::ptrdiff_t>((block + 1) * logs.size() / blocks);
    fastest.push_back(*std::min_element(from, to));
  }
  return fastest;
}

double other_load(const NamedSeries& base, const NamedSeries& next) {
  return std::max(value_at(base.yardstick, "others_share", 0), value_at(next.yardstick, "others_share", 0));
}

MachineNoise::MachineNoise(const Profile& base, const Profile& next) : best_(best_yardsticks(base, next)) {}

void MachineNoise::add(const NamedSeries& base, const NamedSeries& next) {
  const auto shift = plain_shift(log_times(*base.measurement), log_times(*next.measurement));
  if (!shift) return;
  if (threads_of(*base.measurement) > 1 && base.measurement->probe != kYardstickProbe) {
    moved_[base.yardstick].push_back(std::abs(*shift));
  }
  if (!base.is_machine) return;
  readings_.push_back({base.name, std::exp(*shift)});
  if (base.measurement->probe != kYardstickProbe) reads_.push_back(std::abs(*shift));
}

Times MachineNoise::undisturbed_times(const NamedSeries& series) const {
  Times times;
  times.logs = log_times(*series.measurement);
  times.rounds = times.logs.size();
  if (series.measurement->probe == kYardstickProbe) return times;
  const bool follows_clock = finds_free_moments(*series.measurement);
  const double allowed = std::log(follows_clock ? kOwnCore : kUndisturbed);
  std::vector<bool> keep(times.rounds, true);
  const auto judge = [&](const Measurement* yardstick) {
    if (yardstick == nullptr) return std::vector<double>();
    std::vector<double> logs = log_times(*yardstick);
    const auto best = best_.find(threads_of(*yardstick));
    if (logs.size() != times.rounds || best == best_.end()) return std::vector<double>();  // cut off within a round
    for (size_t i = 0; i < times.rounds; ++i) {
      if (logs[i] > best->second + allowed) keep[i] = false;
      if (follows_clock) times.logs[i] -= logs[i] - best->second;
    }
    return logs;
  };
  times.yardstick = judge(series.yardstick);
  if (threads_of(*series.measurement) > 1) times.team = judge(series.team);
  for (std::vector<double>* values : {&times.logs, &times.yardstick, &times.team}) {
    if (values->empty()) continue;
    std::vector<double> kept;
    for (size_t i = 0; i < times.rounds; ++i) {
      if (keep[i]) kept.push_back((*values)[i]);
    }
    *values = std::move(kept);
  }
  return times;
}

double MachineNoise::common_shift(const NamedSeries& base) const {
  const auto moved = moved_.find(base.yardstick);
  return moved == moved_.end() ? 0 : quantile(moved->second, kCommonQuantile);
}

// A neighbour that slows the yardstick in some rounds takes cache, memory and links in others, where the yardstick does
// not see it: what all rounds lost on average is what those that were kept may have lost.
double MachineNoise::unseen(const NamedSeries& series) const {
  double most = 0;
  for (const Measurement* yardstick : {series.yardstick, series.team}) {
    if (yardstick == nullptr || (yardstick == series.team && threads_of(*series.measurement) == 1)) continue;
    const std::vector<double> logs = log_times(*yardstick);
    const auto best = best_.find(threads_of(*yardstick));
    if (logs.empty() || best == best_.end()) continue;
    most = std::max(most, mean(logs) - best->second);
  }
  return most;
}

double MachineNoise::floor(const NamedSeries& base, const NamedSeries& next, const Times& a, const Times& b) const {
  // Their times have none of it any more.
  if (finds_free_moments(*base.measurement)) return 0;
  const double yardstick = std::abs(plain_shift(a.yardstick, b.yardstick).value_or(0));
  const double team = std::abs(plain_shift(a.team, b.team).value_or(0));
  const double load = kLoadWeight * std::max(0.0, other_load(base, next) - kLoadNotSeen);
  const double reads = reads_.empty() ? 0 : median(reads_);
  const bool without_team = a.team.empty() || b.team.empty();
  const double common = threads_of(*base.measurement) > 1 && without_team ? common_shift(base) : 0;
  return std::max({yardstick, team, load, reads, common, unseen(base), unseen(next)});
}

}  // namespace ft
