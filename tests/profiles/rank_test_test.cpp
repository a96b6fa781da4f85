// Checked against: every order of small samples, counted one by one; the tables of Mann and Whitney for 8 and 10
// values; the coverage of the interval over samples from known distributions.
#include "profiles/rank_test.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/base/random.h"

namespace {

// P(U >= u) by walking over all ways to place `second` values among first + second.
double tail_by_enumeration(size_t first, size_t second, size_t u) {
  const size_t all = first + second;
  size_t orders = 0, reached = 0;
  for (uint32_t places = 0; places < (1u << all); ++places) {
    size_t below = 0, wins = 0, chosen = 0;
    for (size_t i = 0; i < all; ++i) {
      if ((places >> i & 1u) != 0) {
        ++chosen;
        wins += below;
      } else {
        ++below;
      }
    }
    if (chosen != second) continue;
    ++orders;
    reached += wins >= u ? 1 : 0;
  }
  return static_cast<double>(reached) / static_cast<double>(orders);
}

std::vector<double> sequence(int count, double start, double step) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(start + step * i);
  return values;
}

}  // namespace

TEST_CASE("the tail equals the share of all orders, for every u of small samples") {
  for (size_t first = 1; first <= 6; ++first) {
    for (size_t second = 1; second <= 6; ++second) {
      for (size_t u = 0; u <= first * second + 1; ++u) {
        CHECK(ft::rank_sum_tail(first, second, static_cast<double>(u)) ==
              doctest::Approx(tail_by_enumeration(first, second, u)).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("critical values as the tables have them") {
  // Two-sided 5 %: 13 for 8 and 8, 23 for 10 and 10; two-sided 1 %: 7 and 16.
  struct Row {
    size_t n;
    int u;
    double share;
  };
  for (const Row& row : {Row{8, 13, 0.025}, Row{10, 23, 0.025}, Row{8, 7, 0.005}, Row{10, 16, 0.005}}) {
    const auto pairs = static_cast<double>(row.n * row.n);
    CHECK(ft::rank_sum_tail(row.n, row.n, pairs - row.u) <= row.share);
    CHECK(ft::rank_sum_tail(row.n, row.n, pairs - row.u - 1) > row.share);
  }
  CHECK(ft::rank_sum_tail(8, 8, 64) == doctest::Approx(1.0 / 12870));
  CHECK(ft::rank_sum_tail(7, 7, 49) == doctest::Approx(1.0 / 3432));
  CHECK(ft::rank_sum_tail(10, 10, 100) == doctest::Approx(1.0 / 184756));
}

TEST_CASE("the largest samples: symmetric, falling, and 1 in C(64, 32) at the end") {
  const size_t n = ft::kMaxRankValues;
  const auto pairs = static_cast<double>(n * n);
  CHECK(ft::rank_sum_tail(n, n, pairs) == doctest::Approx(1 / 1832624140942590534.0));
  double before = 1;
  for (double u = 0; u <= pairs; ++u) {
    const double tail = ft::rank_sum_tail(n, n, u);
    CHECK(tail <= before);
    // P(U >= u) + P(U >= pairs - u + 1) is all.
    if (u >= 1) CHECK(tail + ft::rank_sum_tail(n, n, pairs - u + 1) == doctest::Approx(1));
    before = tail;
  }
}

TEST_CASE("p of greater: apart, shifted, the wrong way, and equal values count against it") {
  const std::vector<double> low = sequence(8, 0, 1), high = sequence(8, 100, 1);
  CHECK(ft::p_of_greater(low, high, 0) == doctest::Approx(1.0 / 12870));
  CHECK(ft::p_of_greater(low, high, 92) == doctest::Approx(1.0 / 12870));
  CHECK(ft::p_of_greater(low, high, 93) > 1.0 / 12870);  // 100 is no longer above 7 + 93
  CHECK(ft::p_of_greater(low, high, 107) == 1);
  CHECK(ft::p_of_greater(high, low, 0) == 1);
  const std::vector<double> equal(8, 5.0);
  CHECK(ft::p_of_greater(equal, equal, 0) == 1);
}

TEST_CASE("the shift and its interval by hand") {
  // 8 and 8 evenly spaced: differences 100 + (j - i), each d in -7 .. 7 eight minus |d| times. The interval leaves out
  // 13 of 64 at either end: 1 + 2 + 3 + 4 = 10 differences up to -4, so the 14th is -3.
  const ft::Shift shift = ft::estimate_shift(sequence(8, 0, 1), sequence(8, 100, 1), 0.95);
  CHECK(shift.estimate == 100);
  CHECK(shift.low == 97);
  CHECK(shift.high == 103);
  // Three against three cannot give 95 %: all differences.
  const ft::Shift few = ft::estimate_shift(sequence(3, 0, 1), sequence(3, 10, 1), 0.95);
  CHECK(few.low == 8);
  CHECK(few.high == 12);
}

TEST_CASE("the interval holds the true shift about 95 times in 100, whatever the distribution") {
  constexpr int kTrials = 1000;
  for (const bool heavy : {false, true}) {
    ft::Random random(3);
    int held = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> first, second;
      for (int i = 0; i < 10; ++i) {
        const auto noise = [&] { return heavy ? 1 / std::sqrt(1 - random.uniform()) : random.normal(); };
        first.push_back(noise());
        second.push_back(noise() + 0.5);
      }
      const ft::Shift shift = ft::estimate_shift(first, second, 0.95);
      held += shift.low <= 0.5 && 0.5 <= shift.high ? 1 : 0;
    }
    CHECK(held >= 940);  // 957 expected of 10 and 10
    CHECK(held <= 980);
  }
}
