// A machine of numbers for tests of the search: room for `slots` experts, links and pools as given.
#pragma once

#include "tuner/search.h"

namespace ft {

struct SearchBench {
  static constexpr int kLayers = 4, kExperts = 32, kTopK = 4;
  static constexpr int64_t kMiB = int64_t{1} << 20;

  RoutingTrace trace = generate_trace("glm-4.7-flash", kLayers, kExperts, kTopK, 200, 3);
  SearchInput input;

  // Seconds per expert.
  SearchBench(Device device, int64_t slots, double slot_s, double cpu_s, double link_s) {
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
    input.memory.device = device;
    input.memory.host_memory_bytes = 8192 * kMiB;
    input.memory.device_memory_bytes = 8192 * kMiB;
    input.base.slots = 0;
    EngineConfig probe = input.base;
    probe.strategy = Strategy::kCpu;
    const MemoryPlan plan = plan_memory(input.geometry, input.formats, probe, input.memory);
    input.memory.device_memory_bytes = plan.device_bytes + slots * kMiB;
    input.contexts = {128, 1024};
    input.batches = {1};
    input.sequences = {split_trace(trace, 1)};
    input.discard_steps = 50;
    ThreadModel model;
    model.cost.cost.threads = 2;
    model.cost.cost[CostTerm::kBase] = 5e-6;
    model.cost.cost[CostTerm::kSlotPerExpert] = slot_s;
    model.cost.cost[CostTerm::kCpuPerExpert] = cpu_s;
    model.cost.cost[CostTerm::kLinkPerExpert] = link_s;
    model.dense.cost = {2, 100e-6, 10e-6, 1e-9};
    input.models = {model};
  }
  SearchBench(const SearchBench&) = delete;
  SearchBench& operator=(const SearchBench&) = delete;
};

}  // namespace ft
