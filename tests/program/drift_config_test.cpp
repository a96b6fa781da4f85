// Checked against: a step worked out by hand from the profile's keys, for both devices.
#include "engine/program/drift_config.h"

#include <doctest/doctest.h>

#include "kernels/base/error.h"

using namespace ft;
using Q = StepQuantity;

namespace {

Serve serve_on(const char* device) {
  Serve serve;
  serve.device = device;
  serve.strategy = "hybrid";
  serve.slots = 48;
  serve.fetch_of_misses = {0, 1, 1};
  serve.expected = {{.context = 512,
                     .batch = 4,
                     .tok_s = 200,
                     .low_tok_s = 160,
                     .high_tok_s = 250,
                     .hit_rate = 0.75,
                     .fetched_per_token = 2,
                     .cpu_per_token = 3,
                     .parts = {{"dense", 5e-3},
                               {"attention", 2e-3},
                               {"fetch", 4e-3},
                               {"cpu", 6e-3},
                               {"synchronization", 2e-3},
                               {"idle", 1e-3}}}};
  serve.fallback = Fallback{.strategy = "offload", .fetch_of_misses = {0, 1, 2}, .expected = {}};
  return serve;
}

}  // namespace

TEST_CASE("a point of the profile becomes a step with what its device can measure") {
  for (const char* device : {"host", "cuda"}) {
    const DriftOptions drift = drift_options(serve_on(device), false);
    CHECK(!drift.fallback.has_value());
    StepValues values;
    REQUIRE(drift.expected.at(512, 4, values));
    CHECK(values[Q::kSeconds] == doctest::Approx(20e-3));
    CHECK(values[Q::kSecondsLow] == doctest::Approx(16e-3));
    CHECK(values[Q::kSecondsHigh] == doctest::Approx(25e-3));
    CHECK(values[Q::kFetched] == 8);
    CHECK(values[Q::kCpu] == 12);
    CHECK(values[Q::kHits] == doctest::Approx(60));
    CHECK(values[Q::kPartsSeconds] == doctest::Approx(20e-3));
    CHECK(values[Q::kMissSeconds] == doctest::Approx(11e-3));
    CHECK(values[Q::kAttentionSeconds] == doctest::Approx(2e-3));
    const bool host = device == std::string("host");
    CHECK(values[Q::kLinkWaitSeconds] == doctest::Approx(host ? 5e-3 : 0));
    CHECK(values[Q::kCpuWaitSeconds] == doctest::Approx(host ? 2e-3 : 8e-3));
    CHECK(watch_text(drift) == "drift: judged at contexts 0 to 512 and batches 4 to 4");
  }
}

TEST_CASE("a profile without parts, and one where everything hits") {
  Serve serve = serve_on("host");
  serve.expected[0].parts.clear();
  serve.expected[0].hit_rate = 1;
  serve.expected[0].fetched_per_token = serve.expected[0].cpu_per_token = 0;
  StepValues values;
  const DriftOptions drift = drift_options(serve, false);
  CHECK(!drift.expected.at(511, 4, values));
  REQUIRE(drift.expected.at(512, 4, values));
  CHECK(values[Q::kPartsSeconds] == 0);
  CHECK(values[Q::kHits] > 0);
}

TEST_CASE("falling back needs an entry and something to judge by") {
  Serve serve = serve_on("host");
  const DriftOptions drift = drift_options(serve, true);
  REQUIRE(drift.fallback.has_value());
  CHECK(drift.fallback->strategy == Strategy::kOffload);
  CHECK(drift.fallback->fetch_of_misses == SplitTable{0, 1, 2});
  CHECK(drift.fallback->expected.empty());
  CHECK(watch_text(drift).ends_with("; below its band the engine falls back to offload"));
  serve.fallback->expected = serve.expected;
  CHECK(!drift_options(serve, true).fallback->expected.empty());
  serve.fallback.reset();
  CHECK_THROWS_WITH_AS(drift_options(serve, true),
                       doctest::Contains("nothing to fall back to with strategy hybrid and 48"), Error);
  serve.expected.clear();
  CHECK_THROWS_WITH_AS(drift_options(serve, true), doctest::Contains("$.serve.expected"), Error);
  CHECK(watch_text(drift_options(serve, false)).find("not judged") != std::string::npos);
}
