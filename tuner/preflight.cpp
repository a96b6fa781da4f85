#include "tuner/preflight.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "engine/experts/routing_trace.h"
#include "engine/model/checkpoint.h"
#include "engine/model/packed_cache.h"
#include "engine/program/banner.h"
#include "engine/program/identity.h"
#include "engine/program/log.h"
#include "engine/runtime/device.h"
#include "engine/text/text_model.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kDefaultContexts[] = {128, 1024};
constexpr int64_t kDefaultBatches[] = {1, 8};
constexpr int64_t kDefaultServedContext = 4096;  // what a chat needs, when the model and memory allow
constexpr int kManyCores = 16;
constexpr double kSmallBudgetSeconds = 15;  // below it only all usable cores are measured

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
  // All cores, one left to the system (or to the copy engine's thread), half; on a large host a quarter, where memory
  // may be saturated already.
  std::set<int> counts = {cpus.usable_cores};
  if (request.budget_seconds > kSmallBudgetSeconds) {
    counts.insert(std::max(1, cpus.usable_cores - 1));
    counts.insert(std::max(1, cpus.usable_cores / 2));
    if (cpus.usable_cores >= kManyCores) counts.insert(cpus.usable_cores / 4);
  }
  return {counts.rbegin(), counts.rend()};
}

std::vector<int64_t> bounded(const std::vector<int64_t>& asked, std::span<const int64_t> defaults, int64_t bound) {
  if (!asked.empty()) return asked;
  std::set<int64_t> values;
  for (const int64_t value : defaults) values.insert(std::min(value, bound));
  return {values.begin(), values.end()};
}

ProbeSessionOptions session_options(const TuneRequest& request, const ModelGeometry& geometry, const CpuBudget& cpus) {
  ProbeSessionOptions options;
  options.weights = request.weights;
  options.device = request.device;
  options.link_slowdown = request.link_slowdown;
  options.cache_policy = request.cache_policy;
  options.max_prefetches = request.max_prefetches;
  options.contexts = bounded(request.contexts, kDefaultContexts, geometry.max_positions);
  for (const int64_t batch : bounded(request.batches, kDefaultBatches, kMaxBatch))
    options.batches.push_back(static_cast<int>(batch));
  if (request.contexts.empty()) options.served_context = std::min(geometry.max_positions, kDefaultServedContext);
  options.budget_seconds = std::min(request.budget_seconds / 10, 10.0);
  options.device_memory_limit_bytes = request.device_memory_limit_bytes;
  options.host_memory_limit_bytes = request.host_memory_limit_bytes;
  options.add_candidates = false;
  options.threads = thread_counts(request, cpus);
  return options;
}

std::optional<int64_t> pinned_slots(const TuneRequest& request, const ModelGeometry& geometry) {
  if (!request.slots) return std::nullopt;
  if (request.slots->count) return request.slots->count;
  return std::llround(*request.slots->percent / 100 * static_cast<double>(geometry.total_experts()));
}

bool resident_fits(const Preflight& preflight) {
  return preflight.bounds.max >= preflight.family->geometry().total_experts();
}

// A pin that no candidate can have would otherwise be found when everything is measured.
void check_pins(const TuneRequest& request, const Preflight& preflight) {
  const int64_t all = preflight.family->geometry().total_experts();
  const SlotBounds& bounds = preflight.bounds;
  const bool resident = request.strategy == Strategy::kResident;
  if (resident && !resident_fits(preflight)) {
    throw Error(ErrorKind::kFailed, {.what = "not enough memory for the expert slots of --strategy resident",
                                     .value = std::to_string(all) + " slots",
                                     .allowed = "at most " + std::to_string(std::max<int64_t>(0, bounds.max)),
                                     .action = std::string(bounds.for_more) + ", or choose another --strategy"});
  }
  if (!preflight.slots) return;
  const int64_t slots = *preflight.slots;
  const bool may_have_none = !request.strategy || *request.strategy == Strategy::kCpu;
  const bool good =
      resident ? slots == all : (slots == 0 && may_have_none) || (slots >= bounds.min && slots <= bounds.max);
  if (good) return;
  std::string allowed = resident ? std::to_string(all) + " or 100% with --strategy resident" : "";
  if (!resident && bounds.max >= bounds.min) {
    allowed = std::to_string(bounds.min) + " to " + std::to_string(bounds.max) + " slots with this batch and memory";
  }
  if (!resident && may_have_none) allowed += allowed.empty() ? "0, with --strategy cpu" : ", or 0 with --strategy cpu";
  if (allowed.empty()) allowed = "none: not even " + std::to_string(bounds.min) + " slots fit";
  throw Error(ErrorKind::kUsage, {.what = "option refused",
                                  .value = preflight.slots_asked,
                                  .allowed = allowed,
                                  .action = resident ? "leave --slots out" : "",
                                  .path = "--slots"});
}

std::string slots_text(Strategy strategy, const Preflight& preflight) {
  if (strategy == Strategy::kResident) return resident_fits(preflight) ? "all experts" : "does not fit";
  if (preflight.slots) return preflight.slots_asked;
  const SlotBounds& bounds = preflight.bounds;
  if (bounds.max < bounds.min) return strategy == Strategy::kCpu ? "0" : "does not fit";
  return fmt::format("{}{} to {}", strategy == Strategy::kCpu ? "0, or " : "", bounds.min, bounds.max);
}

// A tuning that cannot be served is wasted: what a start of ft-engine refuses of tokenizer, chat template and defaults
// is refused before anything is measured, and what it warns about is said.
void check_text_model(const WeightSource& source, int64_t vocab) {
  TextModel text = load_text_model(source.model_path);
  if (source.synthetic) use_byte_tokenizer(text, vocab);
  if (!text.missing.empty()) log_warning(text.missing);
}

}  // namespace

Preflight make_preflight(const TuneRequest& request, const LoadedModel& loaded) {
  check_packed_cache(request.weights, request.dry_run);
  Preflight preflight;
  preflight.family = make_family(load_model_config(request.weights.model_path));
  const ModelGeometry& geometry = preflight.family->geometry();
  const HostTopology topology = detect_topology();
  const CpuBudget cpus = detect_cpu_budget(topology);
  preflight.options = session_options(request, geometry, cpus);
  preflight.options.loaded = loaded;
  preflight.gpu = start_device(request.device);
  if (preflight.gpu) preflight.gpu = with_loaded(*preflight.gpu, loaded);
  preflight.options.gpu = preflight.gpu;
  preflight.identity = {collect_host_identity(topology, cpus, preflight.gpu), collect_build_identity(),
                        collect_model_identity(*preflight.family, request.weights)};
  preflight.formats = inspect_formats(*preflight.family, request.weights);
  check_text_model(request.weights, geometry.vocab);
  preflight.memory =
      probe_memory_inputs(preflight.options, with_loaded(detect_memory_budget(), loaded, request.device));
  preflight.base = probe_base_config(preflight.options, geometry, preflight.formats, cpus, preflight.memory);
  preflight.bounds = slot_bounds(geometry, preflight.formats, preflight.base, preflight.memory);
  preflight.slots = pinned_slots(request, geometry);
  if (preflight.slots) {
    preflight.slots_asked = std::to_string(*preflight.slots);
    if (request.slots->percent) preflight.slots_asked += " (" + request.slots_given + ")";
  }
  check_pins(request, preflight);
  return preflight;
}

SampleRecord kept_samples(const std::string& path, const std::string& output) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    try {
      return read_samples(path);
    } catch (const Error& error) {
      ErrorParts parts = error.parts();
      parts.action = "leave --resume out to measure again: that replaces the file";
      throw Error(error.kind(), std::move(parts));
    }
  }
  const bool finished = std::filesystem::exists(output, ignored);
  throw Error(
      ErrorKind::kUsage,
      {.what = finished ? "--resume refused, there is no samples file, and a profile is there already: a run "
                          "that writes its profile removes its samples"
                        : "--resume refused, there is no samples file: no earlier run with this --output got "
                          "through its first probe",
       .action = finished ? "leave --resume out to measure again"
                          : "give the --output of the run that was cut off, or leave --resume out to start anew",
       .path = path});
}

std::string tune_dry_run(const TuneRequest& request) {
  const Preflight preflight = make_preflight(request);
  const ModelGeometry& geometry = preflight.family->geometry();
  if (request.resume) kept_samples(samples_path(request.output), request.output);
  if (request.weights.synthetic) {  // refuses what is no preset and no trace of this geometry
    synthetic_routing(request.weights.routing_preset, static_cast<int>(geometry.moe_layers.size()),
                      geometry.expert.experts, geometry.expert.top_k, 1, request.weights.synthetic_seed);
  }
  const int64_t largest = preflight.bounds.max >= preflight.bounds.min ? preflight.bounds.max : 0;
  EngineConfig config = preflight.base;
  config.slots = preflight.slots.value_or(largest);
  config.strategy = request.strategy.value_or(config.slots == geometry.total_experts() ? Strategy::kResident
                                              : config.slots == 0                      ? Strategy::kCpu
                                                                                       : Strategy::kOffload);
  std::string text = fmt::format("model: {}, {} MoE layers x {} experts, top {}; experts {}, dense {}\n",
                                 geometry.family, geometry.moe_layers.size(), geometry.expert.experts,
                                 geometry.expert.top_k, preflight.formats.experts, preflight.formats.dense);
  text += memory_plan_text(plan_memory(geometry, preflight.formats, config, preflight.memory), config);
  text += "threads to try:";
  for (const int threads : preflight.options.threads) text += fmt::format(" {}", threads);
  text += "\nprobes:";
  for (const auto& probe : make_probes()) text += fmt::format("\n  {:<14} {}", probe->id(), probe->measures());
  text += "\nslots:";
  for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
    if (request.strategy && *request.strategy != strategy) continue;
    text += fmt::format("\n  {:<9} {}", strategy_name(strategy), slots_text(strategy, preflight));
  }
  return text + "\n" + packed_cache_text(*preflight.family, request.weights);
}

}  // namespace ft
