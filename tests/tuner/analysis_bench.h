// A machine made of numbers: measurements whose cells follow given parameters, a generated trace, a geometry and a
// memory plan. What analyze() and conclude() are tested on, without a model.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "probes/layer_sweep.h"
#include "tests/tuner/made_machine.h"
#include "tuner/analysis.h"

namespace ft {

struct AnalysisBench : MadeMachine {
  CostParameters truth;
  DenseCost dense = {2, 100e-6, 10e-6, 1e-8, 2e-8};
  RoutingTrace trace = generate_trace("glm-4.7-flash", kLayers, kExperts, kTopK, 400, 3);
  std::vector<Measurement> measurements;
  AnalysisInput input;
  double noise = 0;
  uint64_t seed = 1;

  AnalysisBench(Device device, int64_t slots, std::vector<int64_t> batches = {1, 4}) {
    truth.threads = 2;
    truth[CostTerm::kBase] = 8e-6;
    truth[CostTerm::kBasePerToken] = 1e-6;
    truth[CostTerm::kSlotFixed] = 2e-6;
    truth[CostTerm::kSlotPerExpert] = 4e-6;
    truth[CostTerm::kCpuFixed] = 6e-6;
    truth[CostTerm::kCpuPerExpert] = 60e-6;
    truth[CostTerm::kCpuPerPick] = 5e-6;
    truth[CostTerm::kLinkFixed] = 5e-6;
    truth[CostTerm::kLinkPerExpert] = 50e-6;
    truth[CostTerm::kContentionCompute] = 0.2;
    truth[CostTerm::kContentionLink] = 0.1;
    input.trace = &trace;
    describe(input, device, slots, static_cast<int>(batches.back()));
    input.batches = std::move(batches);
  }
  AnalysisBench(const AnalysisBench&) = delete;
  AnalysisBench& operator=(const AnalysisBench&) = delete;

  // layer_sweep and dense as they would be sampled on this machine with `threads`.
  void measure(const CostParameters& cost, int threads) {
    Random random(seed);
    const auto sample = [&](double seconds) { return 1e6 * seconds * (1 + noise * random.normal()); };
    const auto add = [&](const char* probe, std::string name, std::map<std::string, double> at, double seconds) {
      Measurement m;
      m.probe = probe;
      m.name = std::move(name);
      m.unit = "us";
      m.stop_reason = "samples";
      m.at = std::move(at);
      for (int i = 0; i < 7; ++i) m.values.push_back(sample(seconds));
      measurements.push_back(std::move(m));
    };
    for (const SweepPoint& point : sweep_grid(input.geometry.expert, input.base.max_batch, 1000, false)) {
      const auto at = sweep_coordinates(point, threads, kTopK);
      LayerCounts n{point.tokens, point.hits, point.fetched, point.cpu, point.promoted, 0, 0, 0, 0};
      n.hit_picks = picks_of(point, point.hits, kTopK);
      n.fetched_picks = picks_of(point, point.fetched, kTopK);
      n.cpu_picks = picks_of(point, point.cpu, kTopK);
      add("layer_sweep", "sweep" + std::to_string(measurements.size()), at, layer_seconds(cost, input.base.device, n));
    }
    for (const int64_t context : {1, 128, 1024}) {
      for (const int64_t batch : input.batches) {
        const auto tokens = static_cast<int>(batch);
        const LayerCounts hits = full_counts(tokens, kTopK, 0, 0, 0);
        add("dense", "dense" + std::to_string(measurements.size()),
            {{"threads", threads},
             {"tokens", tokens},
             {"context", static_cast<double>(context)},
             {"hits", kTopK},
             {"hit_picks", kTopK * tokens}},
            dense.seconds(tokens, context) + kLayers * layer_seconds(cost, input.base.device, hits));
      }
    }
    input.measurements = measurements;
  }

  // The series of `decode`: every candidate to confirm at its predicted rates times `speed[index]` (1 beyond it).
  void decode(const Analysis& analysis, const std::vector<double>& speed, int rounds = 9) {
    for (size_t index = 0; index < analysis.confirmed.size(); ++index) {
      const CandidatePrediction& candidate = analysis.search.ranked[analysis.confirmed[index]];
      size_t point = 0;
      for (const int64_t context : input.contexts) {
        for (const int64_t batch : input.batches) {
          Measurement m;
          m.probe = "decode";
          m.name = "candidate" + std::to_string(index) + "." + std::to_string(point);
          m.unit = "tok/s";
          m.stop_reason = "samples";
          const double rate = candidate.tok_s[point++] * (index < speed.size() ? speed[index] : 1);
          for (int i = 0; i < rounds; ++i) m.values.push_back(rate * (1 + 0.002 * ((i * 7) % 5 - 2)));
          m.at = {{"candidate", static_cast<double>(index)},
                  {"context", static_cast<double>(context)},
                  {"context_filled", static_cast<double>(context)},
                  {"batch", static_cast<double>(batch)},
                  {"hit_rate", candidate.hit_rate[0]}};
          measurements.push_back(std::move(m));
        }
      }
    }
    input.measurements = measurements;
  }
};

}  // namespace ft
