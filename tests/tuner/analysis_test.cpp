// Checked against: the parameters that the measurements were made from, rates in closed form from the replay, and a
// profile that was written to a file and read back.
#include "tuner/analysis.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tests/profiles/sample_profile.h"
#include "tests/tuner/analysis_bench.h"
#include "tuner/optimum.h"
#include "tuner/prediction.h"
#include "tuner/routing_record.h"

namespace ft {
namespace {

// The sections that follow from measurements, in a profile that is complete.
Profile profile_of(const AnalysisBench& bench, const Conclusion& conclusion) {
  Profile profile = sample_profile();
  profile.conditions.device = device_name(bench.input.base.device);
  profile.conditions.contexts = bench.input.contexts;
  profile.conditions.batches = bench.input.batches;
  profile.identity.model.weights = "checkpoint";
  profile.measurements = bench.measurements;
  profile.cost_model = conclusion.cost_model;
  profile.candidates = conclusion.candidates;
  profile.routing = conclusion.routing;
  profile.decision = conclusion.decision;
  profile.serve = conclusion.serve;
  return profile;
}

}  // namespace

TEST_CASE("numbers alone give models, candidates, a decision and what is served") {
  AnalysisBench bench(Device::kCuda, 48);
  bench.measure(bench.truth, 2);
  const Analysis analysis = analyze(bench.input);
  REQUIRE(analysis.models.size() == 1);
  CHECK(analysis.models[0].cost.cost[CostTerm::kLinkPerExpert] == doctest::Approx(50e-6).epsilon(0.01));
  CHECK(analysis.confirmed.size() >= 3);
  const std::vector<DecodeCandidate> candidates = decode_candidates(bench.input, analysis);
  REQUIRE(candidates.size() == analysis.confirmed.size());
  CHECK(candidates.back().config.strategy == Strategy::kOffload);  // plain offload last
  // Every batch goes on from the middle of its sequences, with the cache that the replay had there.
  for (size_t i = 0; i < candidates.size(); ++i) {
    const DecodeCandidate& candidate = candidates[i];
    REQUIRE(candidate.starts.size() == bench.input.batches.size());
    for (size_t b = 0; b < candidate.starts.size(); ++b) {
      const DecodeStart& start = candidate.starts[b];
      const int64_t batch = bench.input.batches[b], part = bench.trace.tokens / batch;
      REQUIRE(static_cast<int64_t>(start.trace_tokens.size()) == batch);
      for (int64_t s = 0; s < batch; ++s) CHECK(start.trace_tokens[static_cast<size_t>(s)] == s * part + part / 2);
      const CandidatePrediction& predicted = analysis.search.ranked[analysis.confirmed[i]];
      CHECK(start.content.key_of_slot == (*predicted.replays)[b].content.key_of_slot);
      CHECK(static_cast<int64_t>(start.content.key_of_slot.size()) == candidate.config.slots);
    }
  }
  const Conclusion unconfirmed = conclude(bench.input, analysis);
  CHECK(unconfirmed.decision.warnings[0].find("not confirmed") != std::string::npos);
  CHECK(unconfirmed.serve.strategy == strategy_name(analysis.search.ranked[0].config.strategy));
  bench.decode(analysis, std::vector<double>(candidates.size() - 1, 0.5));  // offload alone keeps its prediction
  const Conclusion conclusion = conclude(bench.input, analysis);
  CHECK(conclusion.serve.strategy == "offload");
  CHECK(conclusion.serve.slots == candidates.back().config.slots);
  CHECK(conclusion.decision.gap == doctest::Approx(1).epsilon(0.01));
  // The engine is told to expect what was measured, and offload has nothing to fall back to.
  REQUIRE(conclusion.serve.expected.size() == bench.input.contexts.size() * bench.input.batches.size());
  CHECK(conclusion.serve.expected[0].tok_s == conclusion.decision.measured_tok_s);
  CHECK(!conclusion.serve.fallback.has_value());
  CHECK(unconfirmed.serve.expected[0].tok_s == unconfirmed.decision.predicted_tok_s);
}

TEST_CASE("without what the fit needs, or with a trace shorter than the batch, it says so") {
  AnalysisBench bench(Device::kHost, 48);
  CHECK_THROWS_WITH_AS(analyze(bench.input), doctest::Contains("no thread count in common"), Error);
  bench.measure(bench.truth, 2);
  bench.trace = generate_trace("glm-4.7-flash", 4, 32, 4, 3, 3);
  CHECK_THROWS_WITH_AS(analyze(bench.input), doctest::Contains("routing trace too short for the batch"), Error);
}

TEST_CASE("a profile that was written and read predicts the same rates from its parameters and replays") {
  for (const Device device : {Device::kHost, Device::kCuda}) {
    AnalysisBench bench(device, 48);
    bench.noise = 0.02;
    bench.measure(bench.truth, 2);
    CostParameters more = bench.truth;
    more[CostTerm::kCpuPerExpert] /= 2;
    bench.measure(more, 4);
    const Analysis analysis = analyze(bench.input);
    bench.decode(analysis, {});
    const std::string path =
        std::filesystem::temp_directory_path() / ("ft_analysis_" + std::string(device_name(device)));
    write_profile(path, profile_of(bench, conclude(bench.input, analysis)));
    const Profile profile = read_profile(path);
    std::filesystem::remove(path);
    CHECK(model_threads(profile.cost_model) == std::vector<int>{2, 4});
    CHECK(moe_layers_of(profile.cost_model) == AnalysisBench::kLayers);
    size_t with_replays = 0;
    for (const Candidate& candidate : profile.candidates) {
      if (candidate.predicted_tok_s.empty()) continue;
      REQUIRE(!candidate.parts.empty());
      for (size_t p = 0; p < candidate.predicted_tok_s.size(); ++p) {
        double seconds = 0;
        for (const CostPart& part : candidate.parts) seconds += part.seconds[p];
        const auto batch = static_cast<double>(profile.conditions.batches[p % 2]);
        CHECK(batch / seconds == doctest::Approx(candidate.predicted_tok_s[p]).epsilon(1e-9));
      }
      const bool fetches = candidate.strategy == "offload" || candidate.strategy == "hybrid";
      CHECK(candidate.fetch_mechanism.empty() == (device == Device::kHost || !fetches));
      if (candidate.replays.empty()) continue;
      ++with_replays;
      const std::vector<double> again =
          predicted_rates(candidate_model(profile, candidate), profile.conditions.contexts);
      REQUIRE(again.size() == candidate.predicted_tok_s.size());
      for (size_t p = 0; p < again.size(); ++p) {
        CHECK(again[p] == doctest::Approx(candidate.predicted_tok_s[p]).epsilon(1e-9));
      }
    }
    CHECK(with_replays == analysis.confirmed.size());
  }
}

TEST_CASE("an edited cost model or replay is refused with its place, the value and what is allowed") {
  AnalysisBench bench(Device::kCuda, 48);
  bench.measure(bench.truth, 2);
  const Analysis analysis = analyze(bench.input);
  const Profile good = profile_of(bench, conclude(bench.input, analysis));
  const auto refused = [&](auto edit) -> std::string {
    Profile profile = good;
    Candidate& candidate = profile.candidates[0];
    edit(profile, candidate);
    try {
      candidate_model(profile, candidate);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  REQUIRE(!good.candidates[0].replays.empty());
  CHECK(refused([](Profile&, Candidate&) {}) == "accepted");
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(contains(refused([](Profile&, Candidate& c) {
                   c.strategy = "hybrid";
                   c.threads = 3;
                 }),
                 "$.cost_model.parameters is '3'; allowed: 2"));
  CHECK(contains(refused([](Profile& p, Candidate&) { p.cost_model.parameters.clear(); }), "allowed: none"));
  CHECK(contains(refused([](Profile&, Candidate& c) { c.replays.pop_back(); }), "replays"));
  CHECK(contains(refused([](Profile&, Candidate& c) { c.replays[0].counts[0].times += 1; }), "multiple of 4"));
  CHECK(
      contains(refused([](Profile&, Candidate& c) { c.replays[1].counts[0].tokens = 3; }), "the batch of the replay"));
  CHECK(contains(refused([](Profile&, Candidate& c) { c.fetch_mechanism = "pigeon"; }), "sm or copy_engine"));
  CHECK(contains(refused([](Profile& p, Candidate&) { p.conditions.device = "abacus"; }), "host or cuda"));
  for (const double layers : {0.0, 1.5, 1025.0}) {
    CHECK(contains(refused([&](Profile& p, Candidate&) { p.cost_model.parameters[0].value = layers; }), "moe_layers"));
  }
  CHECK(
      contains(refused([](Profile& p, Candidate&) { p.cost_model.parameters.erase(p.cost_model.parameters.begin()); }),
               "no moe_layers"));
}

TEST_CASE("a parameter that a profile does not have is 0, and names that are none are passed over") {
  CostModelRecord record;
  record.parameters = {{"s_c.threads=2", "s", 3e-6, 3e-6, 3e-6},
                       {"dense_fixed.threads=2", "s", 7e-6, 7e-6, 7e-6},
                       {"s_c.threads=two", "s", 9, 9, 9},
                       {"s_c.threads=99999999999999999999", "s", 9, 9, 9},
                       {"new_thing.threads=2", "s", 9, 9, 9}};
  const ProfileModel model = model_of(record, 2);
  CHECK(model.cost[CostTerm::kCpuPerExpert] == 3e-6);
  CHECK(model.cost[CostTerm::kLookAhead] == 0);
  CHECK(model.dense.fixed == 7e-6);
  CHECK(model_threads(record) == std::vector<int>{2});
  CHECK(model_threads_of(record, Device::kCuda, Strategy::kOffload, 1) == 2);
  CHECK(model_threads_of(record, Device::kCuda, Strategy::kHybrid, 1) == 1);
  CHECK(model_threads_of(record, Device::kHost, Strategy::kOffload, 1) == 1);
}

TEST_CASE("the routing record: hit rates of the replay and of the optimum, on a grid up to the plan's bound") {
  AnalysisBench bench(Device::kCuda, 48);
  bench.measure(bench.truth, 2);
  const Analysis analysis = analyze(bench.input);
  REQUIRE(analysis.routing);
  const auto& points = analysis.routing->points;
  CHECK(analysis.routing->cache_policy == "lrfu");
  CHECK(points.size() <= 2 * kRoutingSlotCounts);
  for (const RoutingPoint& point : points) {
    ReplayOptions options;
    options.slots = point.slots;
    for (int m = 0; m <= 16; ++m) options.fetch_of_misses.push_back(m);
    options.max_distinct = 16;
    const auto sequences = split_trace(bench.trace, static_cast<int>(point.batch));
    options.discard_steps = 25;  // a quarter of the shorter sequences
    const ReplayResult replayed = replay(sequences, options);
    CHECK(point.hit_rate == replayed.hit_rate);
    CHECK(point.misses_histogram == replayed.misses_histogram);
    const OptimumResult best = offline_optimum(sequences, point.slots, 25);
    CHECK(point.optimum_hit_rate == doctest::Approx(1 - static_cast<double>(best.misses) / best.experts));
    CHECK(point.slots >= 16);
    CHECK(point.slots <= 48);
  }
  CHECK(points[0].slots == 16);
  CHECK(points[points.size() / 2 - 1].slots == 48);
  CHECK(points[0].hit_rate < points[points.size() / 2 - 1].hit_rate);
  AnalysisBench small(Device::kCuda, 15);
  small.measure(small.truth, 2);
  CHECK(!analyze(small.input).routing);
}

TEST_CASE("the grid of slots: both ends, ascending, at most so many") {
  CHECK(routing_slot_counts(1, 1) == std::vector<int64_t>{1});
  CHECK(routing_slot_counts(4, 5) == std::vector<int64_t>{4, 5});
  const std::vector<int64_t> grid = routing_slot_counts(8, 6144);
  CHECK(grid.size() == kRoutingSlotCounts);
  CHECK(grid.front() == 8);
  CHECK(grid.back() == 6144);
  CHECK(std::is_sorted(grid.begin(), grid.end()));
}

}  // namespace ft
