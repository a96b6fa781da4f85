// A machine and a model made ready for probes: topology, budgets, weights, expert choices, text. Owns what a
// ProbeContext points to.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "probes/probe.h"

namespace ft {

struct ProbeSessionOptions {
  WeightSource weights;  // model_path empty: no model
  // What an earlier session loaded from the same weights (routing aside) for the same device: nothing is loaded. Null
  // members: none.
  LoadedModel loaded;
  std::vector<ExpertShape> expert_shapes;
  std::vector<int> threads;       // empty: 1 and all usable cores
  std::vector<int64_t> contexts;  // empty: 128
  std::vector<int> batches;       // empty: 1
  double budget_seconds = 5;      // of each probe
  Device device = Device::kHost;
  std::optional<cuda::DeviceFacts> gpu;  // of start_device(device)
  int link_slowdown = 1;                 // EngineConfig::link_slowdown
  CachePolicy cache_policy = CachePolicy::kLrfu;
  int max_prefetches = 0;      // EngineConfig::max_prefetches_per_layer of engines that fetch; 0: look-ahead off
  double bank_gb = 0;          // of the probe `bank`; 0: as much as is reasonable
  int64_t served_context = 0;  // context that the engines shall hold beside what `contexts` need, if memory allows
  std::optional<int64_t> device_memory_limit_bytes, host_memory_limit_bytes;
  bool add_candidates = true;         // the four strategies as they are, for `decode` without a tuner
  ProgressFn progress;                // of loading; may throw to end it
  NoticeFn notice;                    // of loading
  std::function<bool()> interrupted;  // asked while routing is recorded and by the probes
};

// What every engine of a session shares, and what the machine offers it: pure, for a dry run too. Throws Error(kUsage)
// when a context is longer than the model's.
EngineConfig probe_base_config(const ProbeSessionOptions& options, const ModelGeometry& geometry,
                               const ModelFormats& formats, const CpuBudget& cpus, const MemoryInputs& memory);
MemoryInputs probe_memory_inputs(const ProbeSessionOptions& options, const MemoryBudget& budget);
// As if what `loaded` holds were free: plans count it again. Pure.
MemoryBudget with_loaded(MemoryBudget budget, const LoadedModel& loaded, Device device);
cuda::DeviceFacts with_loaded(cuda::DeviceFacts gpu, const LoadedModel& loaded);

class ProbeSession {
 public:
  // Loads the model and gets a routing trace: recorded through the real router, or, with synthetic weights, from the
  // preset or file that `weights` names. The candidates of `decode` are offload, cpu and hybrid with half of what fits,
  // and resident when it fits. Throws Error.
  explicit ProbeSession(const ProbeSessionOptions& options);
  ProbeContext& context() { return context_; }
  // How long the model's expert banks took from their allocation until the device could read them; empty on the host.
  const std::string& bank_text() const { return bank_text_; }
  // How good the trace's predictions are; empty when it has none (no look-ahead asked for).
  const std::string& look_ahead_text() const { return look_ahead_text_; }

 private:
  // In this order: what can be refused without the weights is refused before minutes of loading them.
  void plan_model(const Family& family, const ProbeSessionOptions& options);
  std::vector<std::vector<int32_t>> read_prompts(const ModelGeometry& geometry, const ProbeSessionOptions& options);
  void load_model(std::shared_ptr<const Family> family, const ProbeSessionOptions& options);
  void record_routing(const std::vector<std::vector<int32_t>>& prompts);
  void note_predictions();
  void add_candidates();

  HostTopology topology_;
  CpuBudget cpus_;
  MemoryBudget memory_;
  ProbeContext context_;
  std::string bank_text_, look_ahead_text_;
};

}  // namespace ft
