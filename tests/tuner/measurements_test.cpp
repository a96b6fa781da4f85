// Checked against: hand-made measurements whose cells follow known parameters (closed forms), and round trips.
#include "tuner/measurements.h"

#include <doctest/doctest.h>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "probes/layer_sweep.h"

namespace ft {
namespace {

constexpr int kLayers = 5;

Measurement series(std::string probe, std::string name, std::vector<double> values, std::map<std::string, double> at) {
  Measurement m;
  m.probe = std::move(probe);
  m.name = std::move(name);
  m.unit = "us";
  m.values = std::move(values);
  m.stop_reason = "samples";
  m.at = std::move(at);
  return m;
}

// Microseconds of a layer: 3 + 7 per CPU expert, with `threads` threads twice as fast as one.
std::vector<Measurement> machine(const std::vector<int>& thread_counts) {
  std::vector<Measurement> all;
  for (const int threads : thread_counts) {
    for (int cpu = 0; cpu <= 4; ++cpu) {
      const double us = (3 + 7.0 * cpu) / threads;
      all.push_back(series("layer_sweep", "c" + std::to_string(cpu), {us, us, 9 * us},
                           {{"threads", threads}, {"tokens", 1}, {"cpu", cpu}, {"cpu_picks", cpu}}));
    }
    for (const int context : {1, 100, 1000}) {
      const double us = 50.0 / threads + 0.1 * context + kLayers * 3.0 / threads;
      all.push_back(series("dense", "d" + std::to_string(context), {us, us, us},
                           {{"threads", threads}, {"tokens", 1}, {"context", context}, {"hits", 0}}));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("samples and measurements are the same data") {
  Samples samples;
  samples.name = "n";
  samples.unit = "GB/s";
  samples.values = {1, 2};
  samples.discarded = 3;
  samples.stop_reason = "time";
  samples.reduced = true;
  samples.at = {{"threads", 2}};
  samples.remarks = {"r"};
  const std::vector<Measurement> kept = {to_measurement("stream", samples), to_measurement("dense", samples),
                                         series("stream", "empty", {}, {})};
  const std::vector<Samples> back = samples_of(kept, "stream");
  REQUIRE(back.size() == 1);  // a series without values is none
  CHECK(back[0].name == "n");
  CHECK(back[0].unit == "GB/s");
  CHECK(back[0].values == samples.values);
  CHECK(back[0].discarded == 3);
  CHECK(back[0].stop_reason == "time");
  CHECK(back[0].reduced);
  CHECK(back[0].at == samples.at);
  CHECK(back[0].remarks == samples.remarks);
}

TEST_CASE("more samples follow those of the same series, with their yardstick") {
  std::vector<Measurement> all = {series("expert_single", "gate_up.best", {1, 2}, {{"best_of", 12}}),
                                  series("yardstick", "yardstick.gate_up.best", {30, 31}, {{"others_share", 0.2}}),
                                  series("stream", "gate_up.best", {7}, {})};
  Samples kernel, yardstick, unknown;
  kernel.name = "gate_up.best";
  kernel.values = {3};
  kernel.discarded = 1;
  yardstick.name = "yardstick.gate_up.best";
  yardstick.values = {32};
  yardstick.at = {{"others_share", 0.1}};
  unknown.name = "down.best";
  unknown.values = {4};
  append_samples(all, "expert_single", std::vector<Samples>{kernel, yardstick, unknown});
  REQUIRE(all.size() == 3);
  CHECK(all[0].values == std::vector<double>{1, 2, 3});
  CHECK(all[0].discarded == 1);
  CHECK(all[1].values == std::vector<double>{30, 31, 32});
  CHECK(all[1].at.at("others_share") == 0.2);
  CHECK(all[2].values == std::vector<double>{7});
  CHECK(all[0].at == std::map<std::string, double>{{"best_of", 12}});
}

TEST_CASE("the ceiling is the best median of mem_read with these threads") {
  const std::vector<Measurement> all = {series("stream", "mem_read.node=0", {10, 30, 20}, {{"threads", 2}}),
                                        series("stream", "mem_read.node=1", {25, 24, 26}, {{"threads", 2}}),
                                        series("stream", "mem_read", {99}, {{"threads", 4}}),
                                        series("stream", "triad", {77}, {{"threads", 2}}),
                                        series("expert_single", "mem_read", {88}, {{"threads", 2}})};
  CHECK(mem_read_gbps(all, 2) == 25);
  CHECK(mem_read_gbps(all, 4) == 99);
  CHECK(mem_read_gbps(all, 8) == 0);
}

TEST_CASE("on a GPU the ceiling is what experts come through, and the link is a condition") {
  const std::vector<Measurement> all = {series("stream", "mem_read", {100}, {{"threads", 8}}),
                                        series("pcie_linear", "h2d.bytes=65536", {9}, {{"bytes", 65536}}),
                                        series("pcie_linear", "h2d.bytes=268435456", {54, 50, 58},
                                               {{"bytes", 268435456}, {"link_generation", 5}, {"link_width", 16}}),
                                        series("pcie_linear", "both.bytes=268435456", {90}, {{"bytes", 536870912}})};
  EngineConfig config;
  config.device = Device::kCuda;
  config.threads = 8;
  const auto ceiling = [&](Strategy strategy) {
    config.strategy = strategy;
    return ceiling_gbps(all, config);
  };
  CHECK(ceiling(Strategy::kOffload) == 54);
  CHECK(ceiling(Strategy::kCpu) == 100);
  CHECK(ceiling(Strategy::kHybrid) == 154);
  CHECK(ceiling(Strategy::kResident) == 0);
  config.link_slowdown = 4;
  CHECK(ceiling(Strategy::kOffload) == 13.5);
  config.device = Device::kHost;
  CHECK(ceiling(Strategy::kOffload) == 100);
  CHECK(link_condition(all) == "PCIe 5 x16 under load, 54.0 GB/s to the device");
  CHECK(link_condition(std::vector<Measurement>{all[1]}) == "generation and width not known, 9.0 GB/s to the device");
  CHECK(link_condition(std::vector<Measurement>{all[0]}).empty());
}

// Qwen3-30B-A3B on a fast GPU behind PCIe 5, as the probes would sample it: 55 us an expert over the link, 30 us on the
// CPU, 2 us in slots; both arms slow each other down. 3 % noise, 7 rounds.
TEST_CASE("a GPU's sweep and dense steps give their parameters back, and predict cells that were held out") {
  CostParameters truth;
  truth.threads = 16;
  truth[CostTerm::kBase] = 18e-6;
  truth[CostTerm::kBasePerToken] = 0.5e-6;
  truth[CostTerm::kSlotFixed] = 3e-6;
  truth[CostTerm::kSlotPerExpert] = 2e-6;
  truth[CostTerm::kCpuFixed] = 22e-6;
  truth[CostTerm::kCpuPerExpert] = 30e-6;
  truth[CostTerm::kCpuPerPick] = 5e-6;
  truth[CostTerm::kLinkFixed] = 9e-6;
  truth[CostTerm::kLinkPerExpert] = 55e-6;
  truth[CostTerm::kContentionCompute] = 0.3;
  truth[CostTerm::kContentionLink] = 0.1;
  Random random(11);
  const auto values = [&](double us) {
    std::vector<double> result;
    for (int i = 0; i < 7; ++i) result.push_back(us * (1 + 0.03 * random.normal()));
    return result;
  };
  std::vector<Measurement> all;
  for (const SweepPoint& point : sweep_grid({2048, 768, 128, 8}, 8, 1500, false)) {
    Measurement m = series("layer_sweep", "", {}, sweep_coordinates(point, truth.threads, 8));
    LayerCounts counts{point.tokens,
                       point.hits,
                       point.fetched,
                       point.cpu,
                       point.promoted,
                       picks_of(point, point.hits, 8),
                       picks_of(point, point.fetched, 8),
                       picks_of(point, point.cpu, 8)};
    m.values = values(1e6 * layer_seconds(truth, Device::kCuda, counts));
    all.push_back(std::move(m));
  }
  const DenseCost dense{16, 900e-6, 40e-6, 20e-9, 25e-9};
  for (const int tokens : {1, 8}) {
    for (const int context : {1, 128, 1024, 4096}) {
      LayerCounts counts = full_counts(1, std::min(8 * tokens, 40), 0, 0, 0);
      counts.tokens = tokens;
      counts.hit_picks = 8 * tokens;
      const double seconds = dense.seconds(tokens, context) + 48 * layer_seconds(truth, Device::kCuda, counts);
      all.push_back(series("dense", "", values(1e6 * seconds),
                           {{"threads", 16},
                            {"tokens", tokens},
                            {"context", context},
                            {"hits", counts.hits},
                            {"hit_picks", counts.hit_picks}}));
    }
  }
  const std::vector<ThreadModel> models = fit_models(all, Device::kCuda, 48, 5);
  REQUIRE(models.size() == 1);
  const CostFit& fit = models[0].cost;
  CHECK(fit.held_out_error < 0.03);
  CHECK(fit.held_out_error_without_fixed_costs > 2 * fit.held_out_error);
  CHECK(fit.cells_held_out > 10);
  for (const CostTerm term : {CostTerm::kCpuPerExpert, CostTerm::kLinkPerExpert, CostTerm::kCpuPerPick}) {
    CAPTURE(cost_terms()[static_cast<size_t>(term)].name);
    CHECK(fit.cost[term] == doctest::Approx(truth[term]).epsilon(0.1));
  }
  CHECK(fit.cost[CostTerm::kCpuFixed] == doctest::Approx(22e-6).epsilon(0.25));
  CHECK(fit.cost[CostTerm::kBase] == doctest::Approx(18e-6).epsilon(0.15));
  CHECK(fit.cost[CostTerm::kLinkIdle] == 0);  // a GPU does not fall asleep
  CHECK(models[0].dense.cost.seconds(1, 1024) == doctest::Approx(dense.seconds(1, 1024)).epsilon(0.15));
  CHECK(models[0].dense.cost.seconds(8, 1024) == doctest::Approx(dense.seconds(8, 1024)).epsilon(0.15));
}

TEST_CASE("one model per thread count, from its own cells") {
  const std::vector<ThreadModel> models = fit_models(machine({1, 2}), Device::kHost, kLayers, 1);
  REQUIRE(models.size() == 2);
  for (const ThreadModel& model : models) {
    const double threads = model.cost.cost.threads;
    const CostParameters& cost = model.cost.cost;
    for (const int cpu : {0, 2, 4}) {
      LayerCounts counts;
      counts.cpu = counts.cpu_picks = cpu;
      CHECK(1e6 * layer_seconds(cost, Device::kHost, counts) == doctest::Approx((3 + 7.0 * cpu) / threads));
    }
    CHECK(1e6 * model.dense.cost.seconds(1, 500) == doctest::Approx(50 / threads + 50).epsilon(1e-6));
  }
  const CostModelRecord record = cost_model_record(models, kLayers);
  CHECK(record.cells_fitted == 10);
  CHECK(record.cells_held_out == 0);
  int found = 0;
  for (const Parameter& parameter : record.parameters) {
    CHECK(parameter.low <= parameter.value);
    CHECK(parameter.high >= parameter.value);
    if (parameter.name == "s_c.threads=2") CHECK(1e6 * parameter.value == doctest::Approx(3.5));
    if (parameter.name == "dense_per_position.threads=1") CHECK(1e6 * parameter.value == doctest::Approx(0.1));
    found += parameter.name == "s_c.threads=2" || parameter.name == "dense_per_position.threads=1" ? 1 : 0;
  }
  CHECK(found == 2);
}

TEST_CASE("a thread count without dense steps has no model; with none left it is an error") {
  std::vector<Measurement> all = machine({1, 2});
  std::erase_if(all, [](const Measurement& m) { return m.probe == "dense" && m.at.at("threads") == 2; });
  const std::vector<ThreadModel> models = fit_models(all, Device::kHost, kLayers, 1);
  REQUIRE(models.size() == 1);
  CHECK(models[0].cost.cost.threads == 1);
  std::erase_if(all, [](const Measurement& m) { return m.probe == "dense"; });
  CHECK_THROWS_WITH_AS(fit_models(all, Device::kHost, kLayers, 1), doctest::Contains("no thread count in common"),
                       Error);
  CHECK_THROWS_AS(fit_models({}, Device::kHost, kLayers, 1), Error);
}

TEST_CASE("a decode series is found by candidate, context and batch") {
  const std::vector<Measurement> all = {series("decode", "a", {1}, {{"candidate", 0}, {"context", 128}, {"batch", 1}}),
                                        series("decode", "b", {1}, {{"candidate", 1}, {"context", 128}, {"batch", 1}}),
                                        series("decode", "c", {1}, {{"candidate", 1}, {"context", 128}, {"batch", 8}}),
                                        series("decode", "d", {}, {{"candidate", 1}, {"context", 1024}, {"batch", 8}}),
                                        series("dense", "e", {1}, {{"candidate", 2}, {"context", 128}, {"batch", 1}})};
  REQUIRE(decode_series(all, 1, 128, 8) != nullptr);
  CHECK(decode_series(all, 1, 128, 8)->name == "c");
  CHECK(decode_series(all, 0, 128, 1)->name == "a");
  CHECK(decode_series(all, 1, 1024, 8) == nullptr);  // without values
  CHECK(decode_series(all, 0, 128, 8) == nullptr);
  CHECK(decode_series(all, 2, 128, 1) == nullptr);  // another probe's
}

}  // namespace ft
