// Checked against: step_seconds and layer_seconds, which the parts must sum to for random parameters and counts, and
// attributions known by hand.
#include "tuner/step_parts.h"

#include <doctest/doctest.h>

#include "kernels/base/random.h"

namespace ft {
namespace {

double uniform(Random& random, double high) { return high * static_cast<double>(random.below(1000)) / 999; }

CostParameters random_cost(Random& random) {
  CostParameters cost;
  for (int term = 0; term < kCostTermCount; ++term) {
    const bool ratio = cost_terms()[static_cast<size_t>(term)].unit == "1";
    cost.value[term] = random.below(4) == 0 ? 0 : uniform(random, ratio ? 2 : 60e-6);
  }
  return cost;
}

LayerCounts random_counts(Random& random, int tokens) {
  LayerCounts n;
  n.tokens = tokens;
  n.hits = static_cast<int>(random.below(4));
  n.fetched = static_cast<int>(random.below(4));
  n.cpu = static_cast<int>(random.below(4));
  n.promoted = n.cpu == 0 ? 0 : static_cast<int>(random.below(static_cast<uint64_t>(n.cpu) + 1));
  n.prefetched = static_cast<int>(random.below(5));
  n.hit_picks = n.hits * tokens;
  n.fetched_picks = n.fetched * tokens;
  n.cpu_picks = n.cpu * tokens;
  return n;
}

}  // namespace

TEST_CASE("the parts of a layer and of a step sum to its time, on both devices, and none is negative") {
  Random random(4);
  for (int round = 0; round < 4000; ++round) {
    const Device device = round % 2 == 0 ? Device::kHost : Device::kCuda;
    const CostParameters cost = random_cost(random);
    const int tokens = 1 + static_cast<int>(random.below(8));
    DenseCost dense;
    dense.fixed = uniform(random, 1e-3);
    dense.per_token = uniform(random, 1e-4);
    dense.per_position = uniform(random, 1e-6);
    dense.per_further_position = uniform(random, 1e-6);
    ReplayResult replay;
    replay.steps = 3;
    replay.layers = 4;
    for (int i = 0; i < 12; ++i) replay.distribution.push_back({random_counts(random, tokens), 1});
    const auto context = static_cast<int64_t>(random.below(4096));
    const double between = between_layers(dense, tokens, context, replay.layers);
    for (const WeightedCounts& entry : replay.distribution) {
      const StepParts parts = layer_parts(cost, device, entry.counts, between);
      CHECK(parts.total() == doctest::Approx(layer_seconds(cost, device, entry.counts, between)).epsilon(1e-12));
      for (const double part : parts.seconds) CHECK(part >= -1e-18);
    }
    const StepParts parts = step_parts(cost, dense, device, context, replay);
    CHECK(parts.total() == doctest::Approx(step_seconds(cost, dense, device, context, replay)).epsilon(1e-12));
    CHECK(parts[StepPart::kDense] + parts[StepPart::kAttention] ==
          doctest::Approx(dense.seconds(tokens, context)).epsilon(1e-12));
  }
}

TEST_CASE("each arm's time is its own part") {
  CostParameters cost;
  cost[CostTerm::kBase] = 10e-6;
  cost[CostTerm::kBasePerToken] = 1e-6;
  cost[CostTerm::kSlotFixed] = 2e-6;
  cost[CostTerm::kSlotPerExpert] = 5e-6;
  cost[CostTerm::kCpuFixed] = 7e-6;
  cost[CostTerm::kCpuPerExpert] = 30e-6;
  cost[CostTerm::kLinkFixed] = 3e-6;
  cost[CostTerm::kLinkPerExpert] = 50e-6;
  cost[CostTerm::kLinkIdle] = 9e-6;
  cost[CostTerm::kPerPromotion] = 4e-6;
  const auto us = [&](Device device, const LayerCounts& counts, StepPart part) {
    return 1e6 * layer_parts(cost, device, counts)[part];
  };
  const LayerCounts hits = full_counts(1, 4, 0, 0, 0), cpu = full_counts(1, 4, 0, 2, 1),
                    fetch = full_counts(1, 0, 2, 0, 0);
  for (const Device device : {Device::kHost, Device::kCuda}) {
    CHECK(us(device, hits, StepPart::kExperts) == doctest::Approx(20));
    CHECK(us(device, hits, StepPart::kSynchronization) == doctest::Approx(12));
    CHECK(us(device, hits, StepPart::kMerge) == doctest::Approx(1));
    CHECK(us(device, hits, StepPart::kFetch) == doctest::Approx(0));
    CHECK(us(device, cpu, StepPart::kCpu) == doctest::Approx(60));
  }
  CHECK(us(Device::kHost, cpu, StepPart::kFetch) == doctest::Approx(4));  // the promotion
  CHECK(us(Device::kCuda, cpu, StepPart::kFetch) == doctest::Approx(0));  // there before the CPU's experts are
  // Three take 150 us of the link, the layer 78.
  CHECK(us(Device::kCuda, full_counts(1, 4, 0, 2, 3), StepPart::kFetch) == doctest::Approx(150 - 78));
  CHECK(us(Device::kHost, cpu, StepPart::kExperts) == doctest::Approx(20));  // one line of work
  CHECK(us(Device::kCuda, cpu, StepPart::kExperts) == doctest::Approx(0));   // beside the CPU, which is slower
  CHECK(us(Device::kHost, fetch, StepPart::kIdle) == doctest::Approx(9));
  CHECK(us(Device::kCuda, fetch, StepPart::kIdle) == doctest::Approx(0));
  CHECK(us(Device::kCuda, fetch, StepPart::kFetch) == doctest::Approx(100));
  CHECK(us(Device::kCuda, fetch, StepPart::kSynchronization) == doctest::Approx(10 + 2 + 3));
  CHECK(us(Device::kCuda, fetch, StepPart::kExperts) == doctest::Approx(10));
}

TEST_CASE("a profile's parts have the points in order, and leave out what is zero everywhere") {
  StepParts a, b;
  a[StepPart::kDense] = 1;
  b[StepPart::kDense] = 2;
  b[StepPart::kFetch] = 3;
  const std::vector<CostPart> parts = cost_parts({a, b});
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].name == "dense");
  CHECK(parts[0].seconds == std::vector<double>{1, 2});
  CHECK(parts[1].name == "fetch");
  CHECK(parts[1].seconds == std::vector<double>{0, 3});
  CHECK(cost_parts({}).empty());
}

}  // namespace ft
