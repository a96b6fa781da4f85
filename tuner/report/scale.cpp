#include "tuner/report/scale.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace ft {
namespace {

// The smallest of 1, 2, 5 times a power of ten that is at least `least`.
double nice_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= least * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

double next_nice(double step) { return nice_step(step * 1.5); }

constexpr double kLogRoom = 1.1;  // of a logarithmic axis beyond the data, on either side

bool within(double value, double low, double high) { return value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9); }

// Of [low, high]: digits 1, 2, 5 of every decade.
std::vector<Tick> fine_ticks(double low, double high) {
  std::vector<Tick> ticks;
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int decade = static_cast<int>(std::floor(std::log10(low))); decade <= last; ++decade) {
    const double power = std::pow(10.0, decade);
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (within(digit * power, low, high)) ticks.push_back({digit * power, tick_label(digit * power, power)});
    }
  }
  return ticks;
}

// Of [low, high]: every n-th decade.
std::vector<Tick> decade_ticks(double low, double high, int every) {
  std::vector<Tick> ticks;
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int decade = static_cast<int>(std::floor(std::log10(low))); decade <= last; ++decade) {
    const double power = std::pow(10.0, decade);
    if (decade % every == 0 && within(power, low, high)) ticks.push_back({power, tick_label(power, power)});
  }
  return ticks;
}

// Of [low, high]: two to five multiples of a nice step.
std::vector<Tick> round_ticks(double low, double high) {
  for (double step = nice_step(high - low);; step = nice_step(step / 2.6)) {
    std::vector<Tick> ticks;
    for (double i = std::ceil(low / step); i * step <= high; ++i)
      ticks.push_back({i * step, tick_label(i * step, step)});
    if (ticks.size() >= 2) return ticks;
  }
}

}  // namespace

double Scale::fraction(double value) const {
  if (log) return std::log(value / low) / std::log(high / low);
  return (value - low) / (high - low);
}

std::string tick_label(double value, double step) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  const auto whole = [](double x) { return std::abs(x - std::round(x)) < 1e-6; };
  if (size >= 1e6 && whole(value / 1e5) && step >= 1e5 * (1 - 1e-9)) {
    return fmt::format("{:g}M", std::round(value / 1e5) / 10);
  }
  if (size >= 1e4 && whole(value / 100) && step >= 100 * (1 - 1e-9)) {
    return fmt::format("{:g}k", std::round(value / 100) / 10);
  }
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  return fmt::format("{:.{}f}", value, decimals);
}

Scale linear_scale(double low, double high, int max_ticks) {
  FT_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high && max_ticks >= 3);
  if (low == high) {
    const double room = low == 0 ? 1 : std::abs(low) / 2;
    high += room;
    if (low != 0) low -= room;
  }
  double step = nice_step((high - low) / (max_ticks - 1));
  const auto first_of = [&] { return std::floor(low / step + 1e-9); };
  const auto last_of = [&] { return std::ceil(high / step - 1e-9); };
  while (last_of() - first_of() + 1 > max_ticks) step = next_nice(step);
  Scale scale;
  for (double i = first_of(); i <= last_of(); ++i) scale.ticks.push_back({i * step, tick_label(i * step, step)});
  scale.low = scale.ticks.front().value;
  scale.high = scale.ticks.back().value;
  return scale;
}

Scale log_scale(double low, double high, int max_ticks) {
  FT_CHECK(std::isfinite(low) && std::isfinite(high) && low > 0 && low <= high && max_ticks >= 3);
  Scale scale;
  scale.log = true;
  scale.low = low / kLogRoom;
  scale.high = high * kLogRoom;
  scale.ticks = fine_ticks(scale.low, scale.high);
  for (int every = 1; scale.ticks.size() > static_cast<size_t>(max_ticks); ++every) {
    scale.ticks = decade_ticks(scale.low, scale.high, every);
  }
  if (scale.ticks.size() < 3) scale.ticks = round_ticks(scale.low, scale.high);
  return scale;
}

}  // namespace ft
