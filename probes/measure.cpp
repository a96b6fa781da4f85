#include "probes/measure.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
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

Series yardstick_series(const std::string& of) {
  Series one;
  one.samples.name = std::string(kYardstickPrefix) + of;
  one.samples.unit = "us";
  one.samples.at = {{"version", kYardstickVersion}};
  one.sample = [yardstick = std::make_shared<Yardstick>()] { return yardstick->seconds() * 1e6; };
  return one;
}

// Enough rounds in which nothing else kept the machine from its speed, as far as its own best tells.
bool is_undisturbed(const std::vector<double>& yardstick, int rounds) {
  const double best = *std::min_element(yardstick.begin(), yardstick.end());
  const auto undisturbed = std::count_if(yardstick.begin(), yardstick.end(),
                                         [best](double seconds) { return seconds <= kUndisturbed * best; });
  return undisturbed >= rounds;
}

}  // namespace

void measure(std::vector<Series>& series, const MeasureOptions& options) {
  const auto clock = options.clock ? options.clock : std::function<double()>(now_seconds);
  const double start = clock();
  const ProbeBudget& budget = options.budget;
  std::string reason;
  int rounds = 0;                   // kept ones
  std::optional<Series> yardstick;  // joins the others at the end: enough() and callers know theirs by index
  std::optional<OtherLoad> load;
  if (options.yardstick && !series.empty()) {
    yardstick = yardstick_series(series.front().samples.name);
    load.emplace();
  }
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
      } else {
        ++one.samples.discarded;
      }
    }
    if (!reason.empty()) break;
    if (yardstick && kept) yardstick->samples.values.push_back(yardstick->sample());
    rounds += kept ? 1 : 0;
    const double spent = clock() - start;
    const bool enough = kept && rounds >= budget.min_samples && options.enough && options.enough(rounds);
    const bool all =
        rounds >= budget.max_samples && (!yardstick || rounds >= kDisturbedRounds * budget.max_samples ||
                                         is_undisturbed(yardstick->samples.values, budget.max_samples / 2));
    const bool over = spent >= budget.seconds && rounds >= budget.min_samples;
    if (all || enough) {
      reason = "samples";
    } else if (over || (spent >= kOverrun * budget.seconds && rounds >= 1)) {
      reason = "time";
    }
  }
  if (yardstick) {
    yardstick->samples.at["others_share"] = load->share();
    series.push_back(std::move(*yardstick));
  }
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
