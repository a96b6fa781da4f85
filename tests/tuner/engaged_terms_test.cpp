// Checked against: the lines and differences that the samples were made from, and layers with prefetches in closed
// form.
#include "tuner/engaged_terms.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/base/random.h"
#include "probes/dense.h"
#include "probes/layer_sweep.h"
#include "tuner/cells.h"
#include "tuner/cost_model.h"

namespace ft {
namespace {

constexpr double kBlob = 2.7e6;

// pcie_gather of a link with these lines, 7 rounds.
std::vector<Samples> gather(const LinkLine& sm, const LinkLine& engine, double noise) {
  Random random(3);
  std::vector<Samples> all;
  for (const bool copy_engine : {false, true}) {
    for (const int n : {1, 2, 4, 8, 16, 32}) {
      const LinkLine& line = copy_engine ? engine : sm;
      Samples one;
      one.name = std::string(copy_engine ? "copy_engine" : "sm_gather") + ".n=" + std::to_string(n);
      one.unit = "GB/s";
      one.at = {{"n", n}, {"bytes", n * kBlob}};
      for (int i = 0; i < 7; ++i) {
        const double seconds = (line.fixed + line.per_blob * n) * (1 + noise * random.normal());
        one.values.push_back(n * kBlob / seconds * 1e-9);
      }
      all.push_back(std::move(one));
    }
  }
  return all;
}

CostFit some_fit() {
  CostFit fit;
  fit.cost.threads = 2;
  fit.cost[CostTerm::kLinkFixed] = 9e-6;
  fit.cost[CostTerm::kLinkPerExpert] = 60e-6;
  fit.draws.assign(40, fit.cost);
  fit.intervals.resize(kCostTermCount);
  return fit;
}

Samples layer(double look_ahead, int tokens, int threads, std::vector<double> us) {
  Samples one;
  one.name = "pair";
  one.unit = "us";
  one.at = {{"threads", threads}, {"tokens", tokens}, {kLookAheadCoordinate, look_ahead}};
  one.values = std::move(us);
  return one;
}

}  // namespace

TEST_CASE("the copy engine's link is the sweep's, higher by the lines' difference and steeper by their ratio") {
  const LinkLine sm{4e-6, 54e-6}, engine{16e-6, 50e-6};
  const std::vector<Samples> samples = gather(sm, engine, 0);
  CHECK(link_line(samples, "copy_engine").fixed == doctest::Approx(16e-6));
  CHECK(link_line(samples, "sm_gather").per_blob == doctest::Approx(54e-6));
  CostFit fit = some_fit();
  add_copy_engine_terms({}, samples, 1, fit);
  CHECK(fit.cost[CostTerm::kCopyEngineFixed] == doctest::Approx(9e-6 + 12e-6));
  CHECK(fit.cost[CostTerm::kCopyEnginePerExpert] == doctest::Approx(60e-6 * 50 / 54));
  const CostParameters engaged = engaged_cost(fit.cost, FetchMechanism::kCopyEngine, LookAhead::kOff);
  CHECK(engaged[CostTerm::kLinkFixed] == fit.cost[CostTerm::kCopyEngineFixed]);
  CHECK(engaged[CostTerm::kLinkPerExpert] == fit.cost[CostTerm::kCopyEnginePerExpert]);
  const CostParameters by_sm = engaged_cost(fit.cost, FetchMechanism::kSm, LookAhead::kOff);
  CHECK(by_sm[CostTerm::kLinkFixed] == 9e-6);

  CostFit noisy = some_fit();
  add_copy_engine_terms({}, gather(sm, engine, 0.03), 1, noisy);
  for (const CostTerm term : {CostTerm::kCopyEngineFixed, CostTerm::kCopyEnginePerExpert}) {
    const Interval interval = noisy.intervals[static_cast<size_t>(term)];
    CHECK(interval.low <= noisy.cost[term]);
    CHECK(interval.high >= noisy.cost[term]);
    CHECK(interval.high > interval.low);
  }
  CHECK(noisy.cost[CostTerm::kCopyEnginePerExpert] == doctest::Approx(60e-6 * 50 / 54).epsilon(0.03));

  CostFit without = some_fit();  // one mechanism alone says nothing of the other
  std::vector<Samples> half = samples;
  std::erase_if(half, [](const Samples& one) { return one.name.starts_with("copy_engine"); });
  add_copy_engine_terms({}, half, 1, without);
  CHECK(without.cost[CostTerm::kCopyEnginePerExpert] == 0);
}

TEST_CASE("the sweep's pairs say what the copy engine costs, whatever the gather says, and are no cells of it") {
  const auto fetches = [](double copy_engine, int fetched, std::vector<double> us) {
    Samples one;
    one.name = "pair";
    one.unit = "us";
    one.at = {{"threads", 4}, {"tokens", 1}, {"fetched", fetched}, {kCopyEngineCoordinate, copy_engine}};
    one.values = std::move(us);
    return one;
  };
  // 20 us more, 5 us less for every expert; a slow round meets both of a pair.
  const std::vector<Samples> samples = {fetches(0, 1, {90, 290, 91}), fetches(1, 1, {105, 305, 106}),
                                        fetches(0, 4, {300, 300, 300}), fetches(1, 4, {300, 300, 300})};
  const std::vector<Samples> link = gather({4e-6, 54e-6}, {16e-6, 50e-6}, 0);
  CostFit fit = some_fit();
  add_copy_engine_terms(samples, link, 1, fit);
  CHECK(fit.cost[CostTerm::kCopyEngineFixed] == doctest::Approx(29e-6));
  CHECK(fit.cost[CostTerm::kCopyEnginePerExpert] == doctest::Approx(55e-6));
  CHECK(sweep_cells(samples, 4).empty());
  // Never below nothing.
  const std::vector<Samples> faster = {fetches(0, 1, {90}), fetches(1, 1, {10}), fetches(0, 4, {300}),
                                       fetches(1, 4, {20})};
  CostFit least = some_fit();
  add_copy_engine_terms(faster, {}, 1, least);
  CHECK(least.cost[CostTerm::kCopyEngineFixed] == 0);
  CHECK(least.cost[CostTerm::kCopyEnginePerExpert] == 0);
  // One pair says nothing of the slope.
  CostFit one = some_fit();
  add_copy_engine_terms(std::span(samples).first(2), {}, 1, one);
  CHECK(one.cost[CostTerm::kCopyEnginePerExpert] == 0);
  add_copy_engine_terms(std::span(samples).first(2), link, 1, one);
  CHECK(one.cost[CostTerm::kCopyEngineFixed] == doctest::Approx(9e-6 + 12e-6));
}

TEST_CASE("look-ahead costs what pairs differ by, per layer and per token, and no pair is a cell of the sweep") {
  // 0.5 us a layer and 0.25 us a token; a delay of a whole round cancels.
  const std::vector<Samples> samples = {layer(0, 1, 2, {3, 30, 3.1}), layer(1, 1, 2, {3.75, 30.75, 3.85}),
                                        layer(0, 8, 2, {8, 8, 8}),    layer(1, 8, 2, {10.5, 10.5, 10.5}),
                                        layer(0, 1, 4, {1, 1, 1}),    layer(1, 1, 4, {9, 9, 9})};
  CostFit fit = some_fit();
  add_look_ahead_terms(samples, 1, fit);
  CHECK(1e6 * fit.cost[CostTerm::kLookAhead] == doctest::Approx(0.5));
  CHECK(1e6 * fit.cost[CostTerm::kLookAheadPerToken] == doctest::Approx(0.25));
  const CostParameters engaged = engaged_cost(fit.cost, FetchMechanism::kSm, LookAhead::kRouter);
  CHECK(1e6 * (layer_seconds(engaged, Device::kHost, full_counts(8, 0, 0, 0, 0)) -
               layer_seconds(fit.cost, Device::kHost, full_counts(8, 0, 0, 0, 0))) ==
        doctest::Approx(2.5));
  CHECK(sweep_cells(samples, 2).empty());
  CostFit other = some_fit();
  other.cost.threads = 3;
  add_look_ahead_terms(samples, 1, other);
  CHECK(other.cost[CostTerm::kLookAhead] == 0);
}

TEST_CASE(
    "the copier costs what steps with and without it differ by, once a step that promotes, and is no dense cell") {
  const auto step = [](double copier, int tokens, int threads, std::vector<double> us) {
    Samples one;
    one.name = "step";
    one.unit = "us";
    one.at = {{"threads", threads}, {"tokens", tokens}, {"context", 128}, {"hits", 8}, {"hit_picks", 8}};
    if (copier > 0) one.at[kCopierCoordinate] = copier;
    one.values = std::move(us);
    return one;
  };
  // 500 us; a slow round meets both of a pair.
  const std::vector<Samples> samples = {step(0, 1, 2, {1000, 3000, 1010}), step(1, 1, 2, {1500, 3500, 1510}),
                                        step(0, 4, 2, {2000, 2000, 2000}), step(1, 4, 2, {2500, 2500, 2500}),
                                        step(0, 1, 4, {1000, 1000, 1000}), step(1, 1, 4, {9000, 9000, 9000})};
  CostFit fit = some_fit();
  add_copier_term(samples, 1, fit);
  CHECK(1e6 * fit.cost[CostTerm::kCopier] == doctest::Approx(500));
  CHECK(fit.intervals[static_cast<size_t>(CostTerm::kCopier)].high == doctest::Approx(500e-6));
  CHECK(dense_cells(samples, fit.cost, Device::kCuda, 4).size() == 2);
  ReplayResult replay;
  replay.steps = 1;
  replay.layers = 4;
  const auto step_us = [&](const LayerCounts& counts, Device device) {
    replay.distribution = {{counts, 4}};
    return 1e6 * step_seconds(fit.cost, {}, device, 0, replay);
  };
  fit.cost[CostTerm::kCpuPerExpert] = 100e-6;
  const LayerCounts plain = full_counts(1, 0, 0, 1, 0), promoting = full_counts(1, 0, 0, 1, 1);
  CHECK(step_us(promoting, Device::kCuda) - step_us(plain, Device::kCuda) == doctest::Approx(500));
  CHECK(step_us(promoting, Device::kHost) == doctest::Approx(step_us(plain, Device::kHost)));
  LayerCounts prefetching = plain;
  prefetching.prefetched = 1;
  CHECK(step_us(prefetching, Device::kCuda) - step_us(plain, Device::kCuda) == doctest::Approx(500));
  // Faster with it is noise.
  add_copier_term(std::vector<Samples>{step(0, 1, 2, {1000}), step(1, 1, 2, {990})}, 1, fit);
  CHECK(fit.cost[CostTerm::kCopier] == 0);
}

TEST_CASE("prefetched experts use the link behind the fetches: free while it is idle, waited for beyond") {
  CostParameters cost;
  cost[CostTerm::kBase] = 10e-6;
  cost[CostTerm::kSlotPerExpert] = 5e-6;
  cost[CostTerm::kCpuPerExpert] = 100e-6;
  cost[CostTerm::kLinkFixed] = 3e-6;
  cost[CostTerm::kLinkPerExpert] = 50e-6;
  const auto us = [&](Device device, LayerCounts counts, int prefetched, double between_us = 0) {
    counts.prefetched = prefetched;
    return 1e6 * layer_seconds(cost, device, counts, between_us * 1e-6);
  };
  for (const Device device : {Device::kHost, Device::kCuda}) {
    const LayerCounts hits = full_counts(1, 2, 0, 0, 0), cpu = full_counts(1, 0, 0, 2, 0);
    CHECK(us(device, hits, 0) == doctest::Approx(20));
    CHECK(us(device, hits, 1) == doctest::Approx(53));       // the link's time
    CHECK(us(device, hits, 1, 30) == doctest::Approx(23));   // of it 30 after the layer
    CHECK(us(device, hits, 1, 100) == doctest::Approx(20));  // all of it
    CHECK(us(device, cpu, 4) == doctest::Approx(210));       // beside 200 us of CPU work: 203 of link
    CHECK(us(device, cpu, 5) == doctest::Approx(253));
  }
  // A fetch and two prefetches keep the link 153 us; the fetched one alone is there after 53.
  CHECK(us(Device::kCuda, full_counts(1, 0, 1, 0, 0), 0) == doctest::Approx(10 + 53 + 5));
  CHECK(us(Device::kCuda, full_counts(1, 0, 1, 0, 0), 2) == doctest::Approx(153));
  CHECK(us(Device::kCuda, full_counts(1, 0, 1, 0, 0), 2, 60) == doctest::Approx(93));
  // They slow what computes beside them, as fetches do.
  cost[CostTerm::kContentionCompute] = 0.5;
  for (const Device device : {Device::kHost, Device::kCuda}) {
    CHECK(us(device, full_counts(1, 0, 0, 2, 0), 4) > 210 + 60);
  }
}

}  // namespace ft
