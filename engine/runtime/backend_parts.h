// What a backend is made of, and what the engine asks of one beside the family's operations: a device in serve
// numerics is a ServeBackend, the host in reference numerics a StepBackend alone.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine_config.h"
#include "engine/experts/slot_table.h"
#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/counters.h"
#include "engine/runtime/routing_hooks.h"
#include "engine/runtime/step_tokens.h"
#include "kernels/base/largest_logit.h"
#include "kernels/host/worker_pool.h"

namespace ft {

struct BackendParts {
  const Family& family;
  const ModelWeights& weights;
  WorkerPool& pool;
  RoutingHooks& hooks;
  int64_t max_tokens = 0;  // of one step
  int sequences = 0;
  int64_t max_context = 0;
  int64_t logits_rows = 0;  // of one step, at most
  DeepseekArithmetic deepseek_arithmetic = DeepseekArithmetic::kAuthors;
};

class StepBackend : public Backend {
 public:
  // One step of the family's forward pass, decode or prefill. `tokens` and what `batch` points to must outlive it.
  virtual void step(const StepTokens& tokens, const StepBatch& batch) = 0;
  // (logits rows of the step, vocab) in host memory, valid until the next step.
  virtual const float* logits_rows() const = 0;
  // The largest of each of these rows, valid as long; null: this backend did not look.
  virtual const LargestLogit* largest_logits() const { return nullptr; }
};

// Slots, KV cache and counters of one device. Thread rule: one thread; no allocation in step().
class ServeBackend : public StepBackend {
 public:
  // A decode step with every expert a hit of whatever the slots hold; the slot table is neither asked nor changed.
  virtual void dense_step(const StepTokens& tokens, const StepBatch& batch) = 0;
  // MoE layers one after the other, exactly as a decode step runs them, by plans from outside; sites are of all
  // layers. Fills slots behind the table's back: the next step or restore puts them right.
  virtual void moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans,
                          std::span<const MoeSpec> sites) = 0;

  virtual SlotTable::Content cache_content() const = 0;
  virtual void restore_cache(const SlotTable::Content& content) = 0;  // copies blobs; throws as SlotTable::restore
  // The first `length` positions of a sequence of a backend of the same device and model.
  virtual void copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) = 0;
  // A sequence's recurrent state, ModelGeometry::state_floats of them, between steps.
  virtual void read_state(int sequence, std::span<float> state) const = 0;
  virtual void write_state(int sequence, std::span<const float> state) = 0;

  // Between steps: what misses do from the next decode step on. What is allocated stays; there are slots, and the table
  // has as many entries as the one before.
  virtual void change_split(const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer) = 0;

  virtual void add_counters(EngineCounters& counters) const = 0;
  virtual void reset_counters() = 0;
  virtual void describe(EngagedRecord& record) const = 0;  // what this device engaged: threads, slots, mechanism
};

}  // namespace ft
