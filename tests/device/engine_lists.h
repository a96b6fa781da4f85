// The lists of device_test_engine, its benches, and what they share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/device/harness.h"
#include "tests/runtime/model_fixture.h"

namespace ft::device_test {

inline constexpr MemoryInputs kDevicePlenty{Device::kCuda, int64_t{16} << 30, int64_t{16} << 30};
inline constexpr int kEngineThreads = 4;

// config_for, on the device.
EngineConfig on_device(const LoadedModel& model, Strategy strategy, int64_t slots, int max_batch = 1);
std::vector<int32_t> some_ids(int64_t count, int64_t vocab, uint64_t seed);

// A checkpoint's family is one that the device runs.
bool runs_on_device(const std::string& path);
// Checkpoints of the tree for what is not run over every golden case: the bundled one, and one of each other family.
std::vector<std::string> one_of_each_family();
// Serve mode's limit of a golden case; the bundled model, which records none, has the smallest of theirs.
double serve_limit(const std::string& path);

// Of rows of logits, bit by bit; empty: none.
std::string first_difference(std::span<const float> got, std::span<const float> expected, int64_t vocab);
std::string compare(const test::Continuation& got, const test::Continuation& expected, int64_t vocab);

// Runs f and reports what it says or throws.
template <class F>
void guarded(Context& context, const std::string& group, const std::string& what, F&& f) {
  std::string text;
  try {
    text = f();
  } catch (const Error& error) {
    text = error.what();
  }
  context.report.check(group, text.empty() ? text : what + ": " + text);
}

// engine_test.cpp: decode steps
void test_strategies(Context& context);
void test_nowait(Context& context);
void test_history(Context& context);
void test_batch(Context& context);
void test_probes(Context& context);
void test_golden(Context& context);
void test_heldout(Context& context);
void test_look_ahead(Context& context);

// prefill_engine_test.cpp
void test_prompt_chunks(Context& context);
void test_prompt_cache(Context& context);
void test_prompt_batches(Context& context);
void test_prompt_choices(Context& context);

// sequences_engine_test.cpp
void test_sequences(Context& context);
void test_compressed_sequences(Context& context);

// engine_bench.cpp: where the time of a decode step goes; what prefetching gains
void bench_engine(Context& context);
void bench_look_ahead(Context& context);
// families_bench.cpp: a layer of each kind; which kernels take its time
void bench_families(Context& context);
void bench_families_profile(Context& context);

}  // namespace ft::device_test
