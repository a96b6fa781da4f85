#include "probes/engine_setup.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/expert_set.h"
#include "probes/memory_guard.h"

namespace ft {
namespace {

constexpr double kSampleSeconds = 5e-4;  // below a scheduler's slice: what interrupts one sample leaves others clean
constexpr int64_t kMaxRepeats = 1000;

int max_distinct(const ModelGeometry& geometry, const EngineConfig& config) {
  return std::min(geometry.expert.experts, geometry.expert.top_k * config.max_batch);
}

void fill_slots(Engine& engine) {
  const ModelGeometry& geometry = engine.geometry();
  SlotTable table(static_cast<int>(geometry.moe_layers.size()), geometry.expert.experts, engine.config().slots);
  table.fill_in_order();
  engine.restore_cache(table.content());
}

}  // namespace

std::unique_ptr<Engine> make_probe_engine(const ProbeContext& context, int threads, bool predict) {
  const ModelWeights& weights = *context.model.weights;
  EngineConfig config = context.base;
  config.strategy = Strategy::kHybrid;
  config.threads = threads;
  const int distinct = max_distinct(weights.geometry, config);
  config.fetch_of_misses.assign(static_cast<size_t>(distinct) + 1, 0);
  config.promote_bytes_per_layer = 0;
  const SlotBounds bounds = slot_bounds(weights.geometry, weights.formats, config, context.memory_inputs);
  const int64_t cache = context.gpu ? context.gpu->l2_bytes : context.topology->last_level_cache_bytes;
  const int64_t cold = kColdFactor * cache / weights.formats.expert_bytes_max;
  config.slots = std::clamp(std::max(cold, int64_t{4} * distinct), bounds.min, std::max(bounds.min, bounds.max));
  const bool predicts = predict && config.slots > distinct;             // look-ahead needs one slot more
  config.look_ahead = predicts ? LookAhead::kRouter : LookAhead::kOff;  // off: plans come from the probe
  config.max_prefetches_per_layer = predicts ? 1 : 0;
  require_memory("a probe's engine with " + std::to_string(config.slots) + " slots", engine_bytes(context, config),
                 memory_left(context));
  auto engine = std::make_unique<Engine>(context.model, config, context.memory_inputs);
  fill_slots(*engine);
  return engine;
}

namespace {

// Beside another one, its slots filled; null where it does not fit.
std::unique_ptr<Engine> make_beside(const ProbeContext& context, const EngineConfig& config, const std::string& what) {
  try {
    require_memory(what, engine_bytes(context, config), memory_left(context));
    auto engine = std::make_unique<Engine>(context.model, config, context.memory_inputs);
    fill_slots(*engine);
    return engine;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kFailed) throw;
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<Engine> make_promoting_engine(const ProbeContext& context, const Engine& other) {
  if (context.base.device != Device::kCuda || other.config().slots == 0) return nullptr;
  EngineConfig config = other.config();
  config.promote_bytes_per_layer = context.model.weights->formats.expert_bytes_max;
  return make_beside(context, config, "an engine that promotes");
}

std::unique_ptr<Engine> make_copy_engine_engine(const ProbeContext& context, const Engine& other) {
  EngineConfig config = other.config();
  const int proxy = 1;
  if (context.base.device != Device::kCuda || config.slots == 0 || config.link_slowdown != 1) return nullptr;
  if (config.threads + proxy > context.cpus->usable_cores) return nullptr;
  config.fetch_mechanism = FetchMechanism::kCopyEngine;
  return make_beside(context, config, "an engine with the copy engine");
}

std::unique_ptr<Engine> make_look_ahead_engine(const ProbeContext& context, const Engine& other) {
  const bool predicts = context.trace != nullptr && context.trace->predictions > 0;
  if (!predicts || context.base.weights.synthetic || context.base.device != Device::kHost) return nullptr;
  EngineConfig config = other.config();
  config.look_ahead = LookAhead::kRouter;
  config.max_prefetches_per_layer = 1;
  config.slots = max_distinct(other.geometry(), config) + 1;
  if (config.slots > other.geometry().total_experts()) return nullptr;
  MemoryInputs memory = context.memory_inputs;
  memory.host_memory_bytes -= other.memory_plan().device_bytes;  // on the host device one memory
  memory.device_memory_bytes = std::min(memory.device_memory_bytes, memory.host_memory_bytes);
  try {
    require_memory("an engine with look-ahead", engine_bytes(context, config), memory_left(context));
    return std::make_unique<Engine>(context.model, config, memory);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kFailed) throw;
    return nullptr;
  }
}

PlanMaker::PlanMaker(const ModelGeometry& geometry, std::shared_ptr<const RoutingTrace> trace, int64_t slots)
    : geometry_(geometry), trace_(std::move(trace)), slots_(slots) {}

void PlanMaker::next_token() { ++token_; }

std::vector<int> PlanMaker::choose(int layer, int count) const {
  std::vector<int> chosen;
  const auto take = [&](int expert) {
    if (static_cast<int>(chosen.size()) == count) return;
    if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
  };
  if (trace_ != nullptr) {
    for (int64_t i = 0; i < trace_->tokens && static_cast<int>(chosen.size()) < count; ++i) {
      for (const int16_t id : trace_->at((token_ + i) % trace_->tokens, layer)) take(id);
    }
  }
  for (int i = 0; static_cast<int>(chosen.size()) < count; ++i) {
    take(static_cast<int>((token_ * count + i) % geometry_.expert.experts));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

void PlanMaker::make(const SweepPoint& point, int layer, LayerPlan& plan) {
  FT_CHECK(point.hits + point.fetched + point.promoted <= slots_);
  const auto slot = [&] { return slots_ == 0 ? 0 : next_slot_++ % slots_; };
  const std::vector<int> chosen = choose(layer, point.experts());
  plan.clear();
  plan.layer = layer;
  // Which of them hit depends on the token, so that no expert is always in the same arm.
  const size_t n = chosen.size();
  const auto expert = [&](size_t i) { return chosen[(i + static_cast<size_t>(token_)) % n]; };
  size_t at = 0;
  for (int i = 0; i < point.hits; ++i) plan.hits.push_back({expert(at++), slot()});
  for (int i = 0; i < point.fetched; ++i) plan.fetches.push_back({expert(at++), slot()});
  for (int i = 0; i < point.cpu; ++i) plan.cpu.push_back(expert(at++));
  for (int i = 0; i < point.promoted; ++i) plan.promotions.push_back({plan.cpu[static_cast<size_t>(i)], slot()});
}

LayerLoop::LayerLoop(Engine& engine, PlanMaker& plans, const SweepPoint& point)
    : engine_(engine), plans_(plans), point_(point), layers_(static_cast<int>(engine.geometry().moe_layers.size())) {
  layer_plans_.resize(static_cast<size_t>(layers_));
  run_once();  // pages and pool awake
  const double seconds = std::max(run_once(), 1e-7);
  repeats_ = std::clamp(static_cast<int64_t>(std::ceil(kSampleSeconds / seconds)), int64_t{1}, kMaxRepeats);
}

void LayerLoop::make_plans() {
  plans_.next_token();
  for (int layer = 0; layer < layers_; ++layer) plans_.make(point_, layer, layer_plans_[static_cast<size_t>(layer)]);
}

double LayerLoop::run_once() {
  make_plans();
  const double start = now_seconds();
  engine_.run_moe_layers(layer_plans_, point_.tokens);
  return now_seconds() - start;
}

double LayerLoop::microseconds_per_layer() {
  engine_.reset_counters();  // waits for the copies that the point before left
  run_once();                // caches are this point's own, as they are a serving engine's
  double seconds = 0;
  for (int64_t i = 0; i < repeats_; ++i) seconds += run_once();
  return seconds * 1e6 / static_cast<double>(layers_per_sample());
}

double mean_distinct(const RoutingTrace& trace, int batch, int max_batch) {
  FT_CHECK(trace.tokens > 0 && trace.layers > 0 && batch <= max_batch);
  std::vector<char> seen(static_cast<size_t>(trace.experts));
  int64_t distinct = 0;
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      std::fill(seen.begin(), seen.end(), 0);
      for (int64_t s = 0; s < batch; ++s) {
        for (const int16_t id : trace.at((token + s * trace.tokens / max_batch) % trace.tokens, layer)) {
          distinct += seen[static_cast<size_t>(id)] == 0 ? 1 : 0;
          seen[static_cast<size_t>(id)] = 1;
        }
      }
    }
  }
  return static_cast<double>(distinct) / static_cast<double>(trace.tokens * trace.layers);
}

std::string answer_hash(Engine& engine) {
  constexpr int kPrompt = 4, kDecoded = 2;
  const int sequence = engine.open_sequence();
  FT_CHECK(sequence >= 0);
  std::vector<int32_t> ids;
  const int64_t length = std::min<int64_t>(kPrompt + kDecoded, engine.config().max_context);
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>((7 * i + 3) % engine.geometry().vocab));
  const int64_t prompt = std::max<int64_t>(1, length - kDecoded);
  engine.prefill(sequence, std::span(ids).first(static_cast<size_t>(prompt)));
  for (int64_t i = prompt; i < length; ++i) {
    const TokenRun run{sequence, i, std::span(ids).subspan(static_cast<size_t>(i), 1), false, true};
    engine.step({&run, 1});
  }
  engine.close_sequence(sequence);
  return engine.counters().logits_hash;
}

}  // namespace ft
