// Look-ahead: what copying the next layer's predicted experts ahead of need wins, and how good a real router's guesses
// are. Synthetic traces carry predictions drawn at a stated precision and recall; the engine sees only those.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "kernels/host/worker_pool.h"
#include "probes/prompts.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

constexpr double kPrecision = 0.8, kRecall = 0.7, kSlotsPercent = 25;
constexpr uint64_t kPredictionSeed = 17;
constexpr int kTurns = 2;
constexpr int kPrefetches = 2;  // a layer: its share of T_res is less than two experts' time on the link

struct Gain {
  double off_seconds = 0, on_seconds = 0;
  EngineCounters counters;  // with look-ahead
  bool same_bits = false;
};

// Both engines in turns.
Gain measure_gain(ModelCase& one, const TraceSet& traces, Strategy strategy, int64_t slots) {
  const Bench& bench = one.bench;
  DecodePlan plan = plan_decode(one, traces, strategy, slots, 1);  // short runs choose: the same for both
  std::unique_ptr<Engine> engines[2];
  engines[0] = one.engine(plan.config);
  look_ahead(plan.config);
  engines[1] = one.engine(plan.config);
  std::vector<double> seconds[2];
  std::string hashes[2];
  Gain gain;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int on = 0; on < 2; ++on) {
      const DecodeResult result =
          decode(*engines[on], plan, traces, 1, bench.options.warm_steps, bench.options.measured_steps / kTurns);
      seconds[on].insert(seconds[on].end(), result.step_seconds.begin(), result.step_seconds.end());
      hashes[on] = result.counters.logits_hash;
      if (on == 1) gain.counters = result.counters;
    }
  }
  gain.off_seconds = mean(seconds[0]);
  gain.on_seconds = mean(seconds[1]);
  gain.same_bits = hashes[0] == hashes[1];
  return gain;
}

}  // namespace

void predict_ahead(TraceSet& traces) {
  uint64_t seed = kPredictionSeed;
  for (RoutingTrace& trace : traces.sequences) draw_predictions(trace, kPrecision, kRecall, seed++);
}

void look_ahead(EngineConfig& config) {
  config.look_ahead = LookAhead::kRouter;
  config.max_prefetches_per_layer = kPrefetches;
}

void run_lookahead(ModelCase& one) {
  constexpr double kGoal = 0.3;
  Bench& bench = one.bench;
  bench.report.heading("look-ahead at precision 0.8 and recall 0.7, 25 % of " + std::string(one.geometry.name));
  const int64_t slots = slots_of(one.geometry, kSlotsPercent);
  for (const std::string preset : {"q38-diverse", "q38-mixed", "q38-agentic"}) {
    TraceSet traces = one.traces(preset);
    predict_ahead(traces);
    const double resident = measured_resident(one, traces, slots, 1);
    for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
      const std::string name = std::string(one.geometry.name) + " " + preset + " " +
                               std::string(strategy_name(strategy)) + " look-ahead's gain";
      if (!bench.has_time(5, "lookahead", name)) continue;
      bench.progress(name);
      try {
        const Gain gain = measure_gain(one, traces, strategy, slots);
        if (!gain.same_bits) bench.report.fail("other logits with look-ahead: " + name);
        char note[160];
        std::snprintf(note, sizeof note,
                      "%.3f to %.3f ms, T_res %.3f ms; prefetched %.2f a layer, %.0f %% of them used",
                      1e3 * gain.off_seconds, 1e3 * gain.on_seconds, 1e3 * resident,
                      static_cast<double>(gain.counters.expert_prefetched) /
                          static_cast<double>(gain.counters.decode_steps * static_cast<uint64_t>(one.moe_layers())),
                      100.0 * static_cast<double>(gain.counters.prefetch_useful) /
                          static_cast<double>(std::max<uint64_t>(1, gain.counters.expert_prefetched)));
        bench.report.goal(
            {"lookahead", name, (gain.off_seconds - gain.on_seconds) / resident, "T_res", kGoal, false, {}, note});
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kInterrupted) throw;
        bench.report.not_run("lookahead", name, error.what());
      }
    }
  }
}

// On the host device: which experts a router guesses does not depend on where they run.
void run_router_precision(Bench& bench, const std::string& model_path) {
  constexpr int kThreads = 1, kTokens = 256;
  const std::string name = "router one layer ahead, " + std::filesystem::path(model_path).filename().string();
  if (!bench.has_time(3, "lookahead", name)) return;
  bench.progress(name);
  try {
    WorkerPool pool({.threads = kThreads, .cpus = {}});
    WeightSource source;
    source.model_path = model_path;
    LoadedModel model;
    std::unique_ptr<Family> family = make_family(load_model_config(model_path));
    model.weights = load_weights(*family, source, pool);
    model.family = std::move(family);
    const ModelGeometry& geometry = model.weights->geometry;
    EngineConfig config;
    config.strategy = Strategy::kOffload;
    config.slots = geometry.total_experts() / 2;
    config.max_context = std::min<int64_t>(geometry.max_positions, kTokens + 1);
    for (int m = 0; m <= geometry.expert.top_k; ++m) config.fetch_of_misses.push_back(m);
    config.look_ahead = LookAhead::kRouter;
    config.max_prefetches_per_layer = geometry.expert.top_k;
    Engine engine(model, config, {Device::kHost, 0, bench.inputs.host_memory_bytes});
    const std::string tokenizer_path = model_path + "/tokenizer.json";
    std::unique_ptr<Tokenizer> tokenizer;
    if (std::filesystem::exists(tokenizer_path)) tokenizer = Tokenizer::load(tokenizer_path);
    RecordOptions record;
    record.max_tokens = kTokens;
    const RoutingTrace trace = record_trace(engine, prompt_ids(tokenizer.get(), geometry.vocab, 1), record).trace;
    const PredictionStatistics statistics = prediction_statistics(trace);
    bench.report.info("lookahead", name + ": precision", statistics.precision(), "",
                      std::to_string(trace.tokens) + " tokens of " + std::string(kPromptsVersion));
    bench.report.info("lookahead", name + ": recall", statistics.recall(), "");
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) throw;
    bench.report.not_run("lookahead", name, error.what());
  }
}

}  // namespace ft::bench
