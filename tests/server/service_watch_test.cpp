// Checked against: steps whose times are made up here, beside a real engine that stands still or decodes; the rules in
// engine/server/service_watch.h one by one.
#include "engine/server/service_watch.h"

#include <doctest/doctest.h>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr double kStepSeconds = 10e-3;

ExpectedSteps expected() {
  StepValues values;
  values[StepQuantity::kSeconds] = values[StepQuantity::kSecondsLow] = values[StepQuantity::kSecondsHigh] =
      kStepSeconds;
  values[StepQuantity::kHits] = 1;
  return ExpectedSteps({{10, 1, values}, {500, 1, values}});
}

struct Rig {
  LoadedModel model = model_at(data_path("tiny-moe"));
  EngineConfig config = config_for(model, Strategy::kCpu, 48, 2);
  std::unique_ptr<Engine> engine;
  std::vector<std::string> said;
  std::vector<bool> warnings;
  double throttled_cpu_seconds = 1000;
  std::unique_ptr<ServiceWatch> watch;

  explicit Rig(bool with_fallback) {
    config.slots = 48;
    engine = std::make_unique<Engine>(model, config, kPlenty);
    DriftOptions options;
    options.expected = expected();
    options.say = [this](std::string_view text, bool warning) {
      said.emplace_back(text);
      warnings.push_back(warning);
    };
    options.throttled_cpu_seconds = [this] { return throttled_cpu_seconds; };
    if (with_fallback) {
      FallbackPlan plan;
      for (size_t misses = 0; misses < config.fetch_of_misses.size(); ++misses) {
        plan.fetch_of_misses.push_back(static_cast<int>(misses));
      }
      options.fallback = plan;
    }
    watch = std::make_unique<ServiceWatch>(*engine, options);
  }
  // `windows` full windows of steps of one sequence at `context`.
  void steps(int windows, double seconds, int64_t context = 100) {
    const int32_t id = 1;
    const TokenRun run{0, context - 1, {&id, 1}};
    const auto count = static_cast<int>(windows * std::max(kWindowSeconds / seconds, double(kWindowSteps)) * 1.05) + 1;
    for (int i = 0; i < count; ++i) {
      watch->stepped({&run, 1}, seconds);
      watch->between_steps();
    }
  }
};

}  // namespace

TEST_CASE("a rate below the band is said once, and the engine falls back between steps") {
  Rig rig(true);
  rig.steps(5, kStepSeconds);
  CHECK(rig.said.empty());
  CHECK(rig.watch->stats().has_fallback);
  rig.steps(10, 2 * kStepSeconds);
  REQUIRE(rig.said.size() == 2);
  CHECK(rig.said[0].starts_with("drift: decodes at 0.5"));
  CHECK(
      rig.said[1] ==
      "drift: falls back from cpu to offload until the next start; answers stay the same, the profile does not say how "
      "fast: no longer judged");
  CHECK(rig.warnings == std::vector<bool>{true, true});
  CHECK(rig.engine->engaged().strategy == "offload");
  const DriftStats stats = rig.watch->stats();
  CHECK(stats.fell_back_from == "cpu");
  CHECK(!stats.has_fallback);
  CHECK(!stats.judged);
  CHECK(stats.summary.times_left == 1);
}

TEST_CASE("without a fallback it warns, and says when the rate is back") {
  Rig rig(false);
  rig.steps(10, 2 * kStepSeconds);
  rig.steps(10, kStepSeconds);
  REQUIRE(rig.said.size() == 2);
  CHECK(rig.said[1].starts_with("drift: inside the band again"));
  CHECK(rig.warnings == std::vector<bool>{true, false});
  CHECK(rig.engine->engaged().strategy == "cpu");
}

TEST_CASE("faster than expected is no reason to fall back") {
  Rig rig(true);
  rig.steps(10, kStepSeconds / 2);
  REQUIRE(rig.said.size() == 1);
  CHECK(rig.warnings == std::vector<bool>{false});
  CHECK(rig.engine->engaged().strategy == "cpu");
}

TEST_CASE("offload helps against everything but slow fetches") {
  for (const DriftTerm term : {DriftTerm::kNone, DriftTerm::kHitRate, DriftTerm::kCpuWaits, DriftTerm::kThrottling,
                               DriftTerm::kAttention, DriftTerm::kContext, DriftTerm::kBatch}) {
    CHECK(offload_may_help(term));
  }
  CHECK(!offload_may_help(DriftTerm::kFetch));
}

TEST_CASE("steps that are not judged are said once") {
  Rig rig(false);
  rig.steps(5, kStepSeconds, 501);
  rig.steps(5, kStepSeconds, 600);
  REQUIRE(rig.said.size() == 1);
  CHECK(rig.said[0].find("steps at context 501 and batch 1 are outside") != std::string::npos);
  CHECK(rig.watch->stats().summary.windows == 0);
}

TEST_CASE("steps of prompts are not decode steps") {
  Rig rig(false);
  const int32_t ids[] = {1, 2};
  const TokenRun prompt{0, 0, {ids, 1}, false, true, true}, several{0, 0, ids};
  for (int i = 0; i < 1000; ++i) {
    rig.watch->stepped({&prompt, 1}, 1.0);
    rig.watch->stepped({&several, 1}, 1.0);
    rig.watch->between_steps();
  }
  CHECK(rig.watch->stats().summary.windows == 0);
  CHECK(rig.watch->stats().summary.steps_not_judged == 0);
}

TEST_CASE("throttling is shared out to threads, and to decode by its time") {
  Rig rig(false);
  const int sequence = rig.engine->open_sequence();
  const std::vector<int32_t> prompt(50, 7);
  const auto decode = [&] {
    rig.engine->prefill(sequence, prompt);
    const int32_t id = 3;
    for (int i = 0; i < 50; ++i) {
      const TokenRun run{sequence, rig.engine->sequence_length(sequence), {&id, 1}};
      rig.engine->step({&run, 1});
    }
  };
  decode();
  rig.throttled_cpu_seconds += 4;
  rig.steps(1, kStepSeconds);
  const EngineCounters counters = rig.engine->counters();
  const double share = counters.decode_seconds / (counters.decode_seconds + counters.prefill_seconds);
  CHECK(rig.watch->stats().throttled_seconds == doctest::Approx(4.0 / 2 * share));
}
