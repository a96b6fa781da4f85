// What the tests of a number format share: a short answer, and that it is the same wherever an expert runs.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/host/isa.h"
#include "tests/runtime/model_fixture.h"

namespace ft::test {

inline Continuation short_answer(const LoadedModel& model, const EngineConfig& config) {
  constexpr int64_t kPrompt = 40, kDecodeSteps = 8;
  Engine engine(model, config, kPlenty);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kPrompt; ++i) ids.push_back(static_cast<int32_t>((i * i * 31 + 7) % engine.geometry().vocab));
  return run_greedy(engine, ids, kDecodeSteps);
}

inline bool same_logits(const Continuation& a, const Continuation& b) {
  return a.prompt_logits == b.prompt_logits && a.decode_logits == b.decode_logits && a.ids == b.ids;
}

// Every strategy, two cache sizes and every instruction set of this machine against resident with scalar code.
inline void check_same_everywhere(const LoadedModel& model) {
  EngineConfig base = config_for(model, Strategy::kResident, 0);
  base.isa_cap = "scalar";
  const Continuation expected = short_answer(model, base);
  const int64_t sizes[] = {model.family->geometry().expert.top_k, model.family->geometry().total_experts() / 2};
  for (int isa = 0; isa <= static_cast<int>(active_isa()); ++isa) {
    for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
      for (const int64_t slots : sizes) {
        EngineConfig config = config_for(model, strategy, slots, 2);
        config.isa_cap = isa_name(static_cast<Isa>(isa));
        CAPTURE(config.isa_cap);
        CAPTURE(std::string(strategy_name(strategy)));
        CAPTURE(slots);
        CHECK(same_logits(short_answer(model, config), expected));
      }
    }
  }
}

}  // namespace ft::test
