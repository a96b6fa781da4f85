// Checked against: the parameters that synthetic sweeps were made from, with and without the noise of a machine whose
// speed changes, and an exhaustive search over active sets for
// the non-negative least squares.
#include "tuner/fit.h"

#include <doctest/doctest.h>

#include <cmath>
#include <ctime>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "probes/measure.h"
#include "tuner/cells.h"
#include "tuner/nnls.h"

namespace ft {
namespace {

CostParameters true_cost(double link_per_expert) {
  CostParameters cost;
  cost.threads = 2;
  cost[CostTerm::kBase] = 12e-6;
  cost[CostTerm::kBasePerToken] = 2e-6;
  cost[CostTerm::kSlotFixed] = 4e-6;
  cost[CostTerm::kSlotPerExpert] = 25e-6;
  cost[CostTerm::kSlotPerPick] = 3e-6;
  cost[CostTerm::kCpuFixed] = 9e-6;
  cost[CostTerm::kCpuPerExpert] = 28e-6;
  cost[CostTerm::kCpuPerPick] = 4e-6;
  cost[CostTerm::kLinkFixed] = 15e-6;
  cost[CostTerm::kLinkPerExpert] = link_per_expert;
  cost[CostTerm::kPerPromotion] = 8e-6;
  cost[CostTerm::kLinkIdle] = 6e-6;
  cost[CostTerm::kContentionCompute] = 0.25;
  cost[CostTerm::kContentionLink] = 0.4;
  return cost;
}

std::vector<SweepCell> sweep(const CostParameters& cost, Device device, double noise, uint64_t seed) {
  Random random(seed);
  std::vector<SweepCell> cells;
  for (const int tokens : {1, 4}) {
    for (const int hits : {0, 1, 2, 4, 8}) {
      for (const int fetched : {0, 1, 2, 4, 8}) {
        for (const int cpu : {0, 1, 2, 4, 8}) {
          for (const int promoted : {0, 1}) {
            if (hits + fetched + cpu > 8 || promoted > cpu) continue;
            SweepCell cell;
            cell.counts = full_counts(tokens, hits, fetched, cpu, promoted);
            cell.seconds = layer_seconds(cost, device, cell.counts) * (1 + noise * random.normal());
            cells.push_back(cell);
          }
        }
      }
    }
  }
  mark_held_out(cells);
  return cells;
}

}  // namespace

TEST_CASE("non-negative least squares equals the best of all active sets") {
  Random random(17);
  for (int i = 0; i < 200; ++i) {
    const int columns = 1 + static_cast<int>(random.below(4)), rows = columns + static_cast<int>(random.below(6));
    std::vector<double> a, b;
    for (int k = 0; k < rows * columns; ++k) a.push_back(random.normal() * (k % 3 == 0 ? 1000 : 1));
    for (int k = 0; k < rows; ++k) b.push_back(random.normal());
    const auto loss = [&](const std::vector<double>& x) {
      double sum = 0;
      for (int r = 0; r < rows; ++r) {
        double residual = -b[static_cast<size_t>(r)];
        for (int c = 0; c < columns; ++c) {
          residual += a[static_cast<size_t>(r * columns + c)] * x[static_cast<size_t>(c)];
        }
        sum += residual * residual;
      }
      return sum;
    };
    const std::vector<double> x = nnls(a, b, columns);
    for (const double value : x) CHECK(value >= 0);
    // A minimum of a convex problem: no feasible direction along a coordinate, and no pair of them, goes down.
    const double here = loss(x);
    for (int c = 0; c < columns; ++c) {
      for (int d = 0; d < columns; ++d) {
        for (const double step : {1e-4, -1e-4, 1e-2, -1e-2}) {
          for (const double other : {0.0, 1e-4, -1e-4, 1e-2, -1e-2}) {
            std::vector<double> moved = x;
            moved[static_cast<size_t>(c)] = std::max(0.0, moved[static_cast<size_t>(c)] + step);
            moved[static_cast<size_t>(d)] = std::max(0.0, moved[static_cast<size_t>(d)] + other);
            CHECK(loss(moved) >= here - 1e-9 * (1 + here));
          }
        }
      }
    }
  }
  CHECK(nnls(std::vector<double>{1, 0, 0, 0}, std::vector<double>{3, -1}, 2) == std::vector<double>{3, 0});
  CHECK(nnls(std::vector<double>{1, 1}, std::vector<double>{-1, -1}, 1) == std::vector<double>{0});
}

TEST_CASE("a sweep without noise gives its parameters back") {
  for (const Device device : {Device::kHost, Device::kCuda}) {
    CostParameters truth = true_cost(40e-6);
    if (device == Device::kCuda) {
      truth[CostTerm::kLinkIdle] = 0;      // a GPU does not fall asleep
      truth[CostTerm::kPerPromotion] = 0;  // its promotions take the link
    }
    const CostFit fit = fit_cost(device, 2, sweep(truth, device, 0, 1), 1, 0);
    for (int term = 0; term < kCostTermCount; ++term) {
      CAPTURE(cost_terms()[static_cast<size_t>(term)].name);
      CHECK(fit.cost.value[term] == doctest::Approx(truth.value[term]).epsilon(1e-6));
      // Without a term that there is, the held-out cells are further off; the others change nothing.
      const double without = fit.held_out_error_without[static_cast<size_t>(term)];
      if (truth.value[term] == 0) CHECK(without == fit.held_out_error);
      if (term == static_cast<int>(CostTerm::kLinkPerExpert)) CHECK(without > fit.held_out_error + 0.01);
    }
    CHECK(fit.held_out_error < 1e-6);
    CHECK(fit.cost.threads == 2);
    CHECK(fit.draws.empty());
  }
}

TEST_CASE("with noise the parameters lie in their intervals, and the held-out error is the noise's") {
  int inside = 0, total = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const CostParameters truth = true_cost(40e-6);
    const CostFit fit = fit_cost(Device::kHost, 2, sweep(truth, Device::kHost, 0.03, seed), seed, 60);
    REQUIRE(fit.intervals.size() == static_cast<size_t>(kCostTermCount));
    CHECK(fit.draws.size() == 60);
    CHECK(fit.held_out_error < 0.05);
    for (int term = 0; term < kCostTermCount; ++term) {
      const Interval interval = fit.intervals[static_cast<size_t>(term)];
      CHECK(interval.low <= fit.cost.value[term]);
      CHECK(interval.high >= fit.cost.value[term]);
      inside += interval.low <= truth.value[term] && truth.value[term] <= interval.high ? 1 : 0;
      ++total;
    }
    // The slopes that decide are close, not merely covered.
    for (const CostTerm term : {CostTerm::kSlotPerExpert, CostTerm::kCpuPerExpert, CostTerm::kLinkPerExpert}) {
      CHECK(std::abs(fit.cost[term] / truth[term] - 1) < 0.1);
    }
  }
  CHECK(inside >= total * 80 / 100);  // 95 % intervals of a constrained fit; 78 of them, some at the bound 0
}

TEST_CASE("a link faster than computing is told only by its first copy, and still predicts") {
  const CostParameters truth = true_cost(10e-6);  // below the 25 us of one expert
  const CostFit fit = fit_cost(Device::kHost, 2, sweep(truth, Device::kHost, 0.01, 3), 3, 0);
  const double alone = fit.cost[CostTerm::kLinkFixed] + fit.cost[CostTerm::kLinkIdle];
  CHECK(alone + fit.cost[CostTerm::kLinkPerExpert] == doctest::Approx(31e-6).epsilon(0.1));
  CHECK(fit.held_out_error < 0.03);
}

TEST_CASE("the held-out error grows when the fixed costs are forced to zero") {
  for (const Device device : {Device::kHost, Device::kCuda}) {
    const CostFit fit = fit_cost(device, 2, sweep(true_cost(40e-6), device, 0.02, 5), 5, 0);
    CHECK(fit.held_out_error_without_fixed_costs > 2 * fit.held_out_error);
    CHECK(fit.cells_held_out > 10);
    CHECK(fit.cells_fitted > 20);
  }
}

TEST_CASE("held-out cells are mixed and take no part in the fit") {
  const CostParameters truth = true_cost(40e-6);
  std::vector<SweepCell> cells = sweep(truth, Device::kHost, 0.02, 9);
  const CostFit before = fit_cost(Device::kHost, 2, cells, 9, 0);
  int held_out = 0;
  for (SweepCell& cell : cells) {
    if (!cell.held_out) continue;
    CHECK(is_mixed(cell.counts));
    cell.seconds *= 10;
    ++held_out;
  }
  CHECK(held_out == before.cells_held_out);
  const CostFit after = fit_cost(Device::kHost, 2, cells, 9, 0);
  for (int term = 0; term < kCostTermCount; ++term) CHECK(before.cost.value[term] == after.cost.value[term]);
  CHECK(after.held_out_error > 0.8);
}

// What layer_sweep would record on a machine with two speeds, half a second each and 1.5x apart, rounds of all cells in
// a new order, 1.2 ms a sample, 31 rounds, and one sample in ten delayed by something else.
std::vector<Samples> two_speed_samples(const std::vector<SweepCell>& cells, uint64_t seed) {
  std::vector<Series> series;
  Random random(seed);
  double now = 0, until = 0.5 * random.uniform();
  bool slow = random.below(2) == 0;
  for (const SweepCell& cell : cells) {
    Series one;
    one.samples.at = {{"threads", 2},
                      {"tokens", cell.counts.tokens},
                      {"hits", cell.counts.hits},
                      {"fetched", cell.counts.fetched},
                      {"cpu", cell.counts.cpu},
                      {"promoted", cell.counts.promoted},
                      {"hit_picks", cell.counts.hit_picks},
                      {"fetched_picks", cell.counts.fetched_picks},
                      {"cpu_picks", cell.counts.cpu_picks}};
    one.sample = [&random, &now, &until, &slow, us = cell.seconds * 1e6] {
      now += 1.2e-3;
      while (now > until) {
        slow = !slow;
        until += 0.3 + 0.4 * random.uniform();
      }
      const double delayed = random.below(10) == 0 ? 1 + 3 * random.uniform() : 1;
      return us * (slow ? 1.5 : 1) * delayed * (1 + 0.02 * random.normal());
    };
    series.push_back(std::move(one));
  }
  MeasureOptions options;
  options.budget = {1e9, 3, 31};
  options.shuffle_seed = seed;
  measure(series, options);
  return samples_of(series);
}

TEST_CASE("on a machine with two speeds the fit still finds the parameters") {
  const CostParameters truth = true_cost(40e-6);
  const std::vector<SweepCell> exact = sweep(truth, Device::kHost, 0, 1);
  int without_is_worse = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const CostFit fit = fit_cost(Device::kHost, 2, sweep_cells(two_speed_samples(exact, seed), 2), seed, 0);
    CHECK(fit.held_out_error < 0.03);
    CHECK(fit.held_out_error < fit.held_out_error_without_fixed_costs);
    without_is_worse += fit.held_out_error_without_fixed_costs > 2 * fit.held_out_error ? 1 : 0;
    // Which speed is the typical one is chance: everything in seconds shares a factor between 1 and 1.5.
    const double speed = fit.cost[CostTerm::kCpuPerExpert] / truth[CostTerm::kCpuPerExpert];
    CHECK(speed > 0.95);
    CHECK(speed < 1.55);
    for (const CostTerm term : {CostTerm::kSlotPerExpert, CostTerm::kLinkPerExpert, CostTerm::kSlotPerPick}) {
      CAPTURE(cost_terms()[static_cast<size_t>(term)].name);
      CHECK(fit.cost[term] / truth[term] == doctest::Approx(speed).epsilon(0.1));
    }
    const double link_fixed = fit.cost[CostTerm::kLinkFixed] + fit.cost[CostTerm::kLinkIdle];
    CHECK(link_fixed / speed == doctest::Approx(21e-6).epsilon(0.3));
  }
  CHECK(without_is_worse == 8);
}

TEST_CASE("cells where threads fell asleep while they only waited do not spoil the prediction of the others") {
  CostParameters truth = true_cost(12e-6);
  truth[CostTerm::kLinkIdle] = 50e-6;  // as measured once: 86 us alone, 42 us beside one expert on the CPU
  const CostFit fit = fit_cost(Device::kHost, 2, sweep(truth, Device::kHost, 0.02, 4), 4, 0);
  CHECK(fit.held_out_error < 0.03);
  CHECK(fit.cost[CostTerm::kLinkIdle] == doctest::Approx(50e-6).epsilon(0.15));
}

TEST_CASE("one spoilt cell in ten hardly moves the fit") {
  const CostParameters truth = true_cost(40e-6);
  std::vector<SweepCell> cells = sweep(truth, Device::kHost, 0.01, 6);
  for (size_t i = 5; i < cells.size(); i += 10) cells[i].seconds *= 3;
  const CostFit fit = fit_cost(Device::kHost, 2, cells, 6, 0);
  CHECK(fit.held_out_error < 0.03);
  for (const CostTerm term : {CostTerm::kSlotPerExpert, CostTerm::kCpuPerExpert, CostTerm::kLinkPerExpert}) {
    CHECK(fit.cost[term] / truth[term] == doctest::Approx(1).epsilon(0.1));
  }
}

TEST_CASE("a sweep that leaves an arm out is refused by name") {
  const std::vector<SweepCell> all = sweep(true_cost(40e-6), Device::kHost, 0, 1);
  const auto without = [&](auto left_out) {
    std::vector<SweepCell> cells;
    for (const SweepCell& cell : all) {
      if (!left_out(cell.counts)) cells.push_back(cell);
    }
    return cells;
  };
  const auto fit = [](const std::vector<SweepCell>& cells) { fit_cost(Device::kHost, 2, cells, 1, 0); };
  CHECK_THROWS_WITH_AS(fit(without([](const LayerCounts& n) { return n.hits + n.misses() == 0; })),
                       doctest::Contains("nothing to do"), Error);
  CHECK_THROWS_WITH_AS(fit(without([](const LayerCounts& n) { return n.cpu > 0 && !is_mixed(n); })),
                       doctest::Contains("CPU experts alone"), Error);
  CHECK_THROWS_WITH_AS(fit(without([](const LayerCounts& n) { return n.fetched > 0 && !is_mixed(n); })),
                       doctest::Contains("fetched experts alone"), Error);
  CHECK_NOTHROW(fit(without([](const LayerCounts& n) { return n.fetched > 0; })));  // an arm never used is no arm
}

TEST_CASE("the dense part comes back from steps that hold expert time") {
  const DenseCost truth{2, 300e-6, 80e-6, 2e-8, 5e-8};
  for (const double noise : {0.0, 0.02}) {
    Random random(4);
    std::vector<DenseCell> cells;
    for (const int tokens : {1, 2, 4, 8}) {
      for (const int64_t context : {0, 512, 2048, 8192}) {
        const double experts = 500e-6;
        cells.push_back(
            {tokens, context, (truth.seconds(tokens, context) + experts) * (1 + noise * random.normal()), experts});
      }
    }
    const DenseFit fit = fit_dense(2, cells, 1, 50);
    CHECK(fit.cost.fixed == doctest::Approx(truth.fixed).epsilon(noise > 0 ? 0.2 : 1e-6));
    CHECK(fit.cost.per_token == doctest::Approx(truth.per_token).epsilon(noise > 0 ? 0.2 : 1e-6));
    CHECK(fit.cost.per_position == doctest::Approx(truth.per_position).epsilon(noise > 0 ? 0.2 : 1e-6));
    CHECK(fit.cost.per_further_position == doctest::Approx(truth.per_further_position).epsilon(noise > 0 ? 0.2 : 1e-6));
    CHECK(fit.per_further_position.low <= fit.cost.per_further_position);
    CHECK(fit.per_further_position.high >= fit.cost.per_further_position);
    CHECK(fit.per_token.low <= fit.cost.per_token);
    CHECK(fit.per_token.high >= fit.cost.per_token);
    CHECK(fit.fit_error <= (noise > 0 ? 0.05 : 1e-6));
  }
  const DenseFit one = fit_dense(1, std::vector<DenseCell>{{1, 100, 1e-3, 2e-4}}, 1, 5);
  CHECK(one.cost.seconds(1, 100) == doctest::Approx(8e-4));
}

namespace {

double cpu_seconds_of_fit(double spread, uint64_t seed) {
  Random random(seed);
  std::vector<SweepCell> cells;
  for (const int hits : {0, 1, 2, 4}) {
    for (const int fetched : {0, 1, 2, 4}) {
      for (const int cpu : {0, 1, 2, 4}) {
        if (hits + fetched + cpu > 4) continue;
        SweepCell cell;
        cell.counts = full_counts(1, hits, fetched, cpu, 0);
        cell.seconds = 1e-6 * (4 + 6 * hits + (fetched > 0 ? 100 : 0) + 8 * cpu) * std::exp(spread * random.normal());
        cells.push_back(cell);
      }
    }
  }
  mark_held_out(cells);
  const std::clock_t start = std::clock();
  fit_cost(Device::kHost, 2, cells, 1, 20);
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("cells of a machine that others kept busy cost the fit no more than a few times what quiet ones do") {
  const double quiet = cpu_seconds_of_fit(0.01, 1);
  // Without a limit to the moves of its search these take some 10 s each, and cells of a real tuning took minutes.
  for (const auto& [spread, number] : {std::pair{0.5, 3}, {1.0, 14}}) {
    const auto seed = static_cast<uint64_t>(number);
    CAPTURE(seed);
    CHECK(cpu_seconds_of_fit(spread, seed) < std::max(1.0, 20 * quiet));
  }
}

}  // namespace ft
