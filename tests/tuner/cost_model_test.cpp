// Checked against: closed forms worked out by hand, an event-by-event simulation of the host device's pipeline, and
// exhaustive search over splits.
#include "tuner/cost_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace ft {
namespace {

CostParameters some_cost() {
  CostParameters cost;
  cost[CostTerm::kBase] = 10e-6;
  cost[CostTerm::kBasePerToken] = 1e-6;
  cost[CostTerm::kSlotFixed] = 2e-6;
  cost[CostTerm::kSlotPerExpert] = 20e-6;
  cost[CostTerm::kSlotPerPick] = 3e-6;
  cost[CostTerm::kCpuFixed] = 5e-6;
  cost[CostTerm::kCpuPerExpert] = 30e-6;
  cost[CostTerm::kCpuPerPick] = 4e-6;
  cost[CostTerm::kLinkFixed] = 7e-6;
  cost[CostTerm::kLinkPerExpert] = 50e-6;
  cost[CostTerm::kPerPromotion] = 6e-6;
  cost[CostTerm::kLinkIdle] = 9e-6;
  cost[CostTerm::kContentionCompute] = 0.5;
  cost[CostTerm::kContentionLink] = 0.2;
  return cost;
}

double us(const CostParameters& cost, Device device, const LayerCounts& counts) {
  return layer_seconds(cost, device, counts) * 1e6;
}

// Two pieces of work that slow each other while both run, in small steps of time: when `mine` has been done.
struct Overlap {
  double compute_end = 0;
  std::vector<double> copy_ends;  // of every copy, in order
};
Overlap simulate_overlap(double compute, double slower, const std::vector<double>& copies, double link_slower) {
  Overlap result;
  double now = 0, compute_left = compute;
  size_t at = 0;
  double copy_left = copies.empty() ? 0 : copies[0];
  while (compute_left > 0 || at < copies.size()) {
    const bool both = compute_left > 0 && at < copies.size();
    const double c = both ? 1 + slower : 1, l = both ? 1 + link_slower : 1;
    double step = compute_left > 0 ? compute_left * c : 1;
    if (at < copies.size()) step = compute_left > 0 ? std::min(step, copy_left * l) : copy_left * l;
    const bool compute_done = compute_left > 0 && step >= compute_left * c;
    const bool copy_done = at < copies.size() && step >= copy_left * l;
    now += step;
    if (compute_left > 0) compute_left -= step / c;
    if (at < copies.size()) copy_left -= step / l;
    if (compute_done) {
      compute_left = 0;
      result.compute_end = now;
    }
    if (copy_done) {
      result.copy_ends.push_back(now);
      if (++at < copies.size()) copy_left = copies[at];
    }
  }
  return result;
}

// The host device as events: one group of hits and CPU experts, then groups of what has arrived.
double simulated_host_us(const CostParameters& cost, const LayerCounts& n) {
  const double group = cost[CostTerm::kSlotFixed], one = cost[CostTerm::kSlotPerExpert];
  const double start = std::max(n.hits > 0 ? group : 0, n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0);
  std::vector<double> copies(static_cast<size_t>(n.fetched), cost[CostTerm::kLinkPerExpert]);
  if (n.fetched > 0) copies[0] += cost[CostTerm::kLinkFixed];
  if (n.fetched > 0 && n.hits + n.cpu == 0) copies[0] += cost[CostTerm::kLinkIdle];
  const Overlap overlap = simulate_overlap(start + n.hits * one + n.cpu * cost[CostTerm::kCpuPerExpert],
                                           cost[CostTerm::kContentionCompute], copies, cost[CostTerm::kContentionLink]);
  const auto there = [&](int i) { return overlap.copy_ends[static_cast<size_t>(i) - 1]; };
  double now = overlap.compute_end;
  for (int done = 0; done < n.fetched;) {
    now = std::max(now, there(done + 1));
    int arrived = done + 1;
    while (arrived < n.fetched && there(arrived + 1) <= now) ++arrived;
    now += group + (arrived - done) * one;
    done = arrived;
  }
  now += cost[CostTerm::kBase] + cost[CostTerm::kBasePerToken] + n.promoted * cost[CostTerm::kPerPromotion];
  return now * 1e6;
}

}  // namespace

TEST_CASE("on a GPU promotions use what fetches leave of the link, over the whole step") {
  CostParameters cost;
  cost[CostTerm::kBase] = 10e-6;
  cost[CostTerm::kCpuPerExpert] = 30e-6;
  cost[CostTerm::kLinkPerExpert] = 50e-6;
  DenseCost dense;
  dense.fixed = 100e-6;  // of four layers and a head: 20 us pass before a layer
  ReplayResult replay;
  replay.steps = 1;
  replay.layers = 4;
  const auto step_us = [&] { return 1e6 * step_seconds(cost, dense, Device::kCuda, 0, replay); };
  // Three layers with one CPU expert that is promoted, one that fetches two: 100 + 3 x 40 + 110, the link 3 x 50 + 100.
  // The promotions end 20 us after the CPU.
  replay.distribution = {{full_counts(1, 0, 0, 1, 1), 3}, {full_counts(1, 0, 2, 0, 0), 1}};
  CHECK(step_us() == doctest::Approx(330 + 3 * 20));
  replay.distribution = {{full_counts(1, 0, 0, 2, 1), 3}, {full_counts(1, 0, 2, 0, 0), 1}};
  CHECK(step_us() == doctest::Approx(330 + 3 * 30));  // beside two experts there is time
  // A layer waits for them at most twice as long as its base and the dense part take, 60: 100 + 3 x (10 + 120 + 60) +
  // 110.
  replay.distribution = {{full_counts(1, 0, 0, 4, 4), 3}, {full_counts(1, 0, 2, 0, 0), 1}};
  CHECK(step_us() == doctest::Approx(780));
  // With eight in each, 1140, the link has 1300 us to do, after the 20 before the first layer.
  replay.distribution = {{full_counts(1, 0, 0, 8, 8), 3}, {full_counts(1, 0, 2, 0, 0), 1}};
  CHECK(step_us() == doctest::Approx(20 + 1300));
  // They slow the CPU's experts while they run, as fetches do.
  cost[CostTerm::kContentionCompute] = 0.5;
  replay.distribution = {{full_counts(1, 0, 0, 1, 1), 4}};
  CHECK(step_us() == doctest::Approx(100 + 4 * (10 + 45 + 5)));
  // And the CPU slows them, beside it and behind it.
  cost[CostTerm::kContentionLink] = 0.2;
  CHECK(step_us() == doctest::Approx(100 + 4 * (10 + 45 + 15)));
}

TEST_CASE("a layer's time in closed form, host device") {
  const CostParameters cost = some_cost();
  const auto host = [&](LayerCounts counts) { return us(cost, Device::kHost, counts); };
  CHECK(host(full_counts(1, 0, 0, 0, 0)) == doctest::Approx(11));
  CHECK(host(full_counts(1, 3, 0, 0, 0)) == doctest::Approx(11 + 2 + 60));
  CHECK(host(full_counts(1, 0, 0, 2, 0)) == doctest::Approx(11 + 5 + 60));
  CHECK(host(full_counts(1, 0, 0, 2, 1)) == doctest::Approx(11 + 5 + 60 + 6));
  CHECK(host(full_counts(1, 2, 0, 1, 0)) == doctest::Approx(11 + 5 + 40 + 30));  // one group, one fixed cost
  // Waits for the last copy, and falls asleep for the first.
  CHECK(host(full_counts(1, 0, 2, 0, 0)) == doctest::Approx(11 + 2 + 7 + 9 + 100 + 20));
  // The link binds: slowed while the hit is computed (1.5 * 22 us, of which it works 33 / 1.2), then at full speed.
  CHECK(host(full_counts(1, 1, 1, 0, 0)) == doctest::Approx(11 + 2 + 33 + (57 - 33 / 1.2) + 20));
  CHECK(host(full_counts(1, 1, 1, 3, 0)) ==
        doctest::Approx(11 + 2 + 68.4 + (115 - 68.4 / 1.5) + 20));  // compute binds, slowed for 1.2 * 57 us
  CHECK(host(full_counts(4, 2, 0, 1, 0)) == doctest::Approx(14 + 5 + 40 + 6 * 3 + 30 + 3 * 4));  // further picks
}

TEST_CASE("the host formula follows the pipeline, event by event") {
  CostParameters cost = some_cost();
  for (const double link : {2e-6, 20e-6, 50e-6}) {  // faster than computing, about as fast, slower
    cost[CostTerm::kLinkPerExpert] = link;
    for (int hits = 0; hits <= 4; ++hits) {
      for (int fetched = 0; fetched <= 4; ++fetched) {
        for (int cpu = 0; cpu <= 4; ++cpu) {
          const LayerCounts counts = full_counts(1, hits, fetched, cpu, cpu > 0 ? 1 : 0);
          const double simulated = simulated_host_us(cost, counts);
          CAPTURE(simulated);
          // Exact but for how arrivals fall into groups: at most one fixed cost of a group per fetched expert after it.
          CHECK(us(cost, Device::kHost, counts) <= simulated * (1 + 1e-12));
          CHECK(us(cost, Device::kHost, counts) >= simulated - 2.0 * std::max(0, fetched - 1) - 1e-9);
          if (fetched <= 1) CHECK(us(cost, Device::kHost, counts) == doctest::Approx(simulated));
        }
      }
    }
  }
}

TEST_CASE("a layer's time in closed form, GPU") {
  const CostParameters cost = some_cost();
  const auto gpu = [&](LayerCounts counts) { return us(cost, Device::kCuda, counts); };
  CHECK(gpu(full_counts(1, 0, 0, 0, 0)) == doctest::Approx(11));
  CHECK(gpu(full_counts(1, 8, 0, 0, 0)) == doctest::Approx(11 + 2 + 160));
  CHECK(gpu(full_counts(1, 6, 2, 0, 0)) == doctest::Approx(11 + 2 + 107 + 160));  // no contention without CPU work
  CHECK(gpu(full_counts(1, 1, 0, 4, 0)) == doctest::Approx(11 + 125));            // CPU binds
  CHECK(gpu(full_counts(1, 1, 1, 4, 0)) == doctest::Approx(11 + 68.4 + (125 - 68.4 / 1.5)));
  CHECK(gpu(full_counts(1, 6, 1, 1, 0)) == doctest::Approx(11 + 2 + 52.5 + (57 - 52.5 / 1.2) + 140));
}

TEST_CASE("a step is the dense part and the expectation over the distribution, not the time of the mean") {
  const CostParameters cost = some_cost();
  ReplayResult replay;
  replay.steps = 2;
  replay.layers = 3;
  replay.distribution = {{full_counts(1, 2, 0, 0, 0), 4}, {full_counts(1, 0, 2, 0, 0), 2}};
  const DenseCost dense{1, 100e-6, 10e-6, 1e-8, 3e-8};
  CHECK(dense.seconds(2, 500) * 1e6 == doctest::Approx(100 + 20 + 5 + 15));
  const double layers = (4 * (11 + 2 + 40) + 2 * (11 + 2 + 7 + 9 + 100 + 20)) / 2.0;
  CHECK(step_seconds(cost, dense, Device::kHost, 1000, replay) * 1e6 == doctest::Approx(120 + layers));
}

TEST_CASE("the best split of one layer is the exhaustive minimum") {
  CostParameters cost = some_cost();
  for (const Device device : {Device::kHost, Device::kCuda}) {
    for (const double link : {5e-6, 30e-6, 200e-6}) {
      cost[CostTerm::kLinkPerExpert] = link;
      const SplitTable table = best_split(cost, device, 1, 8, 8, 8);
      REQUIRE(table.size() == 9);
      CHECK(table[0] == 0);
      for (int m = 1; m <= 8; ++m) {
        const double chosen = us(
            cost, device, full_counts(1, 8 - m, table[static_cast<size_t>(m)], m - table[static_cast<size_t>(m)], 0));
        for (int f = 0; f <= m; ++f) {
          CHECK(chosen <= us(cost, device, full_counts(1, 8 - m, f, m - f, 0)) * (1 + 1e-12));
        }
      }
    }
  }
  cost[CostTerm::kLinkPerExpert] = 1;  // a link that takes a second
  CHECK(best_split(cost, Device::kCuda, 1, 8, 8, 8) == SplitTable(9, 0));
  cost = some_cost();
  cost[CostTerm::kCpuPerExpert] = 1;
  CHECK(best_split(cost, Device::kCuda, 1, 8, 8, 8) == SplitTable{0, 1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("terms are listed in their order, with one name each") {
  for (int i = 0; i < kCostTermCount; ++i) {
    CHECK(static_cast<int>(cost_terms()[static_cast<size_t>(i)].term) == i);
    for (int j = 0; j < i; ++j) {
      CHECK(cost_terms()[static_cast<size_t>(i)].name != cost_terms()[static_cast<size_t>(j)].name);
    }
  }
}

}  // namespace ft
