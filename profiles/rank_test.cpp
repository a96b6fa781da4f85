#include "profiles/rank_test.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/statistics.h"

namespace ft {
namespace {

// Of all orders of first + second values, how many have U = 0, 1, .., most: the first coefficients of the Gaussian
// binomial, built up one factor (1 - q^(first + i)) / (1 - q^i) at a time. A coefficient comes from those before it, so
// the small ones, which decide about small probabilities, are whole numbers without rounding.
std::vector<double> orders_by_u(size_t first, size_t second, size_t most) {
  std::vector<double> counts(most + 1, 0.0);
  counts[0] = 1;
  for (size_t i = 1; i <= second; ++i) {
    const size_t step = first + i;
    for (size_t u = most; u >= step; --u) counts[u] -= counts[u - step];
    for (size_t u = i; u <= most; ++u) counts[u] += counts[u - i];
  }
  return counts;
}

double all_orders(size_t first, size_t second) {
  double orders = 1;
  for (size_t i = 1; i <= second; ++i) orders = orders * static_cast<double>(first + i) / static_cast<double>(i);
  return orders;
}

// P(U <= u); the distribution is symmetric.
double at_most(size_t first, size_t second, size_t u) {
  const size_t most = first * second;
  if (u >= most) return 1;
  if (2 * u >= most) return 1 - at_most(first, second, most - u - 1);
  const std::vector<double> counts = orders_by_u(first, second, u);
  return std::accumulate(counts.begin(), counts.end(), 0.0) / all_orders(first, second);
}

void check_counts(size_t first, size_t second) {
  FT_CHECK(first >= 1 && first <= kMaxRankValues);
  FT_CHECK(second >= 1 && second <= kMaxRankValues);
}

}  // namespace

double rank_sum_tail(size_t first, size_t second, double u) {
  check_counts(first, second);
  if (u <= 0) return 1;
  const auto least = static_cast<size_t>(std::ceil(u));
  return least > first * second ? 0 : at_most(first, second, first * second - least);
}

double p_of_greater(std::span<const double> first, std::span<const double> second, double shift) {
  check_counts(first.size(), second.size());
  double u = 0;
  for (const double a : first) {
    for (const double b : second) u += b > a + shift ? 1 : 0;
  }
  return rank_sum_tail(first.size(), second.size(), u);
}

Shift estimate_shift(std::span<const double> first, std::span<const double> second, double confidence) {
  check_counts(first.size(), second.size());
  FT_CHECK(confidence > 0 && confidence < 1);
  std::vector<double> differences;
  for (const double a : first) {
    for (const double b : second) differences.push_back(b - a);
  }
  std::sort(differences.begin(), differences.end());
  // The most differences left out at either end: so many that P(U <= left_out) is half of what the confidence leaves.
  const std::vector<double> counts = orders_by_u(first.size(), second.size(), (differences.size() - 1) / 2);
  const double allowed = (1 - confidence) / 2 * all_orders(first.size(), second.size());
  size_t left_out = 0;
  for (double orders = counts[0]; left_out + 1 < counts.size(); ++left_out) {
    orders += counts[left_out + 1];
    if (orders > allowed) break;
  }
  const size_t last = differences.size() - 1;
  return {median(differences), differences[left_out], differences[last - left_out]};
}

}  // namespace ft
