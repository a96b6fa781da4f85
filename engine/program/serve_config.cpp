#include "engine/program/serve_config.h"

#include <algorithm>
#include <utility>

#include "engine/runtime/device.h"
#include "engine/runtime/engine_state.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

Strategy required_strategy(const Serve& serve) {
  const auto strategy = strategy_by_name(serve.strategy);
  if (!strategy) {
    throw Error(ErrorKind::kUsage, {"profile refused", serve.strategy, "resident, offload, cpu or hybrid",
                                    "tune again with this version", "$.serve.strategy"});
  }
  return *strategy;
}

FetchMechanism required_fetch_mechanism(const Serve& serve) {
  if (!serve.fetch_mechanism) return FetchMechanism::kSm;
  const auto mechanism = fetch_mechanism_by_name(*serve.fetch_mechanism);
  if (!mechanism) {
    throw Error(ErrorKind::kUsage, {"profile refused", *serve.fetch_mechanism, "sm or copy_engine",
                                    "tune again with this version", "$.serve.fetch_mechanism"});
  }
  return *mechanism;
}

// The engine's checks name its own settings and the tuner's options; here every one of them came from the profile.
std::string path_in_profile(const std::string& path) {
  constexpr std::pair<std::string_view, std::string_view> kOptions[] = {{"--slots", "$.serve.slots"},
                                                                        {"--context", "$.serve.max_context"},
                                                                        {"--batch", "$.serve.max_batch"},
                                                                        {"--threads", "$.serve.threads"}};
  for (const auto& [option, field] : kOptions) {
    if (path == option) return std::string(field);
  }
  return "$.serve." + path;
}

}  // namespace

EngineConfig engine_config_from_serve(const Serve& serve, const std::string& model_path) {
  EngineConfig config;
  config.weights.model_path = model_path.empty() ? serve.model_path : model_path;
  if (config.weights.model_path.empty()) {
    throw Error(ErrorKind::kUsage,
                {"the profile names no model folder", "", "", "name it with --model DIR", "$.serve.model_path"});
  }
  config.weights.synthetic = serve.synthetic_seed.has_value();
  config.weights.synthetic_seed = serve.synthetic_seed.value_or(0);
  config.weights.routing_preset = serve.routing_preset.value_or("");
  config.device = serve.device == device_name(Device::kCuda) ? Device::kCuda : Device::kHost;
  config.strategy = required_strategy(serve);
  config.threads = serve.threads;
  config.slots = serve.slots;
  config.fetch_of_misses = serve.fetch_of_misses;
  config.promote_bytes_per_layer = serve.promote_bytes_per_layer;
  config.cache_policy = cache_policy_by_name(serve.cache_policy.value_or("lru")).value();  // names: the schema's
  config.look_ahead = look_ahead_by_name(serve.look_ahead.value_or("off")).value();
  config.max_prefetches_per_layer = serve.max_prefetches_per_layer.value_or(0);
  config.max_batch = serve.max_batch;
  config.max_context = serve.max_context;
  config.prefill_chunk = serve.prefill_chunk;
  config.device_memory_limit_bytes = serve.device_memory_limit_bytes;
  config.pinning = serve.pinning;
  config.fetch_mechanism = required_fetch_mechanism(serve);
  config.link_slowdown = serve.link_slowdown.value_or(1);
  return config;
}

std::optional<cuda::DeviceFacts> start_served_device(const EngineConfig& config) {
  if (config.device != Device::kCuda) return std::nullopt;
  std::string reason;
  if (cuda::device_count(&reason) == 0) {
    throw Error(ErrorKind::kUsage, {.what = "profile refused, no CUDA device can be used (" + reason + ")",
                                    .value = std::string(device_name(config.device)),
                                    .allowed = "host",
                                    .action = "tune here, with --device host",
                                    .path = "$.serve.device"});
  }
  return start_device(config.device);
}

std::vector<Error> check_serve_cpus(const EngineConfig& config, const CpuBudget& cpus) {
  std::vector<Error> refusals;
  const auto refuse = [&](std::string path, int value, std::string allowed) {
    refusals.push_back(
        Error(ErrorKind::kUsage, {"profile refused, value refused", std::to_string(value), std::move(allowed),
                                  "run ft-tune with the CPUs that this process has now", std::move(path)}));
  };
  if (config.threads > cpus.usable_cores) {
    refuse("$.serve.threads", config.threads, "1 to " + std::to_string(cpus.usable_cores) + ", the usable cores");
  }
  for (size_t i = 0; i < config.pinning.size(); ++i) {
    if (std::find(cpus.pinning.begin(), cpus.pinning.end(), config.pinning[i]) != cpus.pinning.end()) continue;
    std::string usable;
    for (const int cpu : cpus.pinning) usable += (usable.empty() ? "" : ", ") + std::to_string(cpu);
    refuse("$.serve.pinning[" + std::to_string(i) + "]", config.pinning[i], "CPUs of this process: " + usable);
    break;  // the others most likely have the same cause
  }
  return refusals;
}

ServeCheck check_serve(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& memory, const CpuBudget& cpus) {
  ServeCheck check;
  check.refusals = check_serve_cpus(config, cpus);
  try {
    check_engine_config(geometry, config);
    check.plan = plan_memory(geometry, formats, config, memory);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    if (error.kind() == ErrorKind::kUsage) {
      parts.what = "profile refused, " + parts.what;
      parts.path = path_in_profile(parts.path);
      parts.action = "tune again";
    } else {
      parts.action = "raise --host-memory, free memory, or tune again for less of it";
    }
    check.refusals.push_back(Error(error.kind(), std::move(parts)));
  }
  return check;
}

MemoryPlan check_serve_fits(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                            const MemoryInputs& memory, const CpuBudget& cpus) {
  ServeCheck check = check_serve(geometry, formats, config, memory, cpus);
  if (!check.refusals.empty()) throw check.refusals.front();
  return std::move(*check.plan);
}

MemoryInputs memory_inputs(const EngineConfig& config, const MemoryBudget& budget,
                           const std::optional<cuda::DeviceFacts>& gpu) {
  MemoryInputs inputs;
  inputs.device = config.device;
  inputs.host_memory_bytes =
      std::min(budget.available_bytes, config.host_memory_limit_bytes.value_or(budget.available_bytes));
  const int64_t device = gpu ? offered_device_bytes(*gpu) : inputs.host_memory_bytes;
  inputs.device_memory_bytes = std::min(device, config.device_memory_limit_bytes.value_or(device));
  return inputs;
}

}  // namespace ft
