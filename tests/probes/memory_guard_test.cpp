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

}  // namespace ft
