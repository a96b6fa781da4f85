// Scoring a cell of the regret table. Checked against: rounds made by hand whose answer is known, and the rules of
// tests/bench/regret.h one by one.
#include "tests/bench/regret.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace ft::bench {
namespace {

CandidatePrediction prediction(Strategy strategy, double tok_s, int threads = 2) {
  CandidatePrediction candidate;
  candidate.config.strategy = strategy;
  candidate.config.threads = threads;
  candidate.config.slots = 10;
  candidate.split = "fetch all";
  candidate.tok_s = {tok_s};
  candidate.score = tok_s;
  return candidate;
}

// `rounds` values about `rate`: a little apart, in an order of their own, so that intervals are no points.
MeasuredCandidate measured(size_t index, double rate, double choice, int rounds = 16) {
  MeasuredCandidate one;
  one.index = index;
  for (int i = 0; i < rounds; ++i) {
    one.tok_s.push_back(rate * (1 + 0.001 * ((i * 7 + static_cast<int>(index)) % 5 - 2)));
    one.choice_tok_s.push_back(choice * (1 + 0.001 * ((i * 3) % 5 - 2)));
  }
  if (index == 0) one.choice_tok_s = one.tok_s;
  return one;
}

}  // namespace

TEST_CASE("regret is the choice's time over the best one's; none where the choice is the best") {
  const std::vector<MeasuredCandidate> lost = {measured(0, 100, 100), measured(1, 110, 100), measured(2, 105, 100)};
  const Regret regret = regret_of(lost);
  CHECK(regret.best == 1);
  CHECK(regret.regret == doctest::Approx(0.10).epsilon(0.03));
  CHECK(regret.low > 1.09);
  CHECK(regret.high < 1.11);
  const std::vector<MeasuredCandidate> won = {measured(0, 100, 100), measured(1, 90, 100)};
  CHECK(regret_of(won).best == 0);
  CHECK(regret_of(won).regret == 0);
  CHECK(regret_of(won).ratio == 1);
  CHECK(regret_of(std::vector<MeasuredCandidate>{measured(0, 100, 100)}).regret == 0);
}

TEST_CASE("the best is picked on odd rounds and scored on even ones") {
  std::vector<MeasuredCandidate> all = {measured(0, 100, 100), measured(1, 100, 100)};
  for (size_t i = 0; i < all[1].tok_s.size(); ++i) all[1].tok_s[i] = i % 2 == 1 ? 150 : 104;
  const Regret lucky = regret_of(all);
  CHECK(lucky.best == 1);
  CHECK(lucky.ratio == doctest::Approx(1.04).epsilon(0.01));  // not 1.5
  // Fast on even rounds only: never picked.
  for (size_t i = 0; i < all[1].tok_s.size(); ++i) all[1].tok_s[i] = i % 2 == 1 ? 90 : 150;
  CHECK(regret_of(all).best == 0);
}

TEST_CASE("regret is 0 where the interval holds 1") {
  std::vector<MeasuredCandidate> all = {measured(0, 100, 100), measured(1, 101, 100)};
  for (size_t i = 0; i < all[1].tok_s.size(); ++i) all[1].tok_s[i] = i % 4 < 2 ? 140 : 70;
  all[1].tok_s[1] = 141;
  all[1].tok_s[3] = 139;
  const Regret regret = regret_of(all);
  CHECK(regret.low <= 1);
  CHECK(regret.regret == 0);
}

TEST_CASE("candidates of other rounds are compared through the choice") {
  // Twice as fast a machine in the second group: the choice is in both.
  std::vector<MeasuredCandidate> all = {measured(0, 100, 100), measured(1, 110, 100), measured(2, 210, 200)};
  CHECK(regret_of(all).best == 1);
  const Regret rule = regret_of_candidate(all, 1, 2);
  CHECK(rule.regret == doctest::Approx(1.10 / 1.05 - 1).epsilon(0.05));
  CHECK(rule.low < rule.ratio);
  CHECK(rule.high > rule.ratio);
  CHECK(regret_of_candidate(all, 1, 1).regret == 0);
  CHECK(regret_of_candidate(all, 1, 0).regret == doctest::Approx(0.10).epsilon(0.03));
}

TEST_CASE("who is measured: the choice, the rule's pick, then the best of each strategy in turn, up to the limit") {
  Pool pool = {prediction(Strategy::kCpu, 100),   prediction(Strategy::kOffload, 90),
               prediction(Strategy::kHybrid, 95), prediction(Strategy::kHybrid, 96),
               prediction(Strategy::kCpu, 80),    prediction(Strategy::kHybrid, 94)};
  CHECK(candidates_to_measure(pool, 1, 5) == std::vector<size_t>{1, 5, 0, 3, 4, 2});
  CHECK(candidates_to_measure(pool, 0, std::nullopt) == std::vector<size_t>{0, 1, 3, 4, 2, 5});
  for (int i = 0; i < 20; ++i) pool.push_back(prediction(Strategy::kHybrid, 50 + i));
  const std::vector<size_t> some = candidates_to_measure(pool, 1, 5);
  CHECK(some.size() == kMeasured);
  for (const size_t index : {0, 1, 3, 4}) CHECK(std::find(some.begin(), some.end(), index) != some.end());
}

TEST_CASE("the bandwidth rule: the expert's rate with the most threads against the gather, 2.0 included") {
  std::vector<Measurement> measurements;
  const auto add = [&](const char* probe, const char* name, double value, std::map<std::string, double> at) {
    Measurement m;
    m.probe = probe;
    m.name = name;
    m.values = {value};
    m.at = std::move(at);
    measurements.push_back(m);
  };
  add("expert_single", "nvfp4.avx2.threads=8", 60, {{"threads", 8}, {"at_once", 1}});
  add("expert_single", "nvfp4.avx512.threads=8", 80, {{"threads", 8}, {"at_once", 1}});
  add("expert_single", "nvfp4.mem_read.threads=8", 500, {{"threads", 8}});
  add("expert_single", "nvfp4.avx512.threads=1", 90, {{"threads", 1}, {"at_once", 1}});
  add("pcie_gather", "sm_gather.n=1", 30, {});
  add("pcie_gather", "sm_gather.n=8", 40, {});
  add("pcie_gather", "copy_engine.n=8", 55, {});
  AnalysisInput input;
  input.base.device = Device::kCuda;
  input.measurements = measurements;
  Analysis analysis;
  analysis.search.ranked = {prediction(Strategy::kOffload, 10), prediction(Strategy::kHybrid, 5),
                            prediction(Strategy::kHybrid, 7)};
  BandwidthRule rule = bandwidth_rule(input, analysis);
  CHECK(rule.cpu_gbps == 80);
  CHECK(rule.link_gbps == 40);
  CHECK(rule.picks == Strategy::kOffload);  // 2.0 times is not over 2
  CHECK(rule.pick == 0);
  measurements[1].values = {80.1};
  rule = bandwidth_rule(input, analysis);
  CHECK(rule.picks == Strategy::kHybrid);
  CHECK(rule.pick == 2);
  analysis.search.ranked.resize(1);
  CHECK(!bandwidth_rule(input, analysis).pick.has_value());
}

TEST_CASE("prediction error is of times, noise is half an interval") {
  const Pool pool = {prediction(Strategy::kOffload, 100), prediction(Strategy::kCpu, 200)};
  const std::vector<MeasuredCandidate> all = {measured(0, 110, 110), measured(1, 100, 110)};
  const PredictionError error = prediction_error(pool, all);
  CHECK(error.worst == doctest::Approx(0.5));                 // half of the rate
  CHECK(error.median == doctest::Approx(0.3).epsilon(0.01));  // of 0.1 and 0.5
  CHECK(noise_of(all) > 0);
  CHECK(noise_of(all) < 0.003);
}

}  // namespace ft::bench
