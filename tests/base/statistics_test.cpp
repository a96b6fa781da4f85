// Checked against: values worked out by hand (quantiles as numpy.quantile's default), the true median of what
// is drawn for coverage, and an exact ratio.
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

TEST_CASE("the interval of the median is ordered, inside six samples and more, and as wide as few ones spread") {
  ft::Random random(1);
  std::vector<double> values(31);
  for (double& value : values) value = random.normal();
  const ft::Interval wide = ft::median_interval(values, 0.95), narrow = ft::median_interval(values, 0.5);
  CHECK(wide.low <= ft::median(values));
  CHECK(wide.high >= ft::median(values));
  CHECK(wide.low >= *std::min_element(values.begin(), values.end()));
  CHECK(wide.high <= *std::max_element(values.begin(), values.end()));
  CHECK(narrow.low >= wide.low);
  CHECK(narrow.high <= wide.high);
  const std::vector<double> constant(9, 2.5);
  CHECK(ft::median_interval(constant, 0.95).low == 2.5);
  CHECK(ft::median_interval(constant, 0.95).high == 2.5);
  // Ten values: from the second smallest on it holds the median 978.5, from the third on 890.6 times in 1000; 0.3245 of
  // the coverage between them is 8 x 0.3245 / (2 + 6 x 0.3245) of the way.
  const std::vector<double> ten = {10, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  CHECK(ft::median_interval(ten, 0.95).low == doctest::Approx(2.65766).epsilon(1e-4));
  CHECK(ft::median_interval(ten, 0.95).high == doctest::Approx(11 - 2.65766).epsilon(1e-4));
  // Three: t of two degrees of freedom is 4.3027, the standard error 1 / sqrt(3).
  const std::vector<double> three = {1, 2, 3};
  CHECK(ft::median_interval(three, 0.95).low == doctest::Approx(2 - 4.3027 * 1.160 / std::sqrt(3.0)).epsilon(1e-4));
  CHECK(ft::median_interval(std::vector<double>{1, 3}, 0.95).high == doctest::Approx(2 + 12.7062).epsilon(1e-4));
  CHECK(ft::median_interval(std::vector<double>{1, 2, 3, 4}, 0.95).high ==
        doctest::Approx(2.5 + 3.1824 * 1.092 * std::sqrt(5.0 / 12)).epsilon(1e-4));
  CHECK(ft::median_interval(std::vector<double>{1, 2, 3, 4, 5}, 0.95).high ==
        doctest::Approx(3 + 2.7764 * 1.198 * std::sqrt(0.5)).epsilon(1e-4));
  // Rates: three that differ by a factor of four have no interval that begins below 0.
  const ft::Interval rates = ft::positive_median_interval(std::vector<double>{1000, 2000, 4000}, 0.95);
  CHECK(rates.low == doctest::Approx(2000 * std::exp(-4.3027 * 1.160 * std::log(2.0) / std::sqrt(3.0))).epsilon(1e-4));
  CHECK(rates.low * rates.high == doctest::Approx(2000.0 * 2000.0).epsilon(1e-9));
  CHECK(ft::positive_median_interval(std::vector<double>{7}, 0.95).high == doctest::Approx(7));
  CHECK(ft::median_interval(std::vector<double>{4}, 0.95).low == 4);
  CHECK(ft::median_interval(std::vector<double>{1, 2, 3, 4, 5, INFINITY}, 0.95).high > 5);
}

TEST_CASE("a 95 % interval holds the true median about 95 times in 100, however few values there are") {
  constexpr int kTrials = 3000;
  ft::Random random(2);
  for (const size_t n : {2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 31, 200}) {
    for (const bool skewed : {false, true}) {
      int held = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::vector<double> values(n);
        for (double& value : values) value = skewed ? std::exp(0.3 * random.normal()) - 1 : random.normal();
        const ft::Interval interval = ft::median_interval(values, 0.95);
        if (interval.low <= 0 && interval.high >= 0) ++held;
      }
      CAPTURE(n);
      CAPTURE(skewed);
      CAPTURE(held);
      // Four standard errors of the trials are 1.6 %.
      CHECK(held >= kTrials * 934 / 1000);
      CHECK(held <= kTrials * 985 / 1000);
    }
  }
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
  const ft::Interval exact = ft::ratio_interval(a, b, 0.95);
  CHECK(exact.low == doctest::Approx(1.04));
  CHECK(exact.high == doctest::Approx(1.04));
  for (double& value : a) value *= std::exp(0.01 * random.normal());
  const ft::Interval noisy = ft::ratio_interval(a, b, 0.95);
  CHECK(noisy.low > 1.0);
  CHECK(noisy.low < 1.04);
  CHECK(noisy.high > 1.04);
  CHECK(noisy.high < 1.08);
}
