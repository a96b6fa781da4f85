// bench_regret_replay: predicts again, with the cost model of this build, what the cells of a results file measured.
//
// Usage: bench_regret_replay [--cells] RESULTS.jsonl
//   --cells  also every point of layer_sweep and dense: measured, and by the fitted model
//
// Needs the recordings that scripts/regret keeps beside the results (CELL.recording). Their routing is made again from
// the preset's name where they keep less than was tuned with. No GPU. Exit code 0, or 2 for what cannot be read.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/experts/routing_trace.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "tuner/cells.h"
#include "tuner/measurements.h"
#include "tuner/recording.h"

namespace ft::bench {
namespace {

constexpr int64_t kTraceTokens = 512;  // as probes make it
constexpr std::string_view kPreset = "preset ", kSynthetic = "synthetic:";

// Of a preset: all tokens that the tuning had.
void restore_routing(Recording& recording) {
  const RoutingTrace& kept = recording.trace;
  const std::string& weights = recording.samples.identity.model.weights;  // "synthetic:SEED"
  if (!kept.source.starts_with(kPreset) || !weights.starts_with(kSynthetic)) return;
  const std::string preset = kept.source.substr(kPreset.size());
  RoutingTrace whole = synthetic_routing(preset, kept.layers, kept.experts, kept.top_k, kTraceTokens,
                                         std::stoull(weights.substr(kSynthetic.size())));
  if (whole.tokens > kept.tokens && std::equal(kept.ids.begin(), kept.ids.end(), whole.ids.begin())) {
    recording.trace = std::move(whole);
  }
}

ConfirmedCandidate candidate_of(const Json& json) {
  return {json.at("strategy").get<std::string>(),
          json.at("threads").get<int>(),
          json.at("slots").get<int64_t>(),
          json.at("fetch_of_misses").get<SplitTable>(),
          PromotionRate::of_experts(json.at("promotions").get<double>()),
          json.at("fetch_mechanism").get<std::string>(),
          json.at("max_prefetches_per_layer").get<int>(),
          {}};
}

std::string parts_text(const StepParts& parts) {
  std::string text;
  for (int i = 0; i < kStepPartCount; ++i) {
    if (parts.seconds[i] <= 0) continue;
    text += fmt::format(" {} {:.2f}", step_part_name(static_cast<StepPart>(i)), 1e3 * parts.seconds[i]);
  }
  return text;
}

void print_points(const Recording& recording, const std::vector<ThreadModel>& models) {
  const std::vector<Samples> sweep = samples_of(recording.samples.measurements, "layer_sweep");
  const std::vector<Samples> steps = samples_of(recording.samples.measurements, "dense");
  const Device device = recording.inputs.base.device;
  for (const ThreadModel& model : models) {
    const CostParameters& cost = model.cost.cost;
    std::printf("  threads %d: held out %.1f %%, fitted %.1f %%;", cost.threads, 100 * model.cost.held_out_error,
                100 * model.cost.fit_error);
    for (const CostTermInfo& term : cost_terms()) {
      std::printf(" %s %.4g", std::string(term.name).c_str(), cost[term.term] * (term.unit == "s" ? 1e6 : 1));
    }
    std::printf("; dense %.1f + %.2f n + %.4f p + %.4f (n - 1) p\n", 1e6 * model.dense.cost.fixed,
                1e6 * model.dense.cost.per_token, 1e6 * model.dense.cost.per_position,
                1e6 * model.dense.cost.per_further_position);
    for (const SweepCell& cell : sweep_cells(sweep, cost.threads)) {
      const LayerCounts& n = cell.counts;
      const double predicted = layer_seconds(cost, device, n);
      std::printf("    n%d h%d f%d c%d p%d: %.1f us, by the model %.1f (%+.1f %%)%s\n", n.tokens, n.hits, n.fetched,
                  n.cpu, n.promoted, 1e6 * cell.seconds, 1e6 * predicted, 100 * (predicted / cell.seconds - 1),
                  cell.held_out ? " held out" : "");
    }
    for (const DenseCell& cell :
         dense_cells(steps, cost, device, static_cast<int>(recording.inputs.geometry.moe_layers.size()))) {
      const double predicted = model.dense.cost.seconds(cell.tokens, cell.context) + cell.expert_seconds;
      std::printf("    dense n%d at %lld: %.1f us, by the model %.1f, experts %.1f\n", cell.tokens,
                  static_cast<long long>(cell.context), 1e6 * cell.seconds, 1e6 * predicted, 1e6 * cell.expert_seconds);
    }
  }
}

void replay_cell(const Json& cell, const std::string& folder, bool points, std::vector<double>& errors) {
  Recording recording = read_recording(folder);
  restore_routing(recording);
  const AnalysisInput input = analysis_input(recording);
  const Analysis analysis = analyze(input);
  std::printf("%s\n", cell.at("cell").get<std::string>().c_str());
  for (const Json& one : cell.at("candidates")) {
    const ConfirmedCandidate candidate = candidate_of(one);
    const CandidatePrediction now = predict_candidate(input, analysis.models, candidate);
    const double measured = one.at("measured_ms").get<double>(), then = one.at("predicted_ms").get<double>();
    const double again = 1e3 * static_cast<double>(input.batches[0]) / now.tok_s[0];
    errors.push_back(again / measured - 1);
    std::printf(
        "  %-8s thr %2d slots %5lld: measured %8.3f ms, then %+6.1f %%, now %8.3f %+6.1f %%; hits %.3f (%.3f) "
        "f %.2f c %.2f p %.2f;%s  [%s]\n",
        candidate.strategy.c_str(), candidate.threads, static_cast<long long>(candidate.slots), measured,
        100 * (then / measured - 1), again, 100 * errors.back(), one.at("hit_rate").get<double>(), now.hit_rate[0],
        one.at("fetched_per_layer").get<double>(), one.at("cpu_per_layer").get<double>(),
        one.at("promoted_per_layer").get<double>(), parts_text(now.parts[0]).c_str(), now.split.c_str());
  }
  if (points) print_points(recording, analysis.models);
}

int run(const std::string& results, bool points) {
  namespace fs = std::filesystem;
  const fs::path path(results);
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kUsage, {.what = "cannot be read", .path = results});
  std::vector<double> errors;
  for (std::string line; std::getline(file, line);) {
    const Json cell = Json::parse(line);
    std::string name = cell.at("cell").get<std::string>() + ".recording";
    std::replace(name.begin(), name.end(), '/', '_');
    const fs::path folder = path.parent_path() / (path.stem().string() + ".files") / name;
    replay_cell(cell, folder.string(), points, errors);
  }
  if (errors.empty()) return 0;
  for (double& error : errors) error = std::abs(error);
  std::printf("%zu predictions: off by %.1f %% (median), %.1f %% (worst)\n", errors.size(), 100 * median(errors),
              100 * *std::max_element(errors.begin(), errors.end()));
  return 0;
}

}  // namespace
}  // namespace ft::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool points = words.size() == 2 && words[0] == "--cells";
  if (words.size() != 1 && !points) {
    std::fputs("usage: bench_regret_replay [--cells] RESULTS.jsonl\n", stderr);
    return 2;
  }
  try {
    return ft::bench::run(words.back(), points);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_regret_replay: error: %s\n", error.what());
    return 2;
  }
}
