// Checked against: the bound itself and one byte past it, the memory plan's pools, and a machine that is pretended to
// be full.
#include "probes/memory_guard.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "kernels/base/error.h"
#include "probes/session.h"

namespace ft {

TEST_CASE("memory is refused one byte past what is left, and the message says for what and how much") {
  CHECK_NOTHROW(require_memory("slots", {10 << 20, 0}, {10 << 20, 0}));
  CHECK_NOTHROW(require_memory("slots", {0, 10 << 20}, {0, 10 << 20}));
  CHECK_THROWS_WITH_AS(require_memory("an engine", {(10 << 20) + 1, 0}, {10 << 20, 0}),
                       doctest::Contains("not enough host memory left for an engine"), Error);
  CHECK_THROWS_WITH_AS(require_memory("an engine", {0, 20 << 20}, {0, 10 << 20}),
                       doctest::Contains("'20.0 MiB'; allowed: at most 10.0 MiB"), Error);
}

TEST_CASE("an engine takes its plan without what the model has loaded; what is left leaves the reserve") {
  ProbeSessionOptions options;
  options.weights.model_path = std::string(std::getenv("FT_TEST_DATA")) + "/tiny-moe";
  options.budget_seconds = 0.2;
  ProbeSession session(options);
  const ProbeContext& context = session.context();
  const ModelWeights& weights = *context.model.weights;
  EngineConfig config = context.candidates.back().config;
  const MemoryPlan plan = plan_memory(weights.geometry, weights.formats, config, context.memory_inputs);
  int64_t pools = 0;
  for (const char* pool : {"expert slots", "kv cache", "activations", "logits", "staging"})
    pools += plan.pool_bytes(pool);
  CHECK(engine_bytes(context, config).host == pools);
  CHECK(engine_bytes(context, config).device == 0);
  const int64_t available = detect_memory_budget().available_bytes;
  CHECK(memory_left(context).host <= available);
  CHECK(memory_left(context).host >= 0);
}

TEST_CASE("loading stops when what is still to come, and its page tables, no longer fit: at the byte before it would") {
  const int64_t gib = int64_t{1} << 30, total = 80 * gib;
  const int64_t tables = total / 4096 * 8, lists = total / 4096 * 16;
  for (const int64_t done : {int64_t{0}, 30 * gib, total - 1}) {
    CAPTURE(done);
    CHECK_NOTHROW(require_memory_to_load(done, total, false, total - done + tables));
    CHECK_THROWS_AS(require_memory_to_load(done, total, false, total - done + tables - 1), Error);
    CHECK_NOTHROW(require_memory_to_load(done, total, true, total - done + tables + lists));
    CHECK_THROWS_AS(require_memory_to_load(done, total, true, total - done + tables + lists - 1), Error);
  }
  CHECK_THROWS_WITH_AS(require_memory_to_load(30 * gib, total, true, 40 * gib),
                       doctest::Contains("30720.0 MiB of 81920.0 MiB are there"), Error);
  CHECK_THROWS_WITH_AS(require_memory_to_load(30 * gib, total, true, 40 * gib),
                       doctest::Contains("another program took memory meanwhile"), Error);
}

TEST_CASE("progress of a loading is guarded, whoever listens") {
  int heard = 0;
  const auto listen = [&](const LoadProgress&) { ++heard; };
  const ProgressFn guarded = guarded_progress(listen, Device::kHost);
  guarded({"making weights", 0, int64_t{1} << 20});
  guarded({"making weights", int64_t{1} << 20, int64_t{1} << 20});
  CHECK(heard == 2);
  const int64_t too_much = int64_t{1} << 50;
  CHECK_THROWS_AS(guarded_progress(listen, Device::kHost)({"making weights", 0, too_much}), Error);
  CHECK_THROWS_AS(guarded_progress({}, Device::kHost)({"making weights", 0, too_much}), Error);
  CHECK(heard == 2);
  // Between two looks nothing is asked of the system; what is there needs no room.
  const ProgressFn later = guarded_progress(listen, Device::kHost);
  later({"making weights", 0, int64_t{1} << 20});
  CHECK_NOTHROW(later({"making weights", kLoadLookBytes - 1, too_much}));
  CHECK_THROWS_AS(later({"making weights", kLoadLookBytes, too_much}), Error);
  CHECK_NOTHROW(later({"making weights", too_much, too_much}));
}

TEST_CASE("a session with weights that are loaded measures the same model, and plans as if they were not there") {
  ProbeSessionOptions options;
  options.weights.model_path = std::string(std::getenv("FT_TEST_DATA")) + "/tiny-moe";
  options.budget_seconds = 0.2;
  ProbeSession first(options);
  options.loaded = first.context().model;
  ProbeSession second(options);
  CHECK(second.context().model.weights == first.context().model.weights);
  CHECK(second.context().base.max_context == first.context().base.max_context);
  CHECK(second.context().candidates.size() == first.context().candidates.size());
  MemoryBudget budget;
  budget.available_bytes = 100;
  const ModelFormats& formats = first.context().model.weights->formats;
  CHECK(with_loaded(budget, {}, Device::kHost).available_bytes == 100);
  CHECK(with_loaded(budget, options.loaded, Device::kHost).available_bytes ==
        100 + formats.expert_bytes_total + formats.dense_bytes);
  CHECK(with_loaded(budget, options.loaded, Device::kCuda).available_bytes == 100 + formats.expert_bytes_total);
  cuda::DeviceFacts gpu;
  gpu.free_bytes = 7;
  CHECK(with_loaded(gpu, options.loaded).free_bytes == 7);  // nothing of it is on a device
}

}  // namespace ft
