// What the user asked of ft-tune, checked as far as options alone allow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "schemas/command_line.h"

namespace ft {

struct TuneRequest {
  WeightSource weights;
  Device device = Device::kHost;
  std::string device_reason;  // why, with --device auto; else empty
  int link_slowdown = 1;
  CachePolicy cache_policy = CachePolicy::kLrfu;
  int max_prefetches = 0;  // 0: look-ahead off
  std::string output;
  std::string record;  // folder of a recording (tuner/recording.h); empty: none
  double budget_seconds = 120;
  std::optional<int64_t> device_memory_limit_bytes, host_memory_limit_bytes;
  std::vector<int64_t> contexts, batches;  // ascending; empty: chosen from the model
  std::optional<Strategy> strategy;
  std::optional<CountOrPercent> slots;
  std::string slots_given;  // --slots as typed
  std::optional<int> threads;
  bool resume = false;
  bool dry_run = false;
  std::string not_writable;         // of a dry run: why a tuning with these options could not write; else empty
  std::vector<std::string> forced;  // options that pin a knob, as given: for the profile
};

// Asks for a GPU unless --device host. Throws Error(kUsage) for a device that is not there, options that contradict
// each other, an output folder that is not there or cannot be written (a dry run, which writes nothing, notes it).
TuneRequest parse_tune_request(const ParsedOptions& options);

// Where an interrupted run keeps its samples: beside the profile that it did not write.
std::string samples_path(const std::string& output);

}  // namespace ft
