// The model and the memory that benches made of numbers share: 4 layers of 32 experts of 1 MiB, top 4, and room for
// `slots` of them beside all else.
#pragma once

#include "engine/engine_config.h"
#include "engine/experts/memory_plan.h"

namespace ft {

struct MadeMachine {
  static constexpr int kLayers = 4, kExperts = 32, kTopK = 4;
  static constexpr int64_t kMiB = int64_t{1} << 20;

  // input: SearchInput or AnalysisInput.
  template <class Input>
  static void describe(Input& input, Device device, int64_t slots, int max_batch) {
    input.geometry.layers = kLayers;
    for (int layer = 0; layer < kLayers; ++layer) input.geometry.moe_layers.push_back(layer);
    input.geometry.expert = {256, 64, kExperts, kTopK};
    input.geometry.hidden = 256;
    input.geometry.vocab = 1000;
    input.geometry.max_positions = 4096;
    input.formats.expert_bytes_max = kMiB;
    input.formats.expert_bytes_total = kMiB * kLayers * kExperts;
    input.base.device = device;
    input.base.max_context = 1024;
    input.base.max_batch = max_batch;
    input.memory.device = device;
    input.memory.host_memory_bytes = 8192 * kMiB;
    input.memory.device_memory_bytes = 8192 * kMiB;
    EngineConfig none = input.base;
    none.strategy = Strategy::kCpu;
    none.slots = 0;
    const MemoryPlan plan = plan_memory(input.geometry, input.formats, none, input.memory);
    input.memory.device_memory_bytes = plan.device_bytes + slots * kMiB;
    input.contexts = {128, 1024};
  }
};

}  // namespace ft
