#include "probes/measure.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "probes/yardstick.h"

namespace ft {
namespace {

constexpr double kOverrun = 2;  // a slow machine may take twice its time to reach min_samples

// Fisher and Yates; std::shuffle differs between standard libraries.
void shuffle(std::vector<size_t>& order, Random random) {
  for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
}

int most_threads(const std::vector<Series>& series) {
  double most = 1;
  for (const Series& one : series) {
    const auto found = one.samples.at.find("threads");
    if (found != one.samples.at.end()) most = std::max(most, found->second);
  }
  return static_cast<int>(most);
}

// What is read beside the series of one measure(), round by round.
class Yardsticks {
 public:
  Yardsticks(const std::vector<Series>& series, const MeasureOptions& options) {
    if (!options.yardstick || series.empty()) return;
    const std::string& first = series.front().samples.name;
    load_.emplace();
    one_ = yardstick_series(std::string(kYardstickPrefix) + first, {{"version", kYardstickVersion}});
    one_->sample = [yardstick = std::make_shared<Yardstick>()] { return yardstick->seconds() * 1e6; };
    passes_ = options.yardstick_passes;
    if (passes_ > 0) one_->samples.at["best_of"] = static_cast<double>(passes_) * static_cast<double>(series.size());
    const int threads = most_threads(series);
    if (threads == 1) return;
    team_ = yardstick_series(std::string(kTeamYardstickPrefix) + first,
                             {{"version", kTeamYardstickVersion}, {"threads", threads}});
    team_->sample = [team = std::make_shared<TeamYardstick>(threads, options.cpus)] { return team->seconds() * 1e6; };
  }

  // After every sample: a machine changes its speed within a round of half a second too.
  void read_within_round(double now) {
    for (int pass = 0; one_ && pass < passes_; ++pass) fastest_ = std::min(fastest_, one_->sample());
    if (!team_ || now - read_at_ < kReadingSeconds) return;
    slowest_ = std::max(slowest_, team_->sample());
    read_at_ = now;
  }
  void end_round(double now) {
    if (one_) one_->samples.values.push_back(passes_ > 0 ? fastest_ : one_->sample());
    fastest_ = std::numeric_limits<double>::infinity();
    if (!team_) return;
    team_->samples.values.push_back(std::max(slowest_, team_->sample()));
    slowest_ = 0;
    read_at_ = now;
  }

  // Enough rounds in which nothing else kept the machine from its speed, as far as its own best tells.
  bool are_undisturbed(int rounds) const {
    if (!one_) return true;
    std::vector<bool> kept(one_->samples.values.size(), true);
    for (const std::optional<Series>* yardstick : {&one_, &team_}) {
      if (!*yardstick) continue;
      const std::vector<double>& values = (*yardstick)->samples.values;
      const double allowed = kUndisturbed * *std::min_element(values.begin(), values.end());
      for (size_t i = 0; i < values.size(); ++i) kept[i] = kept[i] && values[i] <= allowed;
    }
    return std::count(kept.begin(), kept.end(), true) >= rounds;
  }

  void join(std::vector<Series>& series) {
    for (std::optional<Series>* yardstick : {&one_, &team_}) {
      if (!*yardstick) continue;
      (*yardstick)->samples.at["others_share"] = load_->share();
      series.push_back(std::move(**yardstick));
    }
  }

 private:
  static Series yardstick_series(std::string name, std::map<std::string, double> at) {
    Series series;
    series.samples.name = std::move(name);
    series.samples.unit = "us";
    series.samples.at = std::move(at);
    return series;
  }

  std::optional<Series> one_, team_;  // join the others at the end: enough() and callers know theirs by index
  std::optional<OtherLoad> load_;
  int passes_ = 0;
  double fastest_ = std::numeric_limits<double>::infinity();  // in this round
  double slowest_ = 0, read_at_ = 0;                          // of the team, in this round
};

}  // namespace

void measure(std::vector<Series>& series, const MeasureOptions& options) {
  const auto clock = options.clock ? options.clock : std::function<double()>(now_seconds);
  const double start = clock();
  const ProbeBudget& budget = options.budget;
  std::string reason;
  int rounds = 0;  // kept ones
  Yardsticks yardsticks(series, options);
  std::vector<size_t> order(series.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int round = 0; reason.empty(); ++round) {
    const bool kept = round >= options.discard_rounds;
    if (options.shuffle_seed) shuffle(order, Random(*options.shuffle_seed + static_cast<uint64_t>(round)));
    for (const size_t index : order) {
      Series& one = series[index];
      if (options.interrupted && options.interrupted()) {
        reason = "interrupted";
        break;
      }
      const double value = one.sample();
      if (kept) {
        one.samples.values.push_back(value);
        yardsticks.read_within_round(clock());
      } else {
        ++one.samples.discarded;
      }
    }
    if (!reason.empty()) break;
    if (kept) yardsticks.end_round(clock());
    rounds += kept ? 1 : 0;
    const double spent = clock() - start;
    const bool enough = kept && rounds >= budget.min_samples && options.enough && options.enough(rounds);
    const bool all = rounds >= budget.max_samples && (rounds >= kDisturbedRounds * budget.max_samples ||
                                                      yardsticks.are_undisturbed(budget.max_samples / 2));
    const bool over = spent >= budget.seconds && rounds >= budget.min_samples;
    if (all || enough) {
      reason = "samples";
    } else if (over || (spent >= kOverrun * budget.seconds && rounds >= 1)) {
      reason = "time";
    }
  }
  yardsticks.join(series);
  for (Series& one : series) {
    one.samples.stop_reason = reason;
    const bool few = static_cast<int>(one.samples.values.size()) < budget.min_samples;
    one.samples.reduced = one.samples.reduced || few || reason == "interrupted";
  }
}

std::vector<Samples> samples_of(std::vector<Series>& series) {
  std::vector<Samples> result;
  for (Series& one : series) {
    if (!one.samples.values.empty()) result.push_back(std::move(one.samples));
  }
  return result;
}

MeasureOptions measure_options(const ProbeContext& context, double share_of_budget) {
  MeasureOptions options;
  options.budget = context.budget;
  options.budget.seconds *= share_of_budget;
  options.interrupted = context.interrupted;
  options.yardstick = context.yardstick;
  if (context.cpus != nullptr) options.cpus = context.cpus->pinning;
  return options;
}

double sample_seconds(const Samples& samples, double value) {
  const auto coordinate = [&](const char* name) {
    const auto found = samples.at.find(name);
    FT_CHECK(found != samples.at.end());
    return found->second;
  };
  if (samples.unit == "us") return value * 1e-6;
  if (samples.unit == "GB/s") return coordinate("bytes") / (value * 1e9);
  FT_CHECK(samples.unit == "tok/s");
  return coordinate("batch") / value;
}

}  // namespace ft
