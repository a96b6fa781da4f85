#include "tuner/session.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/model/checkpoint.h"
#include "engine/program/banner.h"
#include "engine/program/identity.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/session.h"
#include "profiles/build_info.h"
#include "profiles/samples.h"
#include "tuner/decide.h"
#include "tuner/machine_state.h"
#include "tuner/measurements.h"

namespace ft {
namespace {

constexpr uint64_t kFitSeed = 7;
constexpr int64_t kDefaultContexts[] = {128, 1024};
constexpr int64_t kDefaultBatches[] = {1, 8};
constexpr int64_t kDefaultServedContext =
    4096;                                   // without --context: what a chat needs, when the model and memory allow
constexpr double kSmallBudgetSeconds = 15;  // below it only all usable cores are measured
constexpr double kWarmSteps = 0.25;         // of a trace: they fill the replayed cache and are not counted

// Shares of the budget; what a probe leaves over goes to the ones after it.
struct Share {
  std::string_view probe;
  double weight;
};
constexpr Share kShares[] = {{"stream", 8}, {"expert_single", 10}, {"layer_sweep", 30},
                             {"dense", 10}, {"overlap", 5},        {"decode", 37}};

double weight_of(std::string_view probe) {
  for (const Share& share : kShares) {
    if (share.probe == probe) return share.weight;
  }
  return 0;
}

class Progress {
 public:
  explicit Progress(double budget_seconds) : budget_(budget_seconds), terminal_(isatty(STDERR_FILENO) != 0) {}
  void start() { began_ = now_seconds(); }
  double spent() const { return began_ == 0 ? 0 : now_seconds() - began_; }
  double left() const { return std::max(0.0, budget_ - spent()); }
  void stage(std::string_view name, std::string_view what) {
    const std::string text = fmt::format("[{:>4.0f} s, {:>3.0f} s left] {}: {}", spent(), left(), name, what);
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  void load(std::string_view stage, double fraction) {
    const int percent = static_cast<int>(100 * fraction);
    if (terminal_) {
      std::fprintf(stderr, "\r%.*s: %3d %%%s", static_cast<int>(stage.size()), stage.data(), percent,
                   percent >= 100 ? "\n" : "");
    } else if (percent >= 100) {
      std::fprintf(stderr, "%.*s: done\n", static_cast<int>(stage.size()), stage.data());
    }
  }

 private:
  double budget_;
  bool terminal_;
  double began_ = 0;
};

std::vector<int> thread_counts(const TuneRequest& request, const CpuBudget& cpus) {
  if (request.threads) {
    if (*request.threads > cpus.usable_cores) {
      throw Error(ErrorKind::kUsage, {.what = "more threads than usable cores",
                                      .value = std::to_string(*request.threads),
                                      .allowed = "1 to " + std::to_string(cpus.usable_cores),
                                      .action = "raise the affinity or the CPU quota",
                                      .path = "--threads"});
    }
    return {*request.threads};
  }
  // All cores, one left to the system, half: more is measured by the sweep of a larger budget than a decision needs.
  std::set<int> counts = {cpus.usable_cores};
  if (request.budget_seconds > kSmallBudgetSeconds) {
    counts.insert(std::max(1, cpus.usable_cores - 1));
    counts.insert(std::max(1, cpus.usable_cores / 2));
  }
  return {counts.rbegin(), counts.rend()};
}

std::vector<int64_t> bounded(const std::vector<int64_t>& asked, std::span<const int64_t> defaults, int64_t bound) {
  if (!asked.empty()) return asked;
  std::set<int64_t> values;
  for (const int64_t value : defaults) values.insert(std::min(value, bound));
  return {values.begin(), values.end()};
}

ProbeSessionOptions session_options(const TuneRequest& request, const ModelGeometry& geometry, Progress& progress) {
  ProbeSessionOptions options;
  options.weights = request.weights;
  options.contexts = bounded(request.contexts, kDefaultContexts, geometry.max_positions);
  for (const int64_t batch : bounded(request.batches, kDefaultBatches, kMaxBatch))
    options.batches.push_back(static_cast<int>(batch));
  if (request.contexts.empty()) options.served_context = std::min(geometry.max_positions, kDefaultServedContext);
  options.budget_seconds = std::min(request.budget_seconds / 10, 10.0);
  options.device_memory_limit_bytes = request.device_memory_limit_bytes;
  options.host_memory_limit_bytes = request.host_memory_limit_bytes;
  options.add_candidates = false;
  options.progress = [&progress](std::string_view stage, double fraction) { progress.load(stage, fraction); };
  const CpuBudget cpus = detect_cpu_budget(detect_topology());
  options.threads = thread_counts(request, cpus);
  return options;
}

std::optional<int64_t> pinned_slots(const TuneRequest& request, const ModelGeometry& geometry) {
  if (!request.slots) return std::nullopt;
  if (request.slots->count) return request.slots->count;
  return std::llround(*request.slots->percent / 100 * static_cast<double>(geometry.total_experts()));
}

class Tuning {
 public:
  explicit Tuning(const TuneRequest& request)
      : request_(request),
        progress_(request.budget_seconds),
        family_(make_family(load_model_config(request.weights.model_path))),
        session_(session_options(request, family_->geometry(), progress_)) {
    context().interrupted = interrupted;
    record_.identity = {collect_host_identity(*context().topology, *context().cpus), collect_build_identity(),
                        collect_model_identity(*family_, request.weights)};
    record_.conditions = conditions();
    throttled_at_start_ = throttled_usec();
  }

  Profile run() {
    if (request_.resume) resume();
    progress_.start();
    for (const auto& probe : make_probes()) {
      if (probe->id() != "decode") run_probe(*probe);
    }
    stop_if_interrupted();
    const std::vector<ThreadModel> models = fit_models(record_.measurements, Device::kHost, moe_layers(), kFitSeed);
    const SearchResult found = search(search_input(models));
    const std::vector<size_t> confirmed = add_candidates(found);
    for (const auto& probe : make_probes()) {
      if (probe->id() == "decode") run_probe(*probe);
    }
    stop_if_interrupted();
    Profile profile = make_profile(models, found, confirmed);
    write_profile(request_.output, profile);
    std::error_code ignored;
    std::filesystem::remove(samples_path(request_.output), ignored);
    return profile;
  }

 private:
  ProbeContext& context() { return session_.context(); }
  const ModelWeights& weights() { return *context().model.weights; }
  int moe_layers() { return static_cast<int>(weights().geometry.moe_layers.size()); }

  Conditions conditions() {
    Conditions c;
    const BuildInfo build = build_info();
    c.commit = build.commit;
    c.dirty = build.dirty;
    c.created = utc_now();
    c.budget_seconds = request_.budget_seconds;
    c.device = device_name(Device::kHost);
    c.device_memory_limit_bytes = request_.device_memory_limit_bytes;
    c.contexts = context().contexts;
    c.batches.assign(context().batches.begin(), context().batches.end());
    c.routing_source = context().trace->source;
    c.memory = memory_text();
    c.likwid = likwid_text(likwid_status());
    c.forced = request_.forced;
    return c;
  }

  void resume() {
    const std::string path = samples_path(request_.output);
    SampleRecord earlier = read_samples(path);
    require_identity(earlier.identity, record_.identity, {});
    if (earlier.conditions.contexts != record_.conditions.contexts ||
        earlier.conditions.batches != record_.conditions.batches ||
        earlier.conditions.device_memory_limit_bytes != record_.conditions.device_memory_limit_bytes) {
      throw Error(ErrorKind::kUsage, {.what = "the samples are of a run with other --context, --batch or --vram-limit",
                                      .action = "give the same options, or leave --resume out",
                                      .path = path});
    }
    std::set<std::string> broken;  // a probe that was cut off runs again as a whole
    for (const Measurement& m : earlier.measurements) {
      if (m.stop_reason == "interrupted") broken.insert(m.probe);
    }
    for (Measurement& m : earlier.measurements) {
      if (broken.contains(m.probe) || m.probe == "decode") continue;
      done_.insert(m.probe);
      record_.measurements.push_back(std::move(m));
    }
    std::fprintf(stderr, "resuming: %zu probes are done\n", done_.size());
  }

  // What is left of the budget is shared out among the probes that are still to come, by weight.
  double seconds_for(std::string_view probe) const {
    double weight = 0;
    bool coming = false;
    for (const Share& share : kShares) {
      coming = coming || share.probe == probe;
      if (coming && !done_.contains(std::string(share.probe))) weight += share.weight;
    }
    return weight == 0 ? 0 : progress_.left() * weight_of(probe) / weight;
  }

  void run_probe(Probe& probe) {
    const std::string id(probe.id());
    if (done_.contains(id) || interrupted()) return;
    const Applies applies = probe.applies(context());
    if (!applies.yes) {
      record_.skipped.push_back({id, applies.reason});
      return;
    }
    context().budget.seconds = std::max(0.05, seconds_for(id));
    progress_.stage(id, probe.measures());
    std::vector<Samples> all = probe.run(context());
    const bool cut = interrupted();
    for (Samples& samples : all) {
      if (cut && samples.values.empty()) continue;
      if (cut) samples.stop_reason = "interrupted";
      record_.measurements.push_back(to_measurement(id, samples));
    }
    if (!cut) probe.verify(context());
    done_.insert(id);
  }

  void stop_if_interrupted() {
    if (!interrupted()) return;
    const std::string path = samples_path(request_.output);
    record_.conditions.spent_seconds = progress_.spent();
    write_samples(path, record_);
    throw Error(ErrorKind::kInterrupted, {.what = "interrupted; what was measured is kept",
                                          .action = "go on with --resume and the same options",
                                          .path = path});
  }

  SearchInput search_input(const std::vector<ThreadModel>& models) {
    SearchInput input;
    input.geometry = weights().geometry;
    input.formats = weights().formats;
    input.base = context().base;
    input.memory = context().memory_inputs;
    input.models = models;
    input.contexts = context().contexts;
    input.batches.assign(context().batches.begin(), context().batches.end());
    for (const int64_t batch : input.batches) {
      if (context().trace->tokens < batch) {
        throw Error(ErrorKind::kFailed, {.what = "routing trace too short for the batch",
                                         .value = std::to_string(context().trace->tokens) + " tokens",
                                         .allowed = "at least " + std::to_string(batch),
                                         .action = "give a larger --budget or a smaller --batch"});
      }
      input.sequences.push_back(split_trace(*context().trace, static_cast<int>(batch)));
    }
    const int64_t shortest = input.sequences.back().front().tokens;
    input.discard_steps = static_cast<int64_t>(kWarmSteps * static_cast<double>(shortest));
    input.strategy = request_.strategy;
    input.slots = pinned_slots(request_, weights().geometry);
    input.threads = request_.threads;
    return input;
  }

  std::vector<size_t> add_candidates(const SearchResult& found) {
    const std::vector<size_t> confirmed = candidates_to_confirm(found);
    context().candidates.clear();
    for (const size_t index : confirmed) {
      const CandidatePrediction& candidate = found.ranked[index];
      const std::string name = fmt::format("{}.slots={}.threads={}", strategy_name(candidate.config.strategy),
                                           candidate.config.slots, candidate.config.threads);
      context().candidates.push_back({name, candidate.config, candidate.content});
    }
    return confirmed;
  }

  Profile make_profile(const std::vector<ThreadModel>& models, const SearchResult& found,
                       const std::vector<size_t>& confirmed) {
    DecideInput input;
    input.search = &found;
    input.measured = confirmed;
    input.measurements = record_.measurements;
    input.contexts = record_.conditions.contexts;
    input.batches = record_.conditions.batches;
    input.moe_layers = moe_layers();
    input.forced = !request_.forced.empty();
    Decided decided = decide(input);
    Profile profile;
    profile.identity = record_.identity;
    profile.conditions = record_.conditions;
    profile.conditions.spent_seconds = progress_.spent();
    profile.conditions.throttled_usec = throttled_usec() - throttled_at_start_;
    profile.conditions.reduced = std::any_of(record_.measurements.begin(), record_.measurements.end(),
                                             [](const Measurement& m) { return m.reduced; });
    profile.measurements = record_.measurements;
    profile.skipped = record_.skipped;
    profile.cost_model = cost_model_record(models);
    profile.candidates = std::move(decided.candidates);
    profile.decision = std::move(decided.decision);
    profile.serve = serve_section(found.ranked[decided.chosen]);
    return profile;
  }

  Serve serve_section(const CandidatePrediction& chosen) {
    Serve serve;
    const EngineConfig& config = chosen.config;
    serve.device = device_name(config.device);
    serve.strategy = strategy_name(config.strategy);
    serve.model_path = config.weights.model_path;
    if (config.weights.synthetic) {
      serve.synthetic_seed = config.weights.synthetic_seed;
      serve.routing_preset = config.weights.routing_preset;
    }
    serve.threads = config.threads;
    serve.pinning = config.pinning;
    serve.pinning.resize(std::min(serve.pinning.size(), static_cast<size_t>(config.threads)));
    serve.slots = config.slots;
    if (config.strategy != Strategy::kResident) serve.fetch_of_misses = config.fetch_of_misses;
    serve.promote_bytes_per_layer = config.promote_bytes_per_layer;
    serve.max_batch = config.max_batch;
    serve.max_context = config.max_context;
    serve.prefill_chunk = config.prefill_chunk;
    serve.device_memory_limit_bytes = request_.device_memory_limit_bytes;
    serve.predicted_tok_s = chosen.tok_s[0];
    serve.ceiling_gbps = mem_read_gbps(record_.measurements, config.threads);
    return serve;
  }

  const TuneRequest& request_;
  Progress progress_;
  std::shared_ptr<const Family> family_;
  ProbeSession session_;
  SampleRecord record_;
  std::set<std::string> done_;
  int64_t throttled_at_start_ = 0;
};

}  // namespace

std::string samples_path(const std::string& output) { return output + ".samples.json"; }

Profile tune(const TuneRequest& request) { return Tuning(request).run(); }

std::string tune_dry_run(const TuneRequest& request) {
  const auto family = make_family(load_model_config(request.weights.model_path));
  const ModelGeometry& geometry = family->geometry();
  const ModelFormats formats = inspect_formats(*family, request.weights);
  const CpuBudget cpus = detect_cpu_budget(detect_topology());
  Progress silent(request.budget_seconds);
  const ProbeSessionOptions options = session_options(request, geometry, silent);
  EngineConfig config = probe_base_config(options, geometry, cpus);
  const MemoryInputs memory = probe_memory_inputs(options, detect_memory_budget());
  const SlotBounds bounds = slot_bounds(geometry, formats, config, memory);
  config.slots = std::min(pinned_slots(request, geometry).value_or(bounds.max), bounds.max);
  config.strategy =
      request.strategy.value_or(config.slots == geometry.total_experts() ? Strategy::kResident : Strategy::kOffload);
  std::string text = fmt::format("model: {}, {} MoE layers x {} experts, top {}; experts {}, dense {}\n",
                                 geometry.family, geometry.moe_layers.size(), geometry.expert.experts,
                                 geometry.expert.top_k, formats.experts, formats.dense);
  text += memory_plan_text(plan_memory(geometry, formats, config, memory), config);
  text += "threads to try:";
  for (const int threads : options.threads) text += fmt::format(" {}", threads);
  text += "\nprobes:";
  for (const auto& probe : make_probes()) text += fmt::format("\n  {:<14} {}", probe->id(), probe->measures());
  text += "\nslots:";
  for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
    if (request.strategy && *request.strategy != strategy) continue;
    const bool fits = strategy != Strategy::kResident || bounds.max == geometry.total_experts();
    text += fmt::format("\n  {:<9} {}", strategy_name(strategy),
                        strategy == Strategy::kResident ? (fits ? "all experts" : "does not fit")
                                                        : fmt::format("{} to {}", bounds.min, bounds.max));
  }
  return text + "\n";
}

}  // namespace ft
