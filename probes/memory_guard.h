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

// While weights are filled in, with `done` of `total` bytes there: their pages are taken one by one, so another program
// (a second tuning that began when memory was free for either) may take what the plan had counted on. Beside what is
// still to come, host memory must be left for the page tables of all of it, and where a device reads the banks for the
// driver's lists of their pages. Throws Error(kFailed). Pure.
void require_memory_to_load(int64_t done_bytes, int64_t total_bytes, bool registered, int64_t available_bytes);
// require_memory_to_load at every kLoadLookBytes of progress, asking the system; then `next`, if any.
inline constexpr int64_t kLoadLookBytes = int64_t{256} << 20;
ProgressFn guarded_progress(ProgressFn next, Device device);

// Throws Error(kFailed) that names `what`, the bytes it needs and what is left. Pure.
void require_memory(const std::string& what, const MemoryBytes& needed, const MemoryBytes& left);

}  // namespace ft
