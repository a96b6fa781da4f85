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
TEST_CASE("no step allocates") { MESSAGE("skipped: built with a sanitizer, which owns malloc"); }
#else

namespace {
// malloc has no object to count in.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
void note() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

// glibc's own names for the functions that these replace.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier)
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
// NOLINTEND(bugprone-reserved-identifier)
void* malloc(size_t bytes) {
  note();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  note();
  return __libc_realloc(memory, bytes);
}
}

namespace {

int64_t allocations_of(const auto& work) {
  allocations = 0;
  counting = true;
  work();
  counting = false;
  return allocations;
}

// Feeds ids that a decode step would: no sampling in between, so only the engine is counted.
void decode(Engine& engine, std::span<const int> sequences, int64_t steps) {
  std::array<TokenRun, 8> runs;
  std::array<int32_t, 8> ids{};
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t position = engine.sequence_length(sequences[i]);
      ids[i] = static_cast<int32_t>((position * 131 + static_cast<int64_t>(i) * 17 + 5) % engine.geometry().vocab);
      runs[i] = {sequences[i], position, {&ids[i], 1}, false, true};
    }
    engine.step(std::span(runs).first(sequences.size()));
  }
}

}  // namespace

TEST_CASE("the counter sees allocations") {
  CHECK(allocations_of([] {
          const std::vector<int> some(100);
          CHECK(some.size() == 100);
        }) > 0);
}

TEST_CASE("no step allocates: decode and prefill, every strategy, serve and reference numerics") {
  constexpr int kBatch = 2;
  for (const char* name : {"tiny-moe", "golden/deepseek_v4.published", "golden/gemma4.older",
                           "golden/qwen3_5_moe_text.b", "golden/qwen4_exp.published"}) {
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
