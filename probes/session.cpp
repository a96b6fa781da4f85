#include "probes/session.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "engine/runtime/cuda/device_weights.h"
#include "engine/runtime/device.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/host/worker_pool.h"
#include "probes/engine_setup.h"
#include "probes/memory_guard.h"
#include "probes/prompts.h"

namespace ft {
namespace {

constexpr double kMemoryShare = 0.9;  // of what is available: the rest is for page tables, threads, the system
// Of what a GPU offers: free memory differs a little from start to start, and a profile must not be refused for it.
constexpr double kDeviceShare = 0.98;
constexpr int64_t kDefaultContext = 128;
constexpr int64_t kDecodeRoom = 160;  // tokens that `decode` adds to a context
constexpr int64_t kTraceTokens = 512;
constexpr int64_t kTraceTokensPerSequence = 8;  // of the largest batch: however short the time, a replay has some steps
constexpr std::string_view kDefaultPreset = "qwen3-30b";

SplitTable share_of_misses(int size, int numerator, int denominator) {
  SplitTable table(static_cast<size_t>(size) + 1, 0);
  for (int m = 1; m <= size; ++m) table[static_cast<size_t>(m)] = (m * numerator + denominator - 1) / denominator;
  return table;
}

bool leaves_room_for_slots(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                           const MemoryInputs& memory) {
  try {
    const SlotBounds bounds = slot_bounds(geometry, formats, config, memory);
    return bounds.max >= bounds.min;
  } catch (const Error&) {  // not even the fixed pools fit
    return false;
  }
}

}  // namespace

EngineConfig probe_base_config(const ProbeSessionOptions& options, const ModelGeometry& geometry,
                               const ModelFormats& formats, const CpuBudget& cpus, const MemoryInputs& memory) {
  EngineConfig base;
  base.weights = options.weights;
  base.device = options.device;
  base.link_slowdown = options.link_slowdown;
  base.cache_policy = options.cache_policy;
  base.look_ahead = options.max_prefetches > 0 ? LookAhead::kRouter : LookAhead::kOff;
  base.max_prefetches_per_layer = options.max_prefetches;
  base.pinning = cpus.pinning;
  base.threads = options.threads.empty() ? cpus.usable_cores : options.threads.front();
  base.device_memory_limit_bytes = options.device_memory_limit_bytes;
  base.host_memory_limit_bytes = options.host_memory_limit_bytes;
  for (const int batch : options.batches) base.max_batch = std::max(base.max_batch, batch);
  int64_t longest = kDefaultContext;
  if (!options.contexts.empty()) longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  if (longest > geometry.max_positions) {
    throw Error(ErrorKind::kUsage, {.what = "context longer than the model's",
                                    .value = std::to_string(longest),
                                    .allowed = "1 to " + std::to_string(geometry.max_positions),
                                    .action = {},
                                    .path = "--context"});
  }
  const int64_t least_context = std::min(geometry.max_positions, longest + kDecodeRoom);
  base.max_context = std::clamp(options.served_context, least_context, geometry.max_positions);
  // A context that nobody asked for must not be what does not fit.
  while (base.max_context > least_context && !leaves_room_for_slots(geometry, formats, base, memory)) {
    base.max_context = std::max(least_context, base.max_context / 2);
  }
  base.prefill_chunk = default_prefill_chunk(geometry, formats, base, memory);
  return base;
}

MemoryInputs probe_memory_inputs(const ProbeSessionOptions& options, const MemoryBudget& budget) {
  const auto memory = static_cast<int64_t>(kMemoryShare * static_cast<double>(budget.available_bytes));
  const int64_t host = std::min(memory, options.host_memory_limit_bytes.value_or(memory));
  const int64_t device =
      options.gpu ? static_cast<int64_t>(kDeviceShare * static_cast<double>(offered_device_bytes(*options.gpu))) : host;
  return {options.device, std::min(device, options.device_memory_limit_bytes.value_or(device)), host};
}

MemoryBudget with_loaded(MemoryBudget budget, const LoadedModel& loaded, Device device) {
  if (loaded.weights == nullptr) return budget;
  const ModelFormats& formats = loaded.weights->formats;
  budget.available_bytes += formats.expert_bytes_total + (device == Device::kHost ? formats.dense_bytes : 0);
  return budget;
}

cuda::DeviceFacts with_loaded(cuda::DeviceFacts gpu, const LoadedModel& loaded) {
  if (loaded.on_device != nullptr) gpu.free_bytes += loaded.weights->formats.dense_bytes;
  return gpu;
}

ProbeSession::ProbeSession(const ProbeSessionOptions& options)
    : topology_(detect_topology()),
      cpus_(detect_cpu_budget(topology_)),
      memory_(with_loaded(detect_memory_budget(), options.loaded, options.device)) {
  context_.topology = &topology_;
  context_.cpus = &cpus_;
  context_.memory = &memory_;
  context_.expert_shapes = options.expert_shapes;
  context_.contexts = options.contexts.empty() ? std::vector<int64_t>{kDefaultContext} : options.contexts;
  context_.batches = options.batches.empty() ? std::vector<int>{1} : options.batches;
  context_.thread_counts = options.threads;
  if (context_.thread_counts.empty()) {
    context_.thread_counts = {cpus_.usable_cores};
    if (cpus_.usable_cores > 1) context_.thread_counts.push_back(1);
  }
  context_.budget.seconds = options.budget_seconds;
  context_.interrupted = options.interrupted;
  context_.memory_inputs = probe_memory_inputs(options, memory_);
  context_.base.device = options.device;
  context_.base.link_slowdown = options.link_slowdown;
  for (const int batch : context_.batches) context_.base.max_batch = std::max(context_.base.max_batch, batch);
  context_.gpu = options.gpu;
  context_.bank_gb = options.bank_gb;
  if (options.weights.model_path.empty()) return;
  std::shared_ptr<const Family> family = make_family(load_model_config(options.weights.model_path));
  plan_model(*family, options);
  const auto prompts = read_prompts(family->geometry(), options);
  load_model(std::move(family), options);
  if (context_.trace == nullptr) record_routing(prompts);
  note_predictions();
  if (options.add_candidates) add_candidates();
}

void ProbeSession::plan_model(const Family& family, const ProbeSessionOptions& options) {
  const ModelFormats formats = inspect_formats(family, options.weights);
  context_.base = probe_base_config(options, family.geometry(), formats, cpus_, context_.memory_inputs);
  // What needs least: when even that does not fit, nothing does.
  EngineConfig least = context_.base;
  least.strategy = Strategy::kCpu;
  plan_memory(family.geometry(), formats, least, context_.memory_inputs);
}

std::vector<std::vector<int32_t>> ProbeSession::read_prompts(const ModelGeometry& geometry,
                                                             const ProbeSessionOptions& options) {
  const std::string tokenizer_path = options.weights.model_path + "/tokenizer.json";
  std::unique_ptr<Tokenizer> tokenizer;
  if (std::filesystem::exists(tokenizer_path)) tokenizer = Tokenizer::load(tokenizer_path);
  auto prompts = prompt_ids(tokenizer.get(), geometry.vocab, 1);
  context_.text_ids = joined(prompts);
  if (options.weights.synthetic) {
    const std::string& routing = options.weights.routing_preset;
    context_.trace = std::make_shared<RoutingTrace>(synthetic_routing(
        routing.empty() ? std::string(kDefaultPreset) : routing, static_cast<int>(geometry.moe_layers.size()),
        geometry.expert.experts, geometry.expert.top_k, kTraceTokens, options.weights.synthetic_seed));
  }
  return prompts;
}

void ProbeSession::load_model(std::shared_ptr<const Family> family, const ProbeSessionOptions& options) {
  LoadedModel& model = context_.model;
  if (options.loaded.weights != nullptr) {
    FT_CHECK(options.device != Device::kCuda || options.loaded.on_device != nullptr);
    model = options.loaded;
    if (model.on_device != nullptr) bank_text_ = bank_times_text(bank_times(*model.weights, *model.on_device));
    return;
  }
  WorkerPool pool({.threads = cpus_.usable_cores, .cpus = cpus_.pinning});
  model.weights =
      load_weights(*family, options.weights, pool,
                   {.progress = guarded_progress(options.progress, options.device), .notice = options.notice});
  model.family = std::move(family);
  if (options.device != Device::kCuda) return;
  model.on_device = upload_weights(*model.weights, options.progress);
  bank_text_ = bank_times_text(bank_times(*model.weights, *model.on_device));
}

void ProbeSession::record_routing(const std::vector<std::vector<int32_t>>& prompts) {
  const std::unique_ptr<Engine> engine =
      make_probe_engine(context_, context_.base.threads, context_.base.device == Device::kHost);
  RecordOptions record;
  record.max_tokens = kTraceTokens;
  record.seconds = context_.budget.seconds;
  record.min_tokens = kTraceTokensPerSequence * context_.base.max_batch;
  record.interrupted = context_.interrupted;
  const auto stopped = [this] { return context_.interrupted && context_.interrupted(); };
  try {
    RecordedTrace recorded = record_trace(*engine, prompts, record);
    context_.trace = std::make_shared<RoutingTrace>(std::move(recorded.trace));
    context_.text_of_trace = std::move(recorded.text_at);
  } catch (const Error&) {
    if (!stopped()) throw;
  }
  if (stopped()) throw Error(ErrorKind::kInterrupted, {.what = "interrupted before anything was measured"});
}

void ProbeSession::note_predictions() {
  const PredictionStatistics statistics = prediction_statistics(*context_.trace);
  if (statistics.predicted == 0) return;
  char text[160];
  std::snprintf(text, sizeof text, "of %lld experts predicted one layer ahead %.1f %% were used; of those used %.1f %%",
                static_cast<long long>(statistics.predicted), 100 * statistics.precision(), 100 * statistics.recall());
  look_ahead_text_ = std::string(text) + " had been predicted";
}

void ProbeSession::add_candidates() {
  const ModelWeights& weights = *context_.model.weights;
  const int distinct =
      std::min(weights.geometry.expert.experts, weights.geometry.expert.top_k * context_.base.max_batch);
  const SlotBounds bounds = slot_bounds(weights.geometry, weights.formats, context_.base, context_.memory_inputs);
  const auto add = [&](Strategy strategy, int64_t slots, SplitTable table) {
    DecodeCandidate candidate;
    candidate.name = strategy_name(strategy);
    candidate.config = context_.base;
    candidate.config.strategy = strategy;
    drop_unusable_look_ahead(candidate.config);
    candidate.config.slots = slots;
    candidate.config.fetch_of_misses = std::move(table);
    context_.candidates.push_back(std::move(candidate));
  };
  add(Strategy::kCpu, 0, share_of_misses(distinct, 0, 1));
  if (bounds.max < bounds.min) return;
  const int64_t half = std::clamp(weights.geometry.total_experts() / 2, bounds.min, bounds.max);
  add(Strategy::kOffload, half, share_of_misses(distinct, 1, 1));
  add(Strategy::kHybrid, half, share_of_misses(distinct, 1, 2));
  if (bounds.max == weights.geometry.total_experts()) add(Strategy::kResident, bounds.max, {});
}

}  // namespace ft
