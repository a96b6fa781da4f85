// Checked against: the rules of tuner/confirmation.h and probes/engaged_check.h, one by one, on hand-made predictions,
// records and decode series.
#include "tuner/confirmation.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "probes/engaged_check.h"
#include "tuner/decide.h"

namespace ft {
namespace {

CandidatePrediction prediction(Strategy strategy, int threads, double score) {
  CandidatePrediction candidate;
  candidate.config.strategy = strategy;
  candidate.config.threads = threads;
  candidate.config.slots = 10;
  candidate.tok_s = {score};
  candidate.score = score;
  candidate.hit_rate = {0.5};
  return candidate;
}

CandidatePrediction engaging(CandidatePrediction candidate, FetchMechanism mechanism, int prefetches) {
  candidate.config.fetch_mechanism = mechanism;
  candidate.config.max_prefetches_per_layer = prefetches;
  candidate.config.look_ahead = prefetches > 0 ? LookAhead::kRouter : LookAhead::kOff;
  return candidate;
}

// Nine rounds of candidate `index` about `rate`, with what it did in counts.
Measurement decoded(size_t index, double rate, double fetched, double cpu) {
  Measurement m;
  m.probe = "decode";
  m.name = "candidate" + std::to_string(index);
  for (int i = -4; i <= 4; ++i) m.values.push_back(rate * (1 + 0.001 * i));
  m.at = {{"candidate", static_cast<double>(index)},
          {"context", 128},
          {"context_filled", 128},
          {"batch", 1},
          {"hit_rate", 0.5},
          {"steps", 72},
          {"expert_hits", 100},
          {"expert_fetched", fetched},
          {"expert_cpu", cpu},
          {"expert_promoted", 0},
          {"expert_prefetched", 0},
          {"slots", 10},
          {"threads_worked", 2},
          {"copy_engine", 0}};
  return m;
}

Decided decided(const SearchResult& search, const std::vector<size_t>& measured, std::span<const Measurement> all) {
  DecideInput input;
  input.search = &search;
  input.measured = measured;
  input.measurements = all;
  input.contexts = {128};
  input.batches = {1};
  input.moe_layers = 4;
  return decide(input);
}

}  // namespace

TEST_CASE("what the model does not tell from its choice is run too, when more than slots differs") {
  SearchResult search;
  search.ranked = {prediction(Strategy::kCpu, 2, 100), prediction(Strategy::kCpu, 2, 99),  // other slots only
                   prediction(Strategy::kCpu, 1, 96), prediction(Strategy::kCpu, 4, 91),
                   prediction(Strategy::kOffload, 1, 50)};
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 2, 4});
  search.ranked[3].score_draws = {90, 101};  // inside the interval of the choice
  search.ranked[0].score_draws = {95, 99};
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 2, 3, 4});
}

TEST_CASE("another split or promotion budget of what is run is run too, from further off") {
  const auto promoting = [](CandidatePrediction candidate, int64_t bytes) {
    candidate.config.promote_bytes_per_layer = bytes;
    return candidate;
  };
  SearchResult search;
  search.ranked = {prediction(Strategy::kHybrid, 2, 100),
                   promoting(prediction(Strategy::kHybrid, 2, 90), 1),
                   promoting(prediction(Strategy::kHybrid, 4, 90), 1),  // nothing with four threads is run
                   promoting(prediction(Strategy::kHybrid, 2, 86), 2),
                   promoting(prediction(Strategy::kHybrid, 2, 84), 3),
                   prediction(Strategy::kOffload, 1, 50)};
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 1, 3, 5});
}

TEST_CASE("at most so many, and plain offload last, a copy engine's or a look-ahead's is not plain") {
  SearchResult search;
  search.ranked = {engaging(prediction(Strategy::kOffload, 1, 100), FetchMechanism::kSm, 2),
                   engaging(prediction(Strategy::kOffload, 1, 99), FetchMechanism::kCopyEngine, 0),
                   prediction(Strategy::kOffload, 1, 70), prediction(Strategy::kHybrid, 2, 60)};
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 1, 3, 2});
  for (int threads = 3; threads < 20; ++threads) search.ranked.push_back(prediction(Strategy::kHybrid, threads, 100));
  const std::vector<size_t> many = candidates_to_confirm(search);
  CHECK(many.size() == kMaxConfirmed);
  CHECK(many.front() == 0);
  CHECK(many.back() == 2);
  search.ranked = {prediction(Strategy::kOffload, 1, 100), prediction(Strategy::kCpu, 1, 99)};
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 1});  // first as the choice
}

TEST_CASE("two that engaged the same are one, the simpler; its rates decide") {
  SearchResult search;
  search.ranked = {prediction(Strategy::kHybrid, 2, 100), prediction(Strategy::kOffload, 2, 90),
                   prediction(Strategy::kCpu, 2, 50)};
  // hybrid computed nothing on the CPU: it was offload. Its faster rounds are noise.
  std::vector<Measurement> all = {decoded(0, 110, 60, 0), decoded(1, 100, 60, 0), decoded(2, 40, 0, 60)};
  const Decided same = decided(search, {0, 1, 2}, all);
  CHECK(same.decision.strategy == "offload");
  CHECK(same.decision.measured_tok_s == doctest::Approx(100));
  CHECK(same.decision.runner_up == "cpu");
  const auto hybrid = std::find_if(same.candidates.begin(), same.candidates.end(),
                                   [](const Candidate& c) { return c.strategy == "hybrid"; });
  REQUIRE(hybrid != same.candidates.end());
  CHECK(hybrid->verdict == "the same as offload with 2 threads and 10 slots: they engaged the same");
  CHECK(hybrid->measured_tok_s[0] == doctest::Approx(110));
  all[0].at["expert_cpu"] = 1;  // one expert there, and they are two
  CHECK(decided(search, {0, 1, 2}, all).decision.strategy == "hybrid");
  all[0].at["expert_cpu"] = 0;
  all[0].at.erase("steps");  // an older record
  CHECK(decided(search, {0, 1, 2}, all).decision.strategy == "hybrid");
}

TEST_CASE("a refused candidate has no measurement, and both values are said") {
  SearchResult search;
  search.ranked = {prediction(Strategy::kHybrid, 4, 100), prediction(Strategy::kOffload, 2, 90)};
  std::vector<Measurement> all = {decoded(0, 110, 30, 30), decoded(1, 80, 60, 0)};
  all[0].values.clear();
  all[0].remarks = {std::string(kRefused) + "threads: 4 asked, 1 engaged"};
  CHECK(refusal_of(all, 0) == "threads: 4 asked, 1 engaged");
  CHECK(refusal_of(all, 1).empty());
  const Decided result = decided(search, {0, 1}, all);
  CHECK(result.decision.strategy == "offload");
  REQUIRE(!result.decision.warnings.empty());
  CHECK(result.decision.warnings[0] ==
        "decode runs of hybrid with 4 threads were refused: threads: 4 asked, 1 engaged");
  CHECK(result.candidates[1].verdict == "its decode runs were refused: threads: 4 asked, 1 engaged");
  CHECK(result.candidates[1].measured_tok_s.empty());
}

TEST_CASE("what engaged is compared with what was asked, each with both values") {
  EngineConfig asked;
  asked.strategy = Strategy::kOffload;
  asked.slots = 96;
  asked.threads = 4;
  EngagedRecord engaged;
  engaged.strategy = "offload";
  engaged.mechanism = "copy thread";
  engaged.threads_worked = 4;
  engaged.slots = 96;
  engaged.cache_policy = "lrfu";
  engaged.look_ahead = "off";
  EngineCounters counters;
  counters.expert_fetched = 10;
  const auto difference = [&] { return engaged_difference(asked, engaged, counters, 64); };
  CHECK(difference().empty());
  engaged.strategy = "cpu";
  engaged.slots = 95;
  CHECK(difference() == "strategy: offload asked, cpu engaged; slots: 96 asked, 95 engaged");
  engaged.strategy = "offload";
  engaged.slots = 96;
  engaged.threads_worked = 3;
  CHECK(difference() == "threads: 4 asked, 3 engaged");
  engaged.threads_worked = 4;
  counters.expert_cpu = 1;
  CHECK(difference() == "experts on the CPU: none asked, 1 engaged");
  counters.expert_cpu = 0;
  counters.expert_prefetched = 2;
  CHECK(difference() == "experts prefetched: none asked, 2 engaged");
  asked.look_ahead = LookAhead::kRouter;
  CHECK(difference() == "look-ahead: router asked, off engaged");
  asked.look_ahead = LookAhead::kOff;
  counters.expert_prefetched = 0;
  engaged.cache_policy = "lru";
  CHECK(difference() == "cache policy: lrfu asked, lru engaged");
  engaged.cache_policy = "lrfu";
  asked.strategy = Strategy::kCpu;
  engaged.strategy = "cpu";
  CHECK(difference() == "experts fetched: none asked, 10 engaged");

  // On a GPU: no work for the pool without CPU experts, fewer threads than asked where an expert has fewer tiles.
  asked.device = Device::kCuda;
  asked.strategy = Strategy::kOffload;
  engaged.strategy = "offload";
  engaged.mechanism = "sm gather";
  engaged.threads_worked = 0;
  CHECK(difference().empty());
  asked.fetch_mechanism = FetchMechanism::kCopyEngine;
  CHECK(difference() == "mechanism: copy engine asked, sm gather engaged");
  asked.fetch_mechanism = FetchMechanism::kSm;
  asked.strategy = Strategy::kHybrid;
  engaged.strategy = "hybrid";
  counters.expert_cpu = 5;
  engaged.threads_worked = 2;
  CHECK(difference() == "threads: 4 asked, 2 engaged");
  CHECK(engaged_difference(asked, engaged, counters, 2).empty());
  CHECK(engaged_difference(asked, engaged, counters, 4) == "threads: 4 asked, 2 engaged");
}

}  // namespace ft
