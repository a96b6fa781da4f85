// Parts that decode against the bound: cells, hybrid over offload, batches, look-ahead.
#include <algorithm>
#include <cmath>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

constexpr double kCellGoal = 1.15, kBatchGoal = 1.3;

std::string percent_text(double percent) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g%%", percent);
  return text;
}

std::string text_of(const ModelCase& one, double percent, const std::string& preset, Strategy strategy) {
  return std::string(one.geometry.name) + " " + percent_text(percent) + " " + preset + " " +
         std::string(strategy_name(strategy));
}

// One run in an engine made for it. Gives the cell.
Cell run_cell(ModelCase& one, const std::string& preset, Strategy strategy, int64_t slots, int batch, double resident) {
  const Bench& bench = one.bench;
  const TraceSet& traces = one.traces(preset);
  const DecodePlan plan = plan_decode(one, traces, strategy, slots, batch);
  const std::unique_ptr<Engine> engine = one.engine(plan.config);
  const DecodeResult result =
      decode(*engine, plan, traces, batch, bench.options.warm_steps, bench.options.measured_steps);
  return make_cell(one, preset, plan.config, batch, result, resident);
}

}  // namespace

void run_cells(ModelCase& one) {
  Bench& bench = one.bench;
  bench.report.heading("cells of " + std::string(one.geometry.name) +
                       ": goal at most 1.15 of the bound (* T_res counted at its cap)");
  one.curves();
  double seconds = 1;  // of the cell before
  for (const double percent : bench.options.slots_percent) {
    const int64_t slots = slots_of(one.geometry, percent);
    double resident = 0;
    for (const std::string& preset : bench.options.presets) {
      for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
        const std::string name = text_of(one, percent, preset, strategy);
        if (!bench.has_time(seconds, "cells", name)) continue;
        const TraceSet& traces = one.traces(preset);
        const double begin = now_seconds();
        try {
          bench.progress(name);
          if (resident == 0) resident = measured_resident(one, traces, slots, 1);
          bench.report.cell("cells", run_cell(one, preset, strategy, slots, 1, resident), kCellGoal);
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::kInterrupted) throw;
          bench.report.not_run("cells", name, error.what());
        }
        seconds = now_seconds() - begin;
      }
    }
  }
}

// Both engines in turns, so that a drift of the machine meets both.
void run_hybrid_gain(ModelCase& one) {
  struct Goal {
    const char* preset;
    double least;
  };
  constexpr Goal kGoals[] = {{"q38-diverse", 1.45}, {"q38-mixed", 1.25}, {"q38-agentic", 1.0}};
  constexpr double kPercent = 15;
  constexpr int kTurns = 2;
  Bench& bench = one.bench;
  bench.report.heading("hybrid over offload, 15 % of " + std::string(one.geometry.name));
  const int64_t slots = slots_of(one.geometry, kPercent);
  for (const Goal& goal : kGoals) {
    const std::string name = std::string(one.geometry.name) + " 15% " + goal.preset + " hybrid over offload";
    if (!bench.has_time(4, "hybrid", name)) continue;
    bench.progress(name);
    const TraceSet& traces = one.traces(goal.preset);
    DecodePlan plans[2];
    std::unique_ptr<Engine> engines[2];
    std::vector<double> seconds[2];
    std::string hashes[2];
    for (int i = 0; i < 2; ++i) {
      plans[i] = plan_decode(one, traces, i == 0 ? Strategy::kOffload : Strategy::kHybrid, slots, 1);
      engines[i] = one.engine(plans[i].config);
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int i = 0; i < 2; ++i) {
        const DecodeResult result =
            decode(*engines[i], plans[i], traces, 1, bench.options.warm_steps, bench.options.measured_steps / kTurns);
        seconds[i].insert(seconds[i].end(), result.step_seconds.begin(), result.step_seconds.end());
        hashes[i] = result.counters.logits_hash;
      }
    }
    if (hashes[0] != hashes[1]) bench.report.fail("other logits: " + name);
    char note[96];
    std::snprintf(note, sizeof note, "%.1f over %.1f tok/s", 1 / mean(seconds[1]), 1 / mean(seconds[0]));
    bench.report.goal({"hybrid", name, mean(seconds[0]) / mean(seconds[1]), "x", goal.least, false, {}, note});
  }
}

bool decodes_batches(const GeometryCase& geometry) {
  return geometry.format != FormatId::kBf16 && !geometry.name.starts_with("C");
}

void run_batch(ModelCase& one) {
  Bench& bench = one.bench;
  constexpr double kPercent = 25;
  const std::string preset = "q38-mixed";
  bench.report.heading("batches of " + std::string(one.geometry.name) + ": goal at most 1.3 of the bound");
  const int64_t slots = slots_of(one.geometry, kPercent);
  for (const int batch : {2, 4, 8}) {
    double resident = 0;
    for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
      const std::string name = text_of(one, kPercent, preset, strategy) + " batch " + std::to_string(batch);
      if (!bench.has_time(3, "batch", name)) continue;
      bench.progress(name);
      try {
        if (resident == 0) resident = measured_resident(one, one.traces(preset), slots, batch);
        bench.report.cell("batch", run_cell(one, preset, strategy, slots, batch, resident), kBatchGoal);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kInterrupted) throw;
        bench.report.not_run("batch", name, error.what());
      }
    }
  }
}

}  // namespace ft::bench
