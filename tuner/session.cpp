#include "tuner/session.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/program/log.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/session.h"
#include "profiles/build_info.h"
#include "profiles/samples.h"
#include "tuner/decide.h"
#include "tuner/machine_state.h"
#include "tuner/measurements.h"
#include "tuner/preflight.h"

namespace ft {
namespace {

constexpr uint64_t kFitSeed = 7;
constexpr double kWarmSteps = 0.25;  // of a trace: they fill the replayed cache and are not counted

// Shares of the budget; what a probe leaves over goes to the ones after it.
struct Share {
  std::string_view probe;
  double weight;
};
constexpr Share kShares[] = {{"stream", 8},    {"pcie_linear", 4},    {"pcie_gather", 6},  {"handshake", 2},
                             {"allreduce", 2}, {"expert_single", 10}, {"layer_sweep", 30}, {"dense", 10},
                             {"overlap", 5},   {"decode", 37}};

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
    log_info(fmt::format("[{:>4.0f} s, {:>3.0f} s left] {}: {}", spent(), left(), name, what));
  }
  void load(std::string_view stage, double fraction) {
    const int percent = static_cast<int>(100 * fraction);
    if (!log_shows_info()) return;
    if (terminal_) {
      std::fprintf(stderr, "\r%.*s: %3d %%%s", static_cast<int>(stage.size()), stage.data(), percent,
                   percent >= 100 ? "\n" : "");
    } else if (percent >= 100) {
      log_info(fmt::format("{}: done", stage));
    }
  }

 private:
  double budget_;
  bool terminal_;
  double began_ = 0;
};

class Tuning {
 public:
  explicit Tuning(const TuneRequest& request)
      : request_(request),
        progress_(request.budget_seconds),
        preflight_(make_preflight(request)),
        earlier_(request.resume ? earlier_samples() : std::nullopt),
        session_(session_options()) {
    record_.identity = preflight_.identity;
    record_.conditions = conditions();
    throttled_at_start_ = throttled_usec();
  }

  Profile run() {
    if (earlier_) resume(*earlier_);
    progress_.start();
    const auto probes = make_probes();
    for (const auto& probe : probes) {
      if (probe->id() != "decode" && !probe->applies(context()).yes) not_here_.emplace(probe->id());
    }
    for (const auto& probe : probes) {
      if (probe->id() != "decode") run_probe(*probe);
    }
    stop_if_interrupted();
    const std::vector<ThreadModel> models = fit_models(record_.measurements, request_.device, moe_layers(), kFitSeed);
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
    c.device = device_name(request_.device);
    c.device_memory_limit_bytes = request_.device_memory_limit_bytes;
    c.contexts = context().contexts;
    c.batches.assign(context().batches.begin(), context().batches.end());
    c.routing_source = context().trace->source;
    c.memory = memory_text();
    c.banks = session_.bank_text();
    c.likwid = likwid_text(likwid_status());
    c.forced = request_.forced;
    return c;
  }

  ProbeSessionOptions session_options() {
    ProbeSessionOptions options = preflight_.options;
    options.interrupted = interrupted;
    options.progress = [this](std::string_view stage, double fraction) {
      progress_.load(stage, fraction);
      if (!interrupted()) return;
      throw Error(ErrorKind::kInterrupted, {.what = "interrupted while loading, nothing was measured"});
    };
    return options;
  }

  // Read before the model is loaded: it may be refused.
  std::optional<SampleRecord> earlier_samples() const {
    const std::string path = samples_path(request_.output);
    SampleRecord earlier = kept_samples(path, request_.output);
    for (const IdentityDifference& difference : compare_identity(earlier.identity, preflight_.identity)) {
      const auto shown = [](const std::string& value) { return value.empty() ? "none" : "'" + value + "'"; };
      throw Error(ErrorKind::kUsage,
                  {.what = "the samples are of something else: $.identity." + difference.field + " is " +
                           shown(difference.profile_value) + ", here it is " + shown(difference.machine_value),
                   .action = "leave --resume out to measure again",
                   .path = path});
    }
    const ProbeSessionOptions& now = preflight_.options;
    const Conditions& then = earlier.conditions;
    const auto pin = [](const std::vector<std::string>& forced, std::string_view option) {
      const auto at = std::find_if(forced.begin(), forced.end(), [&](const auto& f) { return f.starts_with(option); });
      return at == forced.end() ? std::string() : *at;
    };
    const auto same_pin = [&](std::string_view option) {
      return pin(then.forced, option) == pin(request_.forced, option);
    };
    if (then.contexts == now.contexts &&
        std::equal(then.batches.begin(), then.batches.end(), now.batches.begin(), now.batches.end()) &&
        then.device_memory_limit_bytes == now.device_memory_limit_bytes && then.device == device_name(now.device) &&
        same_pin("--threads") && same_pin("--link-slowdown")) {
      return earlier;
    }
    throw Error(ErrorKind::kUsage,
                {.what = "the samples are of a run with other --context, --batch, --device, --vram-limit, --threads "
                         "or --link-slowdown",
                 .action = "give the same options, or leave --resume out",
                 .path = path});
  }

  void resume(SampleRecord& earlier) {
    std::set<std::string> broken;  // a probe that was cut off runs again as a whole
    for (const Measurement& m : earlier.measurements) {
      if (m.stop_reason == "interrupted") broken.insert(m.probe);
    }
    for (Measurement& m : earlier.measurements) {
      if (broken.contains(m.probe) || m.probe == "decode") continue;
      done_.insert(m.probe);
      record_.measurements.push_back(std::move(m));
    }
    log_info(fmt::format("resuming: {} probes are done", done_.size()));
  }

  // What is left of the budget is shared out among the probes that are still to come, by weight.
  double seconds_for(std::string_view probe) const {
    double weight = 0;
    bool coming = false;
    for (const Share& share : kShares) {
      coming = coming || share.probe == probe;
      if (coming && !done_.contains(share.probe) && !not_here_.contains(share.probe)) weight += share.weight;
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
    // A profile follows `decode` at once, and --resume always runs it again.
    if (!cut && id != "decode") keep_samples();
  }

  // So that whatever ends this process (kill -9, power) costs one probe. Samples that cannot be kept are no reason to
  // stop measuring: the profile may still be written.
  void keep_samples() {
    record_.conditions.spent_seconds = progress_.spent();
    try {
      write_samples(samples_path(request_.output), record_);
    } catch (const Error& error) {
      if (!warned_) log_warning(std::string("samples are not kept for --resume: ") + error.what());
      warned_ = true;
    }
  }

  void stop_if_interrupted() {
    if (!interrupted()) return;
    if (record_.measurements.empty()) {
      throw Error(ErrorKind::kInterrupted, {.what = "interrupted before anything was measured"});
    }
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
    input.slots = preflight_.slots;
    input.slots_asked = preflight_.slots_asked;
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
    profile.conditions.link = link_condition(record_.measurements);
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
    // Stats compare steps with one sequence, so a rate of a batch would be no prediction of theirs.
    serve.predicted_tok_s = record_.conditions.batches[0] == 1 ? chosen.tok_s[0] : 0;
    if (config.fetch_mechanism != FetchMechanism::kSm) {
      serve.fetch_mechanism = fetch_mechanism_name(config.fetch_mechanism);
    }
    if (config.link_slowdown != 1) serve.link_slowdown = config.link_slowdown;
    serve.ceiling_gbps = ceiling_gbps(record_.measurements, config);
    return serve;
  }

  const TuneRequest& request_;
  Progress progress_;
  Preflight preflight_;
  std::optional<SampleRecord> earlier_;
  ProbeSession session_;
  SampleRecord record_;
  std::set<std::string, std::less<>> done_;
  std::set<std::string, std::less<>> not_here_;  // probes that do not apply, `decode` aside
  bool warned_ = false;
  int64_t throttled_at_start_ = 0;
};

}  // namespace

Profile tune(const TuneRequest& request) { return Tuning(request).run(); }

}  // namespace ft
