// The engine: weights, slots, KV cache and one step at a time. The scheduler, the scorer, the probes and the tuner
// drive it through this class; nothing else runs a model.
//
// Thread rule: all calls from one thread at a time. step() allocates, locks and logs nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"
#include "engine/experts/routing_trace.h"
#include "engine/experts/slot_table.h"
#include "engine/model/family.h"
#include "engine/runtime/counters.h"
#include "engine/runtime/step.h"
#include "kernels/base/largest_logit.h"
#include "kernels/host/isa.h"

namespace ft {

class DeviceWeights;  // engine/runtime/cuda/device_weights.h

// A model in memory, shared by several engines (the tuner's candidates).
struct LoadedModel {
  std::shared_ptr<const Family> family;
  std::shared_ptr<const ModelWeights> weights;
  std::shared_ptr<const DeviceWeights> on_device;  // upload_weights(*weights); null: an engine on cuda makes its own
};

// A place that a sequence can be set back to.
struct SequenceMark {
  int64_t length = 0;
  std::vector<float> state;  // ModelGeometry::state_floats; empty at length 0, where a state begins
};

class Engine {
 public:
  // Checks the config against the model and the memory plan, allocates, fills resident slots. Throws Error.
  Engine(LoadedModel model, const EngineConfig& config, const MemoryInputs& memory);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineConfig& config() const;
  const ModelGeometry& geometry() const;
  const ModelFormats& formats() const;
  const MemoryPlan& memory_plan() const;
  Isa isa() const;

  // Sequences: a KV slot each, 0 .. max_batch - 1.
  int open_sequence();  // -1 when all are taken
  void close_sequence(int sequence);
  int64_t sequence_length(int sequence) const;
  // Forgets the last tokens, so that `length` are left. A routing that set_routing forced is not set back: it goes on.
  // REQUIRES can_rewind(sequence, length).
  void rewind_sequence(int sequence, int64_t length);
  // Whether a sequence that forgets its end still has all that its next token sees. It may always be emptied. A model
  // whose caches of windows forget can forget the last kRewindPositions of the most that the sequence held. A recurrent
  // state has no positions: such a model goes back to marks only.
  bool can_rewind(int sequence, int64_t length) const;
  // The same to where the sequence was when it was marked, as long as it still begins with the tokens that it had then.
  // Marking a model with a recurrent state needs serve numerics: FT_CHECKed.
  SequenceMark mark_sequence(int sequence) const;
  bool can_rewind(int sequence, const SequenceMark& mark) const;
  void rewind_sequence(int sequence, const SequenceMark& mark);
  // Makes `sequence` as if it had been fed what `from` fed to its own: the same bits, since numerics do not depend on
  // strategy, threads or slots. Serve numerics, the same model and from's length at most max_context: FT_CHECKed.
  void copy_sequence(int sequence, const Engine& from, int from_sequence);

  // Runs one step. logits: (batch.logits_rows, vocab) row-major, valid until the next step.
  // REQUIRES runs of distinct open sequences, position == length, length + tokens <= max_context, tokens <=
  // max(prefill_chunk, max_batch), logits rows <= max_logits_rows(config), ids in [0, vocab), and not prompts beside
  // runs of decode: FT_CHECKed; callers validate input first.
  std::span<const float> step(std::span<const TokenRun> runs);

  // The largest of each row of the last step's logits, valid as long; empty where the device did not look: for
  // Sampler::sample.
  std::span<const LargestLogit> largest_logits() const;

  // Feeds a whole prompt in prefill chunks; gives the last token's logits.
  std::span<const float> prefill(int sequence, std::span<const int32_t> ids);

  // Cache content, for starting where a trace replay ends. restore() copies blobs into the slots. In reference numerics
  // there is no cache: the content is empty, and restoring one is an Error.
  SlotTable::Content cache_content() const;
  void restore_cache(const SlotTable::Content& content);

  // Between steps: from the next decode step on misses are shared as another strategy does it. Threads, slots, cache
  // policy and look-ahead stay, and so do the bits of every answer. config() and engaged() then say so. Throws
  // Error(kUsage) when the engine has no slots or no split, or the strategy cannot have that table; then nothing has
  // changed.
  void change_split(Strategy strategy, const SplitTable& fetch_of_misses, int64_t promote_bytes_per_layer);

  // Routing of decode steps, recorded into `trace` while it is set (null: off). Of a batch the first run: a trace is
  // one sequence's. ids grow: not for the token path's promise.
  void record_routing(RoutingTrace* trace);
  // Synthetic weights: expert choices come from here instead of the router's (which still runs, for its time). Position
  // p of sequence s takes trace token (p + s * tokens / max_batch) mod tokens. Throws Error when it does not fit the
  // model.
  void set_routing(std::shared_ptr<const RoutingTrace> trace);
  // From its next token on, `sequence` walks the forced trace from `trace_token`. REQUIRES an open sequence, a trace
  // that is set, 0 <= trace_token < its tokens.
  void place_in_routing(int sequence, int64_t trace_token);
  bool routing_is_synthetic() const;

  // --- for probes: the parts of a step, timed as they serve; serve numerics only (Error otherwise) ---
  // Runs the MoE layers that the plans name, one after the other on `tokens` rows of activations already in place,
  // exactly as a decode step does (router included), with the plans given instead of the table's. A plan's experts
  // share the tokens * top_k rows of a real step evenly, and with at most top_k experts each gets every token. For
  // layer_sweep and overlap. REQUIRES 1 <= tokens <= max_batch, layers and slots in range, distinct experts; at most
  // tokens * top_k experts, all of them within 0 .. experts - 1. Fills slots behind the table's back: the next step or
  // restore puts them right.
  void run_moe_layers(std::span<const LayerPlan> plans, int tokens);
  // A decode step for `tokens` sequences at `context` positions with every expert a hit of slot contents as they are
  // (no table, no misses): for `dense`. KV content is whatever is there, position context - 1 is overwritten; lengths
  // are not changed; of a layer whose window is a ring, an earlier position goes. A routing that set_routing forced
  // goes on by one token with every call, so that no step repeats the experts of the one before. REQUIRES 1 <= tokens
  // <= max_batch, 1 <= context <= max_context.
  void run_dense_step(int tokens, int64_t context);

  EngineCounters counters() const;
  void reset_counters();
  EngagedRecord engaged() const;
  WorkerPool& pool();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
