// A machine of numbers for tests of the search: room for `slots` experts, links and pools as given.
#pragma once

#include "tests/tuner/made_machine.h"
#include "tuner/search.h"

namespace ft {

struct SearchBench : MadeMachine {
  RoutingTrace trace = generate_trace("glm-4.7-flash", kLayers, kExperts, kTopK, 200, 3);
  SearchInput input;

  // Seconds per expert.
  SearchBench(Device device, int64_t slots, double slot_s, double cpu_s, double link_s) {
    describe(input, device, slots, 1);
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
