#include "engine/runtime/engine.h"

#include <algorithm>

#include "engine/runtime/cuda/cuda_backend.h"
#include "engine/runtime/engine_state.h"
#include "engine/runtime/host_backend.h"
#include "engine/runtime/silent_backend.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/host/numa.h"

namespace ft {
namespace {

// Notes which MoE layers a forward pass asks for and computes nothing.
class MoeSites final : public SilentBackend {
 public:
  explicit MoeSites(size_t layers) : sites(layers) {}
  void moe(const MoeSpec& spec) override { sites.at(static_cast<size_t>(spec.moe_layer)) = spec; }
  std::vector<MoeSpec> sites;
};

// A family is written once for all devices, but a device may lack operations that it needs.
void require_on_cuda(const std::string& name) {
  std::string listed;
  for (const FamilyDesc& family : families()) {
    if (!family.on_cuda) continue;
    if (family.model_type == name) return;
    listed += (listed.empty() ? "" : ", ") + std::string(family.model_type);
  }
  throw Error(ErrorKind::kUsage, {.what = "the device cuda cannot run this kind of model yet",
                                  .value = name,
                                  .allowed = listed,
                                  .action = "use --device host",
                                  .path = "--device"});
}

}  // namespace

Engine::State::State(LoadedModel loaded, const EngineConfig& asked, const MemoryInputs& memory)
    : model(std::move(loaded)),
      config(asked),
      isa(capped_isa(asked)),
      max_tokens(std::max(asked.prefill_chunk, asked.max_batch)),
      kernels(resolve_kernels(isa)),
      hooks(model.family->geometry(), asked.max_batch),
      tokens(max_tokens) {
  check_engine_config(geometry(), config);
  plan = plan_memory(geometry(), model.weights->formats, config, memory);
  std::vector<int> cpus = config.pinning;
  if (!cpus.empty()) cpus = make_numa_plan(detect_topology(), config.pinning, config.threads).pinning;
  pool = std::make_unique<WorkerPool>(WorkerPoolOptions{.threads = config.threads, .cpus = cpus});
  const BackendParts parts{*model.family,
                           *model.weights,
                           *pool,
                           hooks,
                           max_tokens,
                           config.max_batch,
                           config.max_context,
                           max_logits_rows(config),
                           deepseek_arithmetic_of(config)};
  if (config.numerics == Numerics::kReference) {
    reference = std::make_unique<ReferenceBackend>(parts);
    backend = reference.get();
  } else {
    const MoeLayerOptions moe{
        geometry().expert.top_k,        max_tokens,          config.strategy,   config.fetch_of_misses,
        config.promote_bytes_per_layer, config.cache_policy, config.look_ahead, config.max_prefetches_per_layer};
    const int distinct = max_distinct_experts(geometry(), config);
    if (config.device == Device::kCuda) {
      require_on_cuda(geometry().family);
      if (model.on_device == nullptr) model.on_device = upload_weights(*model.weights);
      serve = make_cuda_backend({parts, kernels, config, model.on_device, distinct});
    } else {
      serve = std::make_unique<HostBackend>(parts, kernels, moe, config.slots, distinct);
    }
    backend = serve.get();
  }
  const auto sequences = static_cast<size_t>(config.max_batch);
  lengths.assign(sequences, -1);
  reached.assign(sequences, 0);
  stepped_in.assign(sequences, 0);
  MoeSites recorder(geometry().moe_layers.size());
  model.family->forward(recorder, *model.weights, StepBatch{});
  moe_sites = std::move(recorder.sites);
  probe_ids.assign(sequences, 0);
  probe_runs.reserve(sequences);
}

Engine::Engine(LoadedModel model, const EngineConfig& config, const MemoryInputs& memory)
    : state_(std::make_unique<State>(std::move(model), config, memory)) {}
Engine::~Engine() = default;

const EngineConfig& Engine::config() const { return state_->config; }
const ModelGeometry& Engine::geometry() const { return state_->geometry(); }
const ModelFormats& Engine::formats() const { return state_->model.weights->formats; }
const MemoryPlan& Engine::memory_plan() const { return state_->plan; }
Isa Engine::isa() const { return state_->isa; }
WorkerPool& Engine::pool() { return *state_->pool; }

int Engine::open_sequence() {
  const auto closed = std::find(state_->lengths.begin(), state_->lengths.end(), -1);
  if (closed == state_->lengths.end()) return -1;
  *closed = 0;
  const auto sequence = static_cast<int>(closed - state_->lengths.begin());
  state_->reached[static_cast<size_t>(sequence)] = 0;
  state_->hooks.restart(sequence);
  return sequence;
}

void Engine::close_sequence(int sequence) {
  FT_CHECK(sequence_length(sequence) >= 0);
  state_->lengths[static_cast<size_t>(sequence)] = -1;
}

int64_t Engine::sequence_length(int sequence) const {
  FT_CHECK(sequence >= 0 && sequence < state_->config.max_batch);
  return state_->lengths[static_cast<size_t>(sequence)];
}

namespace {

StepBatch batch_of(std::span<const TokenRun> runs) {
  StepBatch batch;
  batch.runs = runs;
  batch.decode = true;
  for (const TokenRun& run : runs) {
    const auto count = static_cast<int64_t>(run.ids.size());
    batch.tokens += count;
    batch.logits_rows += run.logits_for_all ? count : static_cast<int64_t>(run.last_logits);
    batch.decode = batch.decode && count == 1 && !run.prompt;
  }
  return batch;
}

}  // namespace

std::span<const float> Engine::step(std::span<const TokenRun> runs) {
  State& s = *state_;
  const double start = now_seconds();
  const StepBatch batch = batch_of(runs);
  FT_CHECK(batch.tokens >= 1 && batch.tokens <= s.max_tokens && batch.logits_rows <= max_logits_rows(s.config));
  ++s.step_number;
  for (const TokenRun& run : runs) {
    FT_CHECK(!run.ids.empty() && run.sequence >= 0 && run.sequence < s.config.max_batch);
    FT_CHECK(batch.decode || run.prompt || run.ids.size() > 1);
    const auto sequence = static_cast<size_t>(run.sequence);
    FT_CHECK(s.stepped_in[sequence] != s.step_number);
    s.stepped_in[sequence] = s.step_number;
    FT_CHECK(s.lengths[sequence] >= 0 && run.position == s.lengths[sequence]);
    FT_CHECK(run.position + static_cast<int64_t>(run.ids.size()) <= s.config.max_context);
    for (const int32_t id : run.ids) FT_CHECK(id >= 0 && id < s.geometry().vocab);
  }
  s.tokens.assign(batch);
  s.backend->step(s.tokens, batch);
  s.hooks.finish_step(s.tokens);
  for (const TokenRun& run : runs) {
    const auto sequence = static_cast<size_t>(run.sequence);
    s.lengths[sequence] += static_cast<int64_t>(run.ids.size());
    s.reached[sequence] = std::max(s.reached[sequence], s.lengths[sequence]);
  }
  s.last_logits_rows = batch.logits_rows;
  if (batch.decode) {
    ++s.counters.decode_steps;
    s.counters.decode_tokens += static_cast<uint64_t>(batch.tokens);
    const double seconds = now_seconds() - start;
    s.counters.decode_seconds += seconds;
    if (batch.tokens == 1) {
      ++s.counters.single_steps;
      s.counters.single_seconds += seconds;
    }
  } else {
    s.counters.prefill_tokens += static_cast<uint64_t>(batch.tokens);
    s.counters.prefill_seconds += now_seconds() - start;
  }
  return {s.backend->logits_rows(), static_cast<size_t>(batch.logits_rows * s.geometry().vocab)};
}

std::span<const LargestLogit> Engine::largest_logits() const {
  const LargestLogit* rows = state_->backend->largest_logits();
  return {rows, rows == nullptr ? 0 : static_cast<size_t>(state_->last_logits_rows)};
}

std::span<const float> Engine::prefill(int sequence, std::span<const int32_t> ids) {
  FT_CHECK(!ids.empty());
  const auto chunk = static_cast<size_t>(state_->config.prefill_chunk);
  std::span<const float> logits;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    TokenRun run;
    run.sequence = sequence;
    run.position = sequence_length(sequence);
    run.ids = ids.subspan(begin, std::min(chunk, ids.size() - begin));
    run.last_logits = begin + chunk >= ids.size();
    run.prompt = true;
    logits = step({&run, 1});
  }
  return logits;
}

void Engine::change_split(Strategy strategy, const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer) {
  State& s = *state_;
  s.require_serve("change_split");
  if (s.config.slots == 0 || s.config.strategy == Strategy::kResident || strategy == Strategy::kResident) {
    const std::string_view from = strategy_name(s.config.strategy);
    throw Error(ErrorKind::kUsage, {.what = "the split cannot change while the engine runs",
                                    .value = std::string(from) + " with " + std::to_string(s.config.slots) +
                                             " slots, to " + std::string(strategy_name(strategy)),
                                    .allowed = "from and to offload, cpu and hybrid, with slots"});
  }
  EngineConfig changed = s.config;
  changed.strategy = strategy;
  changed.fetch_of_misses = fetch_of_misses;
  changed.promote_bytes_per_layer = promote_bytes_per_layer;
  check_engine_config(s.geometry(), changed);
  s.config = std::move(changed);
  s.serve->change_split(s.config.fetch_of_misses, promote_bytes_per_layer);
}

void Engine::record_routing(RoutingTrace* trace) { state_->hooks.record_into(trace); }
void Engine::set_routing(std::shared_ptr<const RoutingTrace> trace) { state_->hooks.force(std::move(trace)); }
void Engine::place_in_routing(int sequence, int64_t trace_token) {
  state_->hooks.place(sequence, sequence_length(sequence), trace_token);
}
bool Engine::routing_is_synthetic() const { return state_->hooks.forced(); }

EngineCounters Engine::counters() const {
  const State& s = *state_;
  EngineCounters counters = s.counters;
  if (s.serves()) s.serve->add_counters(counters);
  const auto floats = static_cast<size_t>(s.last_logits_rows * s.geometry().vocab);
  if (floats > 0) counters.logits_hash = hash_hex(std::as_bytes(std::span(s.backend->logits_rows(), floats)));
  return counters;
}

void Engine::reset_counters() {
  state_->counters = EngineCounters{};
  if (state_->serves()) state_->serve->reset_counters();
}

EngagedRecord Engine::engaged() const {
  const State& s = *state_;
  EngagedRecord record;
  record.strategy = strategy_name(s.config.strategy);
  record.isa = isa_name(s.isa);
  if (!s.serves()) return record;
  s.serve->describe(record);
  record.cache_policy = cache_policy_name(s.config.cache_policy);
  record.look_ahead = look_ahead_name(s.config.look_ahead);
  EngineCounters counters;
  s.serve->add_counters(counters);
  const uint64_t misses = counters.expert_fetched + counters.expert_cpu;
  if (misses > 0) record.fetched_share = static_cast<double>(counters.expert_fetched) / static_cast<double>(misses);
  return record;
}

}  // namespace ft
