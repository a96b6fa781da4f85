// Small pure statistics over raw samples.
#pragma once

#include <span>

namespace ft {

double median(std::span<const double> values);                     // REQUIRES: not empty
double quantile(std::span<const double> values, double fraction);  // linear between ranks; fraction in [0, 1]
double mean(std::span<const double> values);

struct Interval {
  double low = 0;
  double high = 0;
};

// Interval that holds the true median of what the values are drawn from, `confidence` in (0, 1): from the order of the
// values, below six of them from their spread as if they were normal. Of one value that value: it says nothing.
Interval median_interval(std::span<const double> values, double confidence);

// The same for values that are all > 0 and vary by factors, such as rates: by their logarithms, so that no bound is
// below 0, however few they are.
Interval positive_median_interval(std::span<const double> values, double confidence);

// Of the ratio of paired, interleaved samples (same length, all > 0): of the median of their log ratios.
Interval ratio_interval(std::span<const double> a, std::span<const double> b, double confidence);

}  // namespace ft
