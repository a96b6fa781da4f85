// Small pure statistics over raw samples.
#pragma once

#include <cstdint>
#include <span>

namespace ft {

double median(std::span<const double> values);                     // REQUIRES: not empty
double quantile(std::span<const double> values, double fraction);  // linear between ranks; fraction in [0, 1]
double mean(std::span<const double> values);

struct Interval {
  double low = 0;
  double high = 0;
};

// Percentile bootstrap interval of the median, `confidence` in (0, 1), reproducible for a seed.
Interval bootstrap_median(std::span<const double> values, double confidence, uint64_t seed);

// Interval of the ratio median(a) / median(b) of paired, interleaved samples (same length): bootstrap over log ratios.
Interval bootstrap_ratio(std::span<const double> a, std::span<const double> b, double confidence, uint64_t seed);

}  // namespace ft
