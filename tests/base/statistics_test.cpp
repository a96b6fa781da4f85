// Checked against: values worked out by hand (quantiles as numpy.quantile's default), the known distribution of the
// sample median for coverage, and an exact ratio.
#include "kernels/base/statistics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/random.h"

TEST_CASE("median, quantile and mean by hand") {
  const std::vector<double> values = {7, 1, 3, 10};
  CHECK(ft::median(values) == 5);
  CHECK(ft::quantile(values, 0) == 1);
  CHECK(ft::quantile(values, 1) == 10);
  CHECK(ft::quantile(values, 0.25) == 2.5);
  CHECK(ft::quantile(values, 0.9) == doctest::Approx(9.1));
  CHECK(ft::mean(values) == 5.25);
  const std::vector<double> one = {4};
  CHECK(ft::median(one) == 4);
  CHECK(ft::quantile(one, 0.3) == 4);
  CHECK(ft::mean(one) == 4);
  const std::vector<double> odd = {9, 2, 5};
  CHECK(ft::median(odd) == 5);
  const std::vector<double> infinite = {1, 2, INFINITY};
  CHECK(ft::median(infinite) == 2);
  CHECK(ft::quantile(infinite, 1) == INFINITY);
}

TEST_CASE("the bootstrap interval of the median is reproducible, ordered and inside the samples") {
  ft::Random random(1);
  std::vector<double> values(31);
  for (double& value : values) value = random.normal();
  const ft::Interval a = ft::bootstrap_median(values, 0.95, 5);
  const ft::Interval b = ft::bootstrap_median(values, 0.95, 5);
  const ft::Interval narrower = ft::bootstrap_median(values, 0.5, 5);
  CHECK(a.low == b.low);
  CHECK(a.high == b.high);
  CHECK(a.low <= ft::median(values));
  CHECK(a.high >= ft::median(values));
  CHECK(a.low >= *std::min_element(values.begin(), values.end()));
  CHECK(a.high <= *std::max_element(values.begin(), values.end()));
  CHECK(narrower.low >= a.low);
  CHECK(narrower.high <= a.high);
  const std::vector<double> constant(9, 2.5);
  CHECK(ft::bootstrap_median(constant, 0.95, 1).low == 2.5);
  CHECK(ft::bootstrap_median(constant, 0.95, 1).high == 2.5);
}

TEST_CASE("a 95 % interval holds the true median about 95 times in 100") {
  constexpr int kTrials = 300;
  int held = 0;
  ft::Random random(2);
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(41);
    for (double& value : values) value = std::exp(random.normal());  // skewed: the true median is 1
    const ft::Interval interval = ft::bootstrap_median(values, 0.95, static_cast<uint64_t>(trial));
    if (interval.low <= 1 && interval.high >= 1) ++held;
  }
  // The percentile bootstrap of a median covers 93 to 96 % at n = 41; three standard errors of 300 trials are 3.8 %.
  CHECK(held >= kTrials * 90 / 100);
  CHECK(held <= kTrials * 99 / 100);
}

TEST_CASE("the interval of a paired ratio ignores what both samples share") {
  ft::Random random(3);
  std::vector<double> a(25);
  std::vector<double> b(25);
  for (size_t i = 0; i < a.size(); ++i) {
    const double shared = std::exp(2 * random.normal());  // drift of the machine, 50 times the effect
    a[i] = 1.04 * shared;
    b[i] = shared;
  }
  const ft::Interval exact = ft::bootstrap_ratio(a, b, 0.95, 9);
  CHECK(exact.low == doctest::Approx(1.04));
  CHECK(exact.high == doctest::Approx(1.04));
  for (double& value : a) value *= std::exp(0.01 * random.normal());
  const ft::Interval noisy = ft::bootstrap_ratio(a, b, 0.95, 9);
  CHECK(noisy.low > 1.0);
  CHECK(noisy.low < 1.04);
  CHECK(noisy.high > 1.04);
  CHECK(noisy.high < 1.08);
}
