// Checked against: closed forms for curves that are lines (whose best split and sums can be written down), and brute
// force over every split for random convex and not convex curves.
#include "tests/bench/bound.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"

namespace ft::bench {
namespace {

// a + s n at 1 .. n, and through (0, 0).
Curve line(double a, double s, int n) {
  std::vector<double> counts, seconds;
  for (int i = 1; i <= n; ++i) counts.push_back(i), seconds.push_back(a + s * i);
  return {counts, seconds};
}

}  // namespace

TEST_CASE("a curve is its points, straight between them, from nothing at nothing, and goes on with its last slope") {
  const Curve curve({1, 2, 4}, {10, 14, 30});
  CHECK(curve.at(0) == 0);
  CHECK(curve.at(0.5) == 5);
  CHECK(curve.at(1) == 10);
  CHECK(curve.at(2) == 14);
  CHECK(curve.at(3) == 22);
  CHECK(curve.at(4) == 30);
  CHECK(curve.at(6) == 46);
  CHECK(Curve({3}, {6}).at(1) == 2);
  CHECK(Curve({3}, {6}).at(9) == 18);
  CHECK(curve.best_rate() == doctest::Approx(2.0 / 14));
  CHECK(Curve().empty());
}

TEST_CASE("two lines without fixed cost share the misses by their rates") {
  const Curves curves{line(0, 3, 12), line(0, 1, 12)};  // the CPU is three times as fast
  for (int m = 4; m <= 12; m += 4) {
    const Split split = best_split(curves, m);
    CHECK(split.fetched == m / 4);
    CHECK(split.seconds == doctest::Approx(0.75 * m));
  }
  CHECK(best_split(curves, 0).seconds == 0);
  // One miss: 3 by the link, 1 on the CPU.
  CHECK(best_split(curves, 1).fetched == 0);
  CHECK(best_split(curves, 1).seconds == 1);
}

TEST_CASE("of equal splits the one that fetches more; without a CPU arm everything is fetched") {
  const Curves equal{line(0, 1, 8), line(0, 1, 8)};
  CHECK(best_split(equal, 1).fetched == 1);
  CHECK(best_split(equal, 3).fetched == 2);
  const Curves alone{line(5, 2, 8), Curve()};
  CHECK(best_split(alone, 3).fetched == 3);
  CHECK(best_split(alone, 3).seconds == 11);
}

TEST_CASE("the best split is that of brute force, for any curves; the table holds it for every count") {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> counts, link, cpu;
    for (int i = 1; i <= 10; ++i) {
      counts.push_back(i);
      link.push_back(1 + static_cast<double>(random.below(100)));
      cpu.push_back(1 + static_cast<double>(random.below(100)));
    }
    const Curves curves{Curve(counts, link), Curve(counts, cpu)};
    const SplitTable table = split_table(curves, 10);
    REQUIRE(table.size() == 11);
    CHECK(table[0] == 0);
    for (int m = 1; m <= 10; ++m) {
      double least = 1e300;
      for (int f = 0; f <= m; ++f) {
        const double t_link = f == 0 ? 0 : link[static_cast<size_t>(f) - 1];
        const double t_cpu = f == m ? 0 : cpu[static_cast<size_t>(m - f) - 1];
        least = std::min(least, std::max(t_link, t_cpu));
      }
      CHECK(best_split(curves, m).seconds == least);
      CHECK(table[static_cast<size_t>(m)] == best_split(curves, m).fetched);
    }
  }
}

TEST_CASE("the sum over layers weighs each count of misses by how often it came") {
  const Curves curves{line(10, 40, 8), line(5, 45, 8)};
  // Two steps of four layers: five with none, two with 1, one with 3.
  const std::vector<uint64_t> layers = {5, 2, 0, 1};
  // Offload: 2 * 50 + 130 over two steps.
  CHECK(miss_seconds(curves, layers, 2, true) == doctest::Approx(115));
  // Hybrid: one miss 50 either way; three misses: two on one side, max(90, 50), or max(50, 95): 90.
  CHECK(miss_seconds(curves, layers, 2, false) == doctest::Approx((2 * 50 + 90) / 2.0));
  CHECK(misses_per_step(layers, 2) == 2.5);
  CHECK(miss_seconds(curves, std::vector<uint64_t>{8}, 2, false) == 0);
}

TEST_CASE("T_res counts at most 2.5 times its bytes at the device's rate, and as it is where that is not known") {
  CHECK(counted_resident_seconds(2.4, 1, 1) == 2.4);
  CHECK(counted_resident_seconds(2.5, 1, 1) == 2.5);
  CHECK(counted_resident_seconds(2.6, 1, 1) == 2.5);
  CHECK(counted_resident_seconds(9, 1, 0) == 9);
}

TEST_CASE("the smooth bound shares bytes by both rates") {
  CHECK(smooth_bound_seconds(1, 100, 50, 0) == 3);
  CHECK(smooth_bound_seconds(1, 100, 50, 50) == 2);
  // It is below the bound of whole experts with the same rates: nothing is rounded and nothing is fixed.
  const Curves curves{line(0, 1, 8), line(0, 2, 8)};
  for (int m = 1; m <= 8; ++m) {
    CHECK(smooth_bound_seconds(0, m, 1, 0.5) <= best_split(curves, m).seconds + 1e-12);
  }
}

}  // namespace ft::bench
