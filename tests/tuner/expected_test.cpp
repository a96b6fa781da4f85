// Checked against: points worked out by hand from a made-up replay, prediction and measurement.
#include "tuner/expected.h"

#include <doctest/doctest.h>

#include <memory>

#include "profiles/profile.h"

namespace ft {
namespace {

// Two batches: 10 steps of 4 layers, with 2 hits, 1 fetch and 1 on the CPU in each layer, of 2 and of 4 sequences.
ReplayResult replay_of(int tokens) {
  ReplayResult replay;
  replay.steps = 10;
  replay.layers = 4;
  replay.hit_rate = 0.5;
  replay.distribution = {{{.tokens = tokens, .hits = 1, .fetched = 2, .cpu = 1}, 20},
                         {{.tokens = tokens, .hits = 3, .fetched = 0, .cpu = 1}, 20}};
  return replay;
}

CandidatePrediction prediction(Strategy strategy) {
  CandidatePrediction candidate;
  candidate.config.strategy = strategy;
  candidate.config.threads = 2;
  candidate.config.slots = 48;
  candidate.config.fetch_of_misses = {0, 0, 1, 1, 2};
  candidate.config.promote_bytes_per_layer = 4096;
  candidate.tok_s = {100, 200, 80, 160};
  candidate.low = {90, 180, 70, 150};
  candidate.high = {110, 220, 90, 170};
  candidate.replays =
      std::make_shared<const std::vector<ReplayResult>>(std::vector<ReplayResult>{replay_of(2), replay_of(4)});
  StepParts parts;
  parts[StepPart::kDense] = 0.012;
  parts[StepPart::kFetch] = 0.008;
  candidate.parts.assign(4, parts);
  return candidate;
}

const std::vector<int64_t> kContexts = {128, 1024}, kBatches = {2, 4};

}  // namespace

TEST_CASE("without measurements the prediction is expected, with what the replay did and the parts of a step") {
  const CandidatePrediction hybrid = prediction(Strategy::kHybrid);
  const auto points = expected_points({.prediction = &hybrid, .contexts = kContexts, .batches = kBatches});
  REQUIRE(points.size() == 4);
  CHECK(points[1].context == 128);
  CHECK(points[1].batch == 4);
  CHECK(points[2].context == 1024);
  CHECK(points[2].batch == 2);
  CHECK(points[2].tok_s == 80);
  CHECK(points[2].low_tok_s == 70);
  CHECK(points[2].high_tok_s == 90);
  CHECK(points[2].hit_rate == 0.5);
  // 40 experts fetched and 40 computed in 10 steps of 2 or 4 sequences.
  CHECK(points[2].fetched_per_token == doctest::Approx(2));
  CHECK(points[3].fetched_per_token == doctest::Approx(1));
  CHECK(points[2].cpu_per_token == doctest::Approx(2));
  // Parts of 20 ms; the step takes 2 / 80 = 25 ms.
  REQUIRE(points[2].parts.size() == 2);
  CHECK(points[2].parts[0].name == "dense");
  CHECK(points[2].parts[0].seconds == doctest::Approx(0.015));
  CHECK(points[2].parts[1].name == "fetch");
  CHECK(points[2].parts[1].seconds == doctest::Approx(0.010));
}

TEST_CASE("measured rates take the place of predicted ones where they are of that context") {
  const CandidatePrediction hybrid = prediction(Strategy::kHybrid);
  Candidate candidate;
  candidate.measured_tok_s = {50, 100, 40, 80};
  candidate.measured_low = {45, 95, 35, 75};
  candidate.measured_high = {55, 105, 45, 85};
  ExpectedInput input{.prediction = &hybrid,
                      .candidate = &candidate,
                      .measured_there = {true, true, false, true},
                      .contexts = kContexts,
                      .batches = kBatches};
  auto points = expected_points(input);
  CHECK(points[0].tok_s == 50);
  CHECK(points[0].low_tok_s == 45);
  CHECK(points[0].high_tok_s == 55);
  CHECK(points[0].parts[0].seconds + points[0].parts[1].seconds == doctest::Approx(2.0 / 50));
  CHECK(points[2].tok_s == 80);  // its cache was not filled
  CHECK(points[3].tok_s == 80);
  candidate.measured_tok_s.clear();  // not run
  points = expected_points(input);
  CHECK(points[0].tok_s == 100);
}

TEST_CASE("without a replay nothing is expected; without parts there are none") {
  CandidatePrediction hybrid = prediction(Strategy::kHybrid);
  hybrid.parts.clear();
  CHECK(expected_points({.prediction = &hybrid, .contexts = kContexts, .batches = kBatches})[0].parts.empty());
  hybrid.replays = nullptr;
  CHECK(expected_points({.prediction = &hybrid, .contexts = kContexts, .batches = kBatches}).empty());
}

TEST_CASE("the fallback fetches all misses with the threads and slots of the choice") {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kCpu}) {
    std::vector<CandidatePrediction> ranked = {prediction(strategy), prediction(Strategy::kOffload),
                                               prediction(Strategy::kOffload)};
    ranked[1].config.threads = 1;
    ranked[2].tok_s = {60, 61, 62, 63};
    const auto fallback = fallback_for(ranked[0], ranked, kContexts, kBatches);
    REQUIRE(fallback.has_value());
    CHECK(fallback->strategy == "offload");
    CHECK(fallback->fetch_of_misses == std::vector<int>{0, 1, 2, 3, 4});
    CHECK(fallback->promote_bytes_per_layer == 0);
    REQUIRE(fallback->expected.size() == 4);  // of the one with the same threads
    CHECK(fallback->expected[3].tok_s == 63);
    ranked[2].config.slots = 47;
    CHECK(fallback_for(ranked[0], ranked, kContexts, kBatches)->expected.empty());
  }
}

TEST_CASE("there is no fallback where it would be no change, or has no slots to fetch into") {
  for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload}) {
    CHECK(!fallback_for(prediction(strategy), {}, kContexts, kBatches).has_value());
  }
  CandidatePrediction cpu = prediction(Strategy::kCpu);
  cpu.config.slots = 0;
  CHECK(!fallback_for(cpu, {}, kContexts, kBatches).has_value());
}

}  // namespace ft
