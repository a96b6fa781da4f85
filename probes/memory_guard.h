// Tuning must not exhaust host or device memory: before every large allocation (an engine's slots and KV cache, copies
// of experts) what it takes is compared with what is left at that moment, not with what was there at the start. An
// error beats an out-of-memory kill, which loses the samples and perhaps other programs.
#pragma once

#include <cstdint>
#include <string>

#include "probes/probe.h"

namespace ft {

// Stays free on the host: page tables and stacks of what is allocated, and whatever else the system does meanwhile.
inline constexpr int64_t kGuardReserveBytes = int64_t{128} << 20;

struct MemoryBytes {
  int64_t host = 0, device = 0;  // on Device::kHost all is host memory
};

// As the system and the driver say now, reserves taken off; never negative.
MemoryBytes memory_left(const ProbeContext& context);

// What one more engine allocates: its plan without banks and dense weights, which are there once. Throws like
// plan_memory.
MemoryBytes engine_bytes(const ProbeContext& context, const EngineConfig& config);

// Throws Error(kFailed) that names `what`, the bytes it needs and what is left. Pure.
void require_memory(const std::string& what, const MemoryBytes& needed, const MemoryBytes& left);

}  // namespace ft
