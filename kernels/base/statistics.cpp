#include "kernels/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/base/error.h"

namespace ft {
namespace {

double sorted_quantile(std::span<const double> sorted, double fraction) {
  const double rank = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = rank - static_cast<double>(below);
  if (part == 0) return sorted[below];  // also keeps infinities out of 0 * inf
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

// Below kFewest values even the smallest and the largest one hold the median less often than 95 times in 100 (3: 75, 5:
// 94), so the spread of the values says how far it may be.
constexpr size_t kFewest = 6;
// Standard deviation of the median of n normal values over that of their mean, n = 2 .. 5.
constexpr double kMedianOverMean[] = {1.0, 1.160, 1.092, 1.198};

// Student's t distribution in closed form, 1 to 4 degrees of freedom.
double student_cdf(double t, int degrees) {
  const double square = t * t;
  switch (degrees) {
    case 1:
      return 0.5 + std::atan(t) / std::numbers::pi;
    case 2:
      return 0.5 + t / (2 * std::sqrt(2 + square));
    case 3: {
      const double x = t / std::sqrt(3.0);
      return 0.5 + (x / (1 + x * x) + std::atan(x)) / std::numbers::pi;
    }
    default: {
      const double x = 1 + square / 4;
      return 0.5 + 0.375 * t / std::sqrt(x) * (1 - square / (12 * x));
    }
  }
}

double student_quantile(double probability, int degrees) {
  double low = 0, high = 1;
  while (student_cdf(high, degrees) < probability) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (student_cdf(middle, degrees) < probability ? low : high) = middle;
  }
  return high;
}

Interval interval_by_spread(std::span<const double> values, double confidence) {
  const size_t n = values.size();
  const double centre = median(values), average = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - average) * (value - average);
  const double error =
      std::sqrt(squares / static_cast<double>(n - 1) / static_cast<double>(n)) * kMedianOverMean[n - 2];
  const double half = student_quantile((1 + confidence) / 2, static_cast<int>(n) - 1) * error;
  return {centre - half, centre + half};
}

// How often the median lies between the d-th smallest and the d-th largest of n values, whatever they are drawn from:
// 1 - 2 P(at most d - 1 of n coins).
double coverage(size_t n, size_t d) {
  const auto count = static_cast<double>(n);
  double log_term = -count * std::log(2.0), below = 0;
  for (size_t i = 0; i < d; ++i) {
    below += std::exp(log_term);
    log_term += std::log((count - static_cast<double>(i)) / (static_cast<double>(i) + 1));
  }
  return 1 - 2 * below;
}

// Between the two order statistics whose intervals hold it too often and too seldom (Hettmansperger and Sheather,
// Confidence intervals based on interpolated order statistics, 1986).
Interval interval_by_rank(std::vector<double> sorted, double confidence) {
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  size_t d = 1;
  while (2 * (d + 1) <= n && coverage(n, d + 1) >= confidence) ++d;
  const double wide = coverage(n, d), narrow = 2 * (d + 1) <= n ? coverage(n, d + 1) : 0;
  const double part = std::clamp((wide - confidence) / (wide - narrow), 0.0, 1.0);
  const auto rank = static_cast<double>(d), count = static_cast<double>(n);
  const double inner = (count - rank) * part / (rank + (count - 2 * rank) * part);
  const auto between = [inner](double outside, double inside) {
    return inner == 0 ? outside : (1 - inner) * outside + inner * inside;
  };
  return {between(sorted[d - 1], sorted[d]), between(sorted[n - d], sorted[n - d - 1])};
}

}  // namespace

double median(std::span<const double> values) { return quantile(values, 0.5); }

double quantile(std::span<const double> values, double fraction) {
  FT_CHECK(!values.empty());
  FT_CHECK(fraction >= 0 && fraction <= 1);
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted_quantile(sorted, fraction);
}

double mean(std::span<const double> values) {
  FT_CHECK(!values.empty());
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

Interval median_interval(std::span<const double> values, double confidence) {
  FT_CHECK(!values.empty());
  FT_CHECK(confidence > 0 && confidence < 1);
  if (values.size() == 1) return {values[0], values[0]};
  if (values.size() < kFewest) return interval_by_spread(values, confidence);
  return interval_by_rank({values.begin(), values.end()}, confidence);
}

Interval positive_median_interval(std::span<const double> values, double confidence) {
  std::vector<double> logs;
  logs.reserve(values.size());
  for (const double value : values) {
    FT_CHECK(value > 0);
    logs.push_back(std::log(value));
  }
  const Interval interval = median_interval(logs, confidence);
  return {std::exp(interval.low), std::exp(interval.high)};
}

Interval ratio_interval(std::span<const double> a, std::span<const double> b, double confidence) {
  FT_CHECK(a.size() == b.size());
  std::vector<double> log_ratios(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    FT_CHECK(a[i] > 0 && b[i] > 0);
    log_ratios[i] = std::log(a[i] / b[i]);
  }
  const Interval logs = median_interval(log_ratios, confidence);
  return {std::exp(logs.low), std::exp(logs.high)};
}

}  // namespace ft
