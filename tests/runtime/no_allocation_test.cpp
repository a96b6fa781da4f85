// Checked against: a count of every malloc, calloc, realloc and operator new (which calls malloc) of the process.
// step() must make none, whatever the strategy: the token path allocates nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST_CASE("no step allocates: decode and prefill, every strategy, serve and reference numerics, families") {
  constexpr int kBatch = 2;
  for (const char* name : {"tiny-moe", "golden/gemma4.older"}) {
    CAPTURE(std::string(name));
    const LoadedModel model = model_at(data_path(name));
    const int64_t slots = std::min<int64_t>(24, model.family->geometry().total_experts());
    for (const Numerics numerics : {Numerics::kServe, Numerics::kReference}) {
      for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
        CAPTURE(std::string(strategy_name(strategy)));
        EngineConfig config = config_for(model, strategy, slots, 3, kBatch);
        config.numerics = numerics;
        Engine engine(model, config, kPlenty);
        const std::array<int, kBatch> sequences = {engine.open_sequence(), engine.open_sequence()};
        const std::vector<int32_t> prompt(100, 7);
        decode(engine, sequences, 2);  // warm-up
        CHECK(allocations_of([&] { decode(engine, sequences, 12); }) == 0);
        CHECK(allocations_of([&] { engine.prefill(sequences[0], prompt); }) == 0);
        if (numerics == Numerics::kServe) CHECK(engine.counters().decode_steps == 14);
      }
    }
  }
}
#endif
