// What an Engine owns. Shared by engine.cpp (steps), engine_checks.cpp (config) and engine_probes.cpp.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/backend_parts.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/reference_backend.h"
#include "kernels/registry.h"

namespace ft {

// Throws Error(kUsage) naming the member of EngineConfig, its value and what is allowed. What depends on memory is
// checked by plan_memory.
void check_engine_config(const ModelGeometry& geometry, const EngineConfig& config);
Isa capped_isa(const EngineConfig& config);

// Distinct experts of one layer at the largest batch.
int max_distinct_experts(const ModelGeometry& geometry, const EngineConfig& config);

struct Engine::State {
  State(LoadedModel model, const EngineConfig& config, const MemoryInputs& memory);

  bool serves() const { return serve != nullptr; }
  const ModelGeometry& geometry() const { return model.family->geometry(); }
  void require_serve(const char* what) const;
  // One token of each of the first `count` sequences at `position`: what probes step. The spans stay in this object.
  StepBatch set_probe_tokens(int count, int64_t position);

  // Order matters: what is declared first is destroyed last.
  LoadedModel model;
  EngineConfig config;
  MemoryPlan plan;
  Isa isa{};
  int64_t max_tokens = 0;  // of one step
  KernelTable kernels;
  std::unique_ptr<WorkerPool> pool;
  RoutingHooks hooks;
  StepTokens tokens;
  std::unique_ptr<ServeBackend> serve;  // one of these two
  std::unique_ptr<ReferenceBackend> reference;
  StepBackend* backend = nullptr;

  std::vector<int64_t> lengths;      // per sequence; -1: closed
  std::vector<int64_t> reached;      // per sequence: the most tokens since it was empty
  std::vector<uint64_t> stepped_in;  // per sequence: number of the step it was last in
  uint64_t step_number = 0;
  int64_t last_logits_rows = 0;
  EngineCounters counters;  // of steps; the backend adds its own

  std::vector<MoeSpec> moe_sites;    // per MoE layer
  std::vector<int32_t> probe_ids;    // (max_batch)
  std::vector<TokenRun> probe_runs;  // (max_batch)
};

}  // namespace ft
