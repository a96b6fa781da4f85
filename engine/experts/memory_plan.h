// Geometry, memory and options to bytes per pool: one pure function. The engine allocates from it, the tuner searches
// inside it, --dry-run prints it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/model/geometry.h"

namespace ft {

struct MemoryInputs {
  Device device = Device::kHost;
  int64_t device_memory_bytes = 0;  // what the device offers; on the host device the part of memory given to slots
  int64_t host_memory_bytes = 0;    // available host memory
};

struct MemoryPool {
  std::string name;
  int64_t bytes = 0;
  bool on_device = false;
};

struct MemoryPlan {
  std::vector<MemoryPool> pools;  // "dense weights", "expert banks", "expert slots", "kv cache", "activations", ...
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t min_slots = 0;  // distinct experts of one layer at the largest batch
  int64_t max_slots = 0;  // largest count that fits, at most all experts
};

// Throws Error(kFailed) naming the pool that does not fit, its bytes, what is there, and the option to change. The
// slots of `config` are checked against min_slots and max_slots; max_slots starts, one more does not.
MemoryPlan plan_memory(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs);

// Largest and smallest slot counts for these options, without checking config.slots.
struct SlotBounds {
  int64_t min = 0, max = 0;
};
SlotBounds slot_bounds(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs);

}  // namespace ft
