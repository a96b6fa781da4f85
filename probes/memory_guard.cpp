#include "probes/memory_guard.h"

#include <algorithm>
#include <cstdio>

#include "engine/runtime/device.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kSmallPageBytes = 4096;  // where the system gives no larger ones
constexpr int64_t kTableEntryBytes = 8;
constexpr int64_t kDriverPageBytes = 16;  // an address and its place in a list: an assumption, not a measurement

std::string mib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

void require(const std::string& what, const char* memory, int64_t needed, int64_t left, const char* option) {
  if (needed <= left) return;
  throw Error(ErrorKind::kFailed, {.what = "not enough " + std::string(memory) + " memory left for " + what,
                                   .value = mib(needed),
                                   .allowed = "at most " + mib(left),
                                   .action = std::string("end other programs or lower ") + option});
}

}  // namespace

MemoryBytes memory_left(const ProbeContext& context) {
  MemoryBytes left;
  left.host = std::max<int64_t>(0, detect_memory_budget().available_bytes - kGuardReserveBytes);
  if (context.base.device == Device::kCuda) left.device = offered_device_bytes(cuda::device_facts(0));
  return left;
}

MemoryBytes engine_bytes(const ProbeContext& context, const EngineConfig& config) {
  const ModelWeights& weights = *context.model.weights;
  const MemoryPlan plan = plan_memory(weights.geometry, weights.formats, config, context.memory_inputs);
  const int64_t device = plan.device_bytes - plan.pool_bytes("dense weights");
  const int64_t host = plan.host_bytes - plan.pool_bytes("expert banks");
  if (context.base.device == Device::kHost) return {host + device, 0};
  return {host, device};
}

void require_memory_to_load(int64_t done_bytes, int64_t total_bytes, bool registered, int64_t available_bytes) {
  const int64_t pages = total_bytes / kSmallPageBytes;
  const int64_t tables = pages * (kTableEntryBytes + (registered ? kDriverPageBytes : 0));
  const int64_t needed = total_bytes - done_bytes + tables;
  if (needed <= available_bytes) return;
  throw Error(ErrorKind::kFailed, {.what = "not enough host memory left to go on loading the model: " +
                                           mib(done_bytes) + " of " + mib(total_bytes) + " are there",
                                   .value = mib(needed),
                                   .allowed = "at most " + mib(available_bytes),
                                   .action = "another program took memory meanwhile: end it, or load one after the "
                                             "other"});
}

ProgressFn guarded_progress(ProgressFn next, Device device) {
  return [next = std::move(next), device, look_at = int64_t{0}](const LoadProgress& loading) mutable {
    if (loading.done_bytes < loading.total_bytes && loading.done_bytes >= look_at) {
      look_at = loading.done_bytes + kLoadLookBytes;
      require_memory_to_load(loading.done_bytes, loading.total_bytes, device == Device::kCuda,
                             detect_memory_budget().available_bytes);
    }
    if (next) next(loading);
  };
}

void require_memory(const std::string& what, const MemoryBytes& needed, const MemoryBytes& left) {
  require(what, "host", needed.host, left.host, "--host-memory or --slots");
  require(what, "device", needed.device, left.device, "--vram-limit or --slots");
}

}  // namespace ft
