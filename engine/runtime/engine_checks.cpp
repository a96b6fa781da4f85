#include <algorithm>
#include <limits>
#include <string>

#include "engine/runtime/engine_state.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

[[noreturn]] void refuse(const char* what, const std::string& value, const std::string& allowed, const char* path) {
  throw Error(ErrorKind::kUsage, {what, value, allowed, "", path});
}

void check_split(const ModelGeometry& geometry, const EngineConfig& config) {
  const SplitTable& split = config.fetch_of_misses;
  constexpr const char* kPath = "fetch_of_misses";
  if (config.strategy == Strategy::kResident) {
    if (!split.empty()) refuse("split given for a strategy without misses", "resident", "an empty table", kPath);
    return;
  }
  const auto size = static_cast<size_t>(max_distinct_experts(geometry, config)) + 1;
  if (split.size() != size) {
    refuse("split table has the wrong size", std::to_string(split.size()),
           std::to_string(size) + " (distinct experts of a layer at the largest batch, and 0)", kPath);
  }
  for (size_t misses = 0; misses < size; ++misses) {
    const int all = static_cast<int>(misses);
    const int low = config.strategy == Strategy::kOffload ? all : 0;
    const int high = config.strategy == Strategy::kCpu ? 0 : all;
    if (split[misses] >= low && split[misses] <= high) continue;
    refuse("split out of range", std::to_string(split[misses]),
           std::to_string(low) + " to " + std::to_string(high) + " with the strategy " +
               std::string(strategy_name(config.strategy)),
           (std::string(kPath) + "[" + std::to_string(misses) + "]").c_str());
  }
}

}  // namespace

int max_distinct_experts(const ModelGeometry& geometry, const EngineConfig& config) {
  return std::min(geometry.expert.experts, geometry.expert.top_k * config.max_batch);
}

void check_engine_config(const ModelGeometry& geometry, const EngineConfig& config) {
  const auto range = [](const char* path, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    refuse("engine setting out of range", std::to_string(value), std::to_string(low) + " to " + std::to_string(high),
           path);
  };
  if (config.device == Device::kCuda && config.numerics == Numerics::kReference) {
    refuse("numerics that only the host device has", "reference", "serve on cuda", "numerics");
  }
  // The copy engine moves a blob once.
  const bool copy_engine = config.fetch_mechanism == FetchMechanism::kCopyEngine;
  range("link_slowdown", config.link_slowdown, 1, copy_engine ? 1 : kMaxLinkSlowdown);
  range("threads", config.threads, 1, kMaxThreads);
  range("max_batch", config.max_batch, 1, kMaxBatch);
  range("prefill_chunk", config.prefill_chunk, 1, kMaxPrefillChunk);
  range("max_context", config.max_context, 1, geometry.max_positions);
  range("slots", config.slots, 0, geometry.total_experts());
  range("promote_bytes_per_layer", config.promote_bytes_per_layer, 0, std::numeric_limits<int64_t>::max());
  check_split(geometry, config);
}

Isa capped_isa(const EngineConfig& config) {
  const Isa best = active_isa();
  if (!config.isa_cap) return best;
  const std::optional<Isa> cap = isa_by_name(*config.isa_cap);
  if (!cap || *cap > best) {
    refuse("instruction set not usable", *config.isa_cap,
           std::string(isa_name(Isa::kScalar)) + " up to " + std::string(isa_name(best)), "isa_cap");
  }
  return *cap;
}

}  // namespace ft
