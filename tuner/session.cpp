#include "tuner/session.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/program/load_display.h"
#include "engine/program/log.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/measure.h"
#include "probes/session.h"
#include "profiles/build_info.h"
#include "profiles/samples.h"
#include "tuner/analysis.h"
#include "tuner/condition_watch.h"
#include "tuner/machine_state.h"
#include "tuner/measurements.h"
#include "tuner/output_lock.h"
#include "tuner/preflight.h"
#include "tuner/recording.h"

namespace ft {
namespace {

// Of the budget, what is kept from the probes: starting the device, the points of decode, each of which restores
// caches, discards steps and then takes up to 4 s whatever is left, and giving locked memory back. H200, 16 GB of
// experts, eight candidates at four points: 124 s of a budget of 120 where 11 s were kept.
constexpr double kKeptShare = 0.16, kMostKeptSeconds = 19;
constexpr double kLoadingShare = 0.25;  // of the budget, at most, for what comes before the first probe

// Shares of the budget; what a probe leaves over goes to the ones after it.
struct Share {
  std::string_view probe;
  double weight;
};
constexpr Share kShares[] = {{"stream", 8},    {"pcie_linear", 4},    {"pcie_gather", 6},  {"handshake", 2},
                             {"allreduce", 2}, {"expert_single", 10}, {"layer_sweep", 30}, {"dense", 10},
                             {"host_rows", 2}, {"overlap", 5},        {"decode", 37}};

// Of the budget, for Probe::more() after each probe: some 60 rounds of the smallest budgets, where nothing disturbs
// them.
constexpr double kMoreShare = 0.01;

double weight_of(std::string_view probe) {
  for (const Share& share : kShares) {
    if (share.probe == probe) return share.weight;
  }
  return 0;
}

class Progress {
 public:
  explicit Progress(double budget_seconds)
      : budget_(budget_seconds), measuring_(budget_seconds - std::min(kKeptShare * budget_seconds, kMostKeptSeconds)) {}
  // Loading counts, up to a share: with a model in the page cache the budget is what a tuning takes as a whole, and a
  // model that comes from a slow disk still leaves time to measure.
  void start(double loading_seconds) { began_ = now_seconds() - std::min(loading_seconds, kLoadingShare * budget_); }
  double spent() const { return began_ == 0 ? 0 : now_seconds() - began_; }
  double left() const { return std::max(0.0, measuring_ - spent()); }
  void stage(std::string_view name, std::string_view what) {
    stage_ = name;
    say(what);
  }
  // Of a stage: said when nothing was for kQuietSeconds.
  void part(std::string_view what) {
    if (now_seconds() - said_ >= kQuietSeconds) say(what);
  }

 private:
  static constexpr double kQuietSeconds = 5;

  void say(std::string_view what) {
    said_ = now_seconds();
    log_info(fmt::format("[{:>4.0f} s, {:>3.0f} s left] {}: {}", spent(), left(), stage_, what));
  }

  double budget_, measuring_;
  double said_ = 0;
  std::string stage_;
  double began_ = 0;
};

class Tuning {
 public:
  Tuning(const TuneRequest& request, const LoadedModel& loaded)
      : request_(request),
        lock_(request.output),
        progress_(request.budget_seconds),
        preflight_(make_preflight(request, loaded)),
        earlier_(request.resume ? earlier_samples() : std::nullopt),
        session_(session_options()),
        watch_(*context().cpus, context().gpu ? context().gpu->uuid : std::string()) {
    record_.identity = preflight_.identity;
    record_.conditions = conditions();
    throttled_at_start_ = throttled_usec();
    context().yardstick = true;
    context().begins = [this](std::string_view part) { progress_.part(part); };
  }

  Profile run(const std::function<void(const TunedSession&)>& after) {
    if (earlier_) resume(*earlier_);
    progress_.start(now_seconds() - created_);
    const auto probes = make_probes();
    for (const auto& probe : probes) {
      if (probe->id() != "decode" && !probe->applies(context()).yes) not_here_.emplace(probe->id());
    }
    for (const auto& probe : probes) {
      if (probe->id() == "decode") continue;
      run_probe(*probe);
      measure_more(probes, *probe);
    }
    stop_if_interrupted();
    const AnalysisInput input = analysis_input();
    const Analysis analysis = analyze(input);
    context().candidates = decode_candidates(input, analysis);
    for (const auto& probe : make_probes()) {
      if (probe->id() != "decode") continue;
      run_probe(*probe);
      measure_more(probes, *probe);
    }
    stop_if_interrupted();
    Profile profile = make_profile(analysis);
    write_profile(request_.output, profile);
    std::error_code ignored;
    std::filesystem::remove(samples_path(request_.output), ignored);
    record_machine(analysis);
    if (after) after({context(), analysis_input(), analysis, profile});
    return profile;
  }

 private:
  ProbeContext& context() { return session_.context(); }
  const ModelWeights& weights() { return *context().model.weights; }

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
    c.likwid = likwid_;
    c.forced = request_.forced;
    return c;
  }

  ProbeSessionOptions session_options() {
    ProbeSessionOptions options = preflight_.options;
    options.interrupted = interrupted;
    options.progress = [this](const LoadProgress& loading) {
      display_.show(loading);
      if (!interrupted()) return;
      throw Error(ErrorKind::kInterrupted, {.what = "interrupted while loading, nothing was measured"});
    };
    options.notice = [this](std::string_view text, bool warning) {
      display_.end_line();
      warning ? log_warning(text) : log_info(text);
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
    const auto require = [&](const std::string& option, const std::string& was, const std::string& is) {
      if (was == is) return;
      throw Error(ErrorKind::kUsage,
                  {.what = "the samples are of a run with another " + option + ": " + was + " then, " + is + " now",
                   .action = "give the same, or leave --resume out",
                   .path = path});
    };
    require("--context", listed(then.contexts), listed(now.contexts));
    require("--batch", listed(then.batches), listed(now.batches));
    require("--device", then.device, std::string(device_name(now.device)));
    const auto limit = [](std::optional<int64_t> bytes) { return bytes ? std::to_string(*bytes) + " bytes" : "none"; };
    require("--vram-limit", limit(then.device_memory_limit_bytes), limit(now.device_memory_limit_bytes));
    const auto pin = [](const std::vector<std::string>& forced, const std::string& option) {
      const auto at =
          std::find_if(forced.begin(), forced.end(), [&](const auto& f) { return f.starts_with(option + " "); });
      return at == forced.end() ? std::string("none") : at->substr(option.size() + 1);
    };
    for (const char* option : {"--threads", "--link-slowdown", "--cache-policy", "--look-ahead"}) {
      require(option, pin(then.forced, option), pin(request_.forced, option));
    }
    return earlier;
  }

  template <class T>
  static std::string listed(const std::vector<T>& values) {
    std::string text;
    for (const T value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
    return text.empty() ? "none" : text;
  }

  void resume(SampleRecord& earlier) {
    std::set<std::string> broken;  // a probe that was cut off runs again as a whole
    std::string probe;             // yardsticks follow the series that they are of
    const auto follow = [&](const Measurement& m) { probe = m.probe == kYardstickProbe ? probe : m.probe; };
    for (const Measurement& m : earlier.measurements) {
      follow(m);
      if (m.stop_reason == "interrupted") broken.insert(probe);
    }
    for (Measurement& m : earlier.measurements) {
      follow(m);
      if (broken.contains(probe) || probe == "decode") continue;
      done_.insert(probe);
      record_.measurements.push_back(std::move(m));
    }
    earlier_findings_ = earlier.conditions.findings;
    finished_ = done_.size();
    log_info(fmt::format("resuming: {} probe{} done", finished_, finished_ == 1 ? " is" : "s are"));
  }

  // What is left of the budget is shared out among the probes that are still to come, by weight.
  double seconds_for(std::string_view probe) const {
    double weight = 0;
    bool coming = false;
    for (const Share& share : kShares) {
      coming = coming || share.probe == probe;
      if (coming && !done_.contains(share.probe) && !not_here_.contains(share.probe)) weight += share.weight;
    }
    const double left = std::max(0.0, progress_.left() - more_seconds());  // measure_more() follows the last one too
    return weight == 0 ? 0 : left * weight_of(probe) / weight;
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
    const size_t first = record_.measurements.size();
    watch_.begin();
    std::vector<Samples> all = probe.run(context());
    const bool cut = interrupted();
    for (Samples& samples : all) {
      if (cut && samples.values.empty()) continue;
      if (cut) samples.stop_reason = "interrupted";
      const bool yardstick = samples.name.starts_with(kYardstickPrefix);
      record_.measurements.push_back(to_measurement(yardstick ? kYardstickProbe : id, samples));
    }
    watch_.end(id, std::span(record_.measurements).subspan(first));
    record_.conditions.findings = watch_.findings(placed_banks(context()), earlier_findings_);
    if (!cut) probe.verify(context());
    done_.insert(id);
    if (!cut) ++finished_;
    // A profile follows `decode` at once, and --resume always runs it again.
    if (!cut && id != "decode") keep_samples();
  }

  double more_seconds() const { return kMoreShare * request_.budget_seconds; }

  void measure_more(const std::vector<std::unique_ptr<Probe>>& probes, const Probe& after) {
    if (!done_.contains(std::string(after.id()))) return;
    for (const auto& probe : probes) {
      if (!done_.contains(std::string(probe->id())) || interrupted()) continue;
      context().budget.seconds = more_seconds();
      const std::vector<Samples> more = probe->more(context());
      if (!interrupted()) append_samples(record_.measurements, probe->id(), more);
    }
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
    if (finished_ == 0) {
      throw Error(ErrorKind::kInterrupted, {.what = "interrupted before the first probe was through, nothing is kept"});
    }
    const std::string path = samples_path(request_.output);
    record_.conditions.spent_seconds = progress_.spent();
    write_samples(path, record_);
    throw Error(ErrorKind::kInterrupted, {.what = "interrupted; what was measured is kept",
                                          .action = "go on with --resume and the same options",
                                          .path = path});
  }

  AnalysisInput analysis_input() {
    AnalysisInput input;
    input.measurements = record_.measurements;
    input.trace = context().trace.get();
    input.geometry = weights().geometry;
    input.formats = weights().formats;
    input.base = context().base;
    input.memory = context().memory_inputs;
    input.contexts = context().contexts;
    input.batches.assign(context().batches.begin(), context().batches.end());
    input.strategy = request_.strategy;
    input.slots = preflight_.slots;
    input.slots_asked = preflight_.slots_asked;
    input.threads = request_.threads;
    input.cores = context().cpus->usable_cores;
    input.forced = !request_.forced.empty();
    return input;
  }

  void record_machine(const Analysis& analysis) {
    if (request_.record.empty()) return;
    Recording recording;
    recording.machine = {*context().topology, *context().cpus, *context().memory};
    recording.samples = record_;
    recording.trace = *context().trace;
    recording.inputs = analysis_input();
    recording.about = fmt::format(
        "{}, {} MoE layers x {} experts, {}, {} weights, on {}", weights().geometry.family,
        weights().geometry.moe_layers.size(), weights().geometry.expert.experts, weights().formats.experts,
        record_.identity.model.weights,
        record_.identity.host.gpu_name.empty() ? record_.identity.host.cpu_model : record_.identity.host.gpu_name);
    try {
      write_recording(request_.record, std::move(recording), analysis);
    } catch (const Error&) {
      log_warning("the profile is written, its recording is not: " + request_.output);
      throw;
    }
    log_info("recorded: " + request_.record);
  }

  Profile make_profile(const Analysis& analysis) {
    Conclusion conclusion = conclude(analysis_input(), analysis);
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
    profile.cost_model = std::move(conclusion.cost_model);
    profile.candidates = std::move(conclusion.candidates);
    profile.routing = std::move(conclusion.routing);
    profile.decision = std::move(conclusion.decision);
    profile.serve = std::move(conclusion.serve);
    return profile;
  }

  const TuneRequest& request_;
  const OutputLock lock_;
  const double created_ = now_seconds();
  Progress progress_;
  LoadDisplay display_;
  Preflight preflight_;
  std::optional<SampleRecord> earlier_;
  const std::string likwid_ = likwid_text(likwid_status());  // asked in a child: before there are weights
  ProbeSession session_;
  SampleRecord record_;
  std::set<std::string, std::less<>> done_;
  std::set<std::string, std::less<>> not_here_;  // probes that do not apply, `decode` aside
  size_t finished_ = 0;                          // probes that --resume would not run again
  bool warned_ = false;
  int64_t throttled_at_start_ = 0;
  ConditionWatch watch_;
  std::vector<Finding> earlier_findings_;  // of the run that this one goes on from
};

}  // namespace

Profile tune(const TuneRequest& request) { return tune(request, {}); }

Profile tune(const TuneRequest& request, const std::function<void(const TunedSession&)>& after,
             const LoadedModel& loaded) {
  return Tuning(request, loaded).run(after);
}

}  // namespace ft
