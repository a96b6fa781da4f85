// Geometry, memory and options to bytes per pool: one pure function. The engine allocates from it, the tuner searches
// inside it, --dry-run prints it.
//
// Pools, in this order (a GPU has "prefill staging" after these, a model with tables that stay on disk "embedding rows"
// at the end, whose bytes are in neither sum: the kernel keeps of them in memory what is left): "dense weights",
// "expert slots", "kv cache", "recurrent state" (of models that have one), "activations", "logits" on the device,
// "expert banks" and "staging" in host memory. Staging is what crosses the link beside slots: on a GPU what the CPU arm
// and the device exchange per step, on the host device the blobs through which offload streams a prompt's experts. On
// Device::kHost both kinds come out of the same memory, so there their sum must fit host_memory_bytes as well.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_config.h"
#include "engine/model/geometry.h"

namespace ft {

// What is there. EngineConfig's limits (--vram-limit, --host-memory) lower these, never raise them.
struct MemoryInputs {
  Device device = Device::kHost;
  // What the device offers. On Device::kHost 0 means "as host_memory_bytes": the same memory.
  int64_t device_memory_bytes = 0;
  int64_t host_memory_bytes = 0;  // available host memory
};

struct MemoryPool {
  std::string name;
  int64_t bytes = 0;
  bool on_device = false;
  bool on_disk = false;
};

struct MemoryPlan {
  std::vector<MemoryPool> pools;
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t min_slots = 0;  // distinct experts of one layer at the largest batch
  int64_t max_slots = 0;  // largest count that fits, at most all experts

  int64_t pool_bytes(std::string_view name) const;  // 0 for a name that is no pool
};

// Throws Error(kFailed) naming the pool that does not fit, its bytes, what is there, and the option to change; and
// Error(kUsage) naming the option when a number of `config` or of the geometry is out of its range. The slots of
// `config` are checked against min_slots and max_slots; max_slots starts, one more does not. Strategy by strategy:
// resident needs all experts; offload and hybrid need min_slots; cpu needs none, or min_slots.
MemoryPlan plan_memory(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs);

// Largest and smallest slot counts for these options, without checking config.slots. max may be below min: then only
// the strategy cpu with 0 slots can start. Throws like plan_memory when what is not slots does not fit.
struct SlotBounds {
  int64_t min = 0, max = 0;
  std::string_view for_more;  // what to change for a larger max, by the limit that binds: "raise --vram-limit"
};
SlotBounds slot_bounds(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs);

// A GPU's prefill streams experts through two halves of staging memory: one is computed from while the other is filled.
// 64 MiB are 1.2 ms of a 55 GB/s link, far more than what a group's launches cost, and enough experts of 2.7 MB to fill
// the multiprocessors. At least kMinStagedExperts, at most a layer's.
inline constexpr int64_t kPrefillGroupBytes = int64_t{64} << 20;
inline constexpr int64_t kMinStagedExperts = 4;
constexpr int64_t prefill_group_experts(int64_t experts, int64_t expert_bytes) {
  const int64_t fit = kPrefillGroupBytes / expert_bytes;
  const int64_t group = fit > kMinStagedExperts ? fit : kMinStagedExperts;
  return group < experts ? group : experts;
}
// Tokens of a step that attend at a time on a GPU where attention is to compressed entries, or to blocks of tokens of
// which one may have to choose: what each attends to is gathered first, as keys and values, and these, or the scores
// where they are more, are kCompressedGroupBytes for all of them, or 1 token's.
inline constexpr int64_t kCompressedGroupBytes = int64_t{64} << 20;
int64_t compressed_group_tokens(const ModelGeometry& geometry, int64_t max_context);
// The prefill chunk to serve with where nobody asked for one: on the host the config's own; on a GPU the most tokens,
// 64 to kDefaultPrefillChunk by powers of two and not beyond the context, whose buffers (activations, logits) take at
// most a kPrefillShare-th of what dense weights and KV cache leave: every chunk brings all experts over the link once,
// and what the buffers take is taken from slots.
inline constexpr int kDefaultPrefillChunk = 4096;
inline constexpr int64_t kPrefillShare = 12;
int default_prefill_chunk(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                          const MemoryInputs& inputs);
inline constexpr int kStagingBuffers = 2;  // one blob is computed from while the other is filled

// Upper bound for the buffers of one step, which a backend may not exceed: memory_plan.cpp lists them.
int64_t activation_bytes(const ModelGeometry& geometry, const EngineConfig& config);

}  // namespace ft
