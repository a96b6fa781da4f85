// Checked against: decisions known in closed form from hand-made predictions and decode samples, and the rules of
// tuner/decide.h one by one.
#include "tuner/decide.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace ft {
namespace {

CandidatePrediction prediction(Strategy strategy, double first, double second) {
  CandidatePrediction candidate;
  candidate.config.strategy = strategy;
  candidate.config.threads = 2;
  candidate.config.slots = 10;
  candidate.tok_s = {first, second};
  candidate.score = std::sqrt(first * second);
  candidate.hit_rate = {0.5};
  return candidate;
}

// Two contexts, one batch. Predictions in order; decode series of those with an index in `measured`.
struct Bench {
  SearchResult search;
  std::vector<Measurement> measurements;
  DecideInput input;

  Bench() {
    search.ranked = {prediction(Strategy::kCpu, 100, 80), prediction(Strategy::kOffload, 90, 70),
                     prediction(Strategy::kResident, 50, 40), prediction(Strategy::kCpu, 45, 35)};
    input.contexts = {128, 1024};
    input.batches = {1};
    input.moe_layers = 10;
  }
  // Candidate `index` of decode ran at `context` with rates about `rate`.
  Measurement& add(size_t index, int64_t context, double rate, int64_t filled = 0) {
    Measurement m;
    m.probe = "decode";
    m.name = "candidate" + std::to_string(index) + "." + std::to_string(context);
    m.unit = "tok/s";
    for (int i = -5; i <= 5; ++i) m.values.push_back(rate * (1 + 0.001 * i));
    m.at = {{"candidate", static_cast<double>(index)},
            {"context", static_cast<double>(context)},
            {"context_filled", static_cast<double>(filled == 0 ? context : filled)},
            {"batch", 1},
            {"hit_rate", 0.25}};
    measurements.push_back(m);
    return measurements.back();
  }
  void add_both(size_t ranked, double first, double second) {
    const size_t index = input.measured.size();
    input.measured.push_back(ranked);
    add(index, 128, first);
    add(index, 1024, second);
  }
  Decided decide() {
    input.search = &search;
    input.measurements = measurements;
    return ft::decide(input);
  }
};

bool warns(const Decided& decided, const std::string& text) {
  const auto& warnings = decided.decision.warnings;
  return std::any_of(warnings.begin(), warnings.end(),
                     [&](const std::string& warning) { return warning.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("the measured winner stands against the prediction, with its margin and runner-up") {
  Bench bench;
  bench.add_both(0, 80, 60);
  bench.add_both(1, 100, 75);
  const Decided decided = bench.decide();
  const Decision& d = decided.decision;
  CHECK(decided.chosen == 1);
  CHECK(d.strategy == "offload");
  CHECK(d.runner_up == "cpu");
  CHECK(d.margin == doctest::Approx(1.25));  // both points
  CHECK(d.margin_low <= 1.25);
  CHECK(d.margin_low > 1.2);
  CHECK(d.margin_high >= 1.25);
  CHECK(d.measured_tok_s == doctest::Approx(100));
  CHECK(d.predicted_tok_s == doctest::Approx(90));
  CHECK(!d.tie);
  CHECK(warns(decided, "the prediction ranked cpu first; the decode runs say offload"));

  REQUIRE(decided.candidates.size() == 4);
  CHECK(decided.candidates[0].strategy == "offload");  // chosen first, the others as they were ranked
  CHECK(decided.candidates[0].chosen);
  CHECK(decided.candidates[0].verdict == "chosen");
  CHECK(decided.candidates[0].measured_hit_rate == 0.25);
  CHECK(decided.candidates[1].strategy == "cpu");
  CHECK(decided.candidates[1].verdict == "measured 25 % slower");
  CHECK(decided.candidates[1].measured_tok_s[1] == doctest::Approx(60));
  CHECK(decided.candidates[1].measured_low[1] <= 60);
  CHECK(decided.candidates[1].measured_high[1] >= 60);
  CHECK(decided.candidates[2].verdict == "predicted 77 % slower");  // sqrt(90 * 70) over sqrt(50 * 40)
  CHECK(decided.candidates[2].measured_tok_s.empty());
  bench.search.ranked[3] = prediction(Strategy::kCpu, 180, 140);
  CHECK(bench.decide().candidates[3].verdict == "predicted 100 % faster, not run: another of its strategy was");
}

TEST_CASE("a tie goes to the simpler strategy") {
  Bench bench;
  bench.add_both(0, 100.2, 80);
  bench.add_both(1, 100, 80);
  const Decided decided = bench.decide();
  CHECK(decided.decision.strategy == "offload");
  CHECK(decided.decision.tie);
  CHECK(decided.decision.runner_up == "cpu");
  CHECK(decided.decision.margin == doctest::Approx(1).epsilon(0.002));
  CHECK(!warns(decided, "the prediction ranked"));  // the prediction's choice is as good
  CHECK(decided.candidates[1].verdict == "tie with the choice, which is not more complex");

  // The other way round the simpler one is already the fastest, and no tie is stated.
  Bench other;
  other.add_both(0, 100, 80);
  other.add_both(1, 100.2, 80);
  CHECK(other.decide().decision.strategy == "offload");
  CHECK(!other.decide().decision.tie);
  // Outside the interval speed wins.
  Bench apart;
  apart.add_both(0, 103, 82);
  apart.add_both(1, 100, 80);
  CHECK(apart.decide().decision.strategy == "cpu");
}

TEST_CASE("medians and paired ratios that point opposite ways are a tie") {
  Bench bench;
  bench.input.contexts = {128};
  bench.input.measured = {0, 1};
  for (CandidatePrediction& candidate : bench.search.ranked) candidate.tok_s.resize(1);
  bench.add(0, 128, 100).values = {100, 100, 100, 100, 100, 160, 200, 200, 200, 200, 200};
  bench.add(1, 128, 100).values = {101, 101, 101, 101, 101, 150, 202, 202, 202, 202, 202};
  const Decided decided = bench.decide();  // 160 against 150, but slower in all rounds but one
  CHECK(decided.decision.strategy == "offload");
  CHECK(decided.decision.tie);
  CHECK(decided.decision.runner_up == "cpu");
}

TEST_CASE("that points differ is no noise: 2 % slower at one and 60 % faster at the other is faster") {
  Bench bench;
  bench.add_both(0, 98, 160);
  bench.add_both(1, 100, 100);
  const Decided decided = bench.decide();
  CHECK(decided.decision.strategy == "cpu");
  CHECK(!decided.decision.tie);
  CHECK(decided.decision.margin == doctest::Approx(std::sqrt(0.98 * 1.6)));
  CHECK(decided.decision.margin_low > 1.24);
  CHECK(decided.decision.margin_high < 1.26);
}

TEST_CASE("one round a point says nothing of noise, two a little, three are enough where it is small") {
  const auto decision = [](const std::vector<double>& first, const std::vector<double>& second) {
    Bench bench;
    bench.add_both(0, 1, 1);
    bench.add_both(1, 1, 1);
    bench.measurements[0].values = first;
    bench.measurements[1].values = second;
    for (const size_t other : {2, 3}) bench.measurements[other].values.assign(first.size(), 100);
    return bench.decide().decision;
  };
  const Decision one = decision({120}, {190});
  CHECK(one.strategy == "offload");  // at 1 / 1.51 of the other's rate, but who knows
  CHECK(one.margin_low < 0.1);
  CHECK(one.margin_high > 10);
  // Log ratios 0.00833 and 0.01053 about two points' medians, each times the root of 2: a deviation of 0.01550, of
  // whose half 3.182 (t of 3 degrees), and 1.092 for a median of four, are 2.7 %.
  const Decision two = decision({119, 121}, {188, 192});
  CHECK(two.strategy == "cpu");
  CHECK(two.margin_low == doctest::Approx(1.5099 * std::exp(-0.02693)).epsilon(1e-3));
  CHECK(two.margin_high == doctest::Approx(1.5099 * std::exp(0.02693)).epsilon(1e-3));
  CHECK(decision({119, 120, 121}, {188, 190, 192}).strategy == "cpu");
  CHECK(decision({60, 120, 240}, {100, 190, 360}).strategy == "offload");
}

TEST_CASE("a candidate whose runs were cut off does not take part") {
  Bench bench;
  bench.add_both(1, 90, 70);
  bench.input.measured.push_back(0);
  bench.add(1, 128, 500);  // never ran at the second context
  const Decided decided = bench.decide();
  CHECK(decided.decision.strategy == "offload");
  CHECK(decided.decision.runner_up.empty());
  CHECK(decided.decision.margin == 0);
  CHECK(decided.candidates[1].measured_tok_s.empty());
  CHECK(decided.candidates[1].verdict == "predicted 13 % faster, its decode runs were cut off");
}

TEST_CASE("without decode runs the prediction decides and says so; the runner-up is another strategy") {
  Bench bench;
  bench.search.ranked = {prediction(Strategy::kCpu, 100, 100), prediction(Strategy::kCpu, 90, 90),
                         prediction(Strategy::kOffload, 80, 80)};
  const Decided decided = bench.decide();
  CHECK(decided.chosen == 0);
  CHECK(decided.decision.runner_up == "offload");
  CHECK(decided.decision.margin == doctest::Approx(1.25));
  CHECK(decided.decision.measured_tok_s == 0);
  CHECK(warns(decided, "not confirmed"));
  bench.search.ranked.resize(2);
  CHECK(bench.decide().decision.runner_up == "cpu");
  bench.search.ranked.resize(1);
  CHECK(bench.decide().decision.runner_up.empty());
  CHECK(bench.decide().decision.margin == 0);
}

TEST_CASE("a gap over the stated factor gives the missing time per layer") {
  Bench bench;
  bench.add_both(0, 50, 40);  // twice the time
  const Decided decided = bench.decide();
  CHECK(decided.decision.gap == doctest::Approx(2));
  CHECK(decided.decision.missing_us_per_layer == doctest::Approx(1e6 * (1.0 / 50 - 1.0 / 100) / 10));
  CHECK(warns(decided, "measured time is 2.00x the predicted one (+1000 us a MoE layer"));

  // Rates are of the whole batch: a step of 4 sequences takes 4 over the rate.
  Bench batched;
  batched.input.batches = {4};
  batched.add_both(0, 50, 40);
  for (Measurement& m : batched.measurements) m.at["batch"] = 4;
  CHECK(batched.decide().decision.missing_us_per_layer == doctest::Approx(4e6 * (1.0 / 50 - 1.0 / 100) / 10));

  Bench faster;  // than predicted
  faster.add_both(0, 200, 160);
  CHECK(faster.decide().decision.gap == doctest::Approx(0.5));
  CHECK(faster.decide().decision.missing_us_per_layer == doctest::Approx(-500));

  for (const auto& [factor, stated] : {std::pair{1.24, false}, {1.26, true}, {1 / 1.24, false}, {1 / 1.26, true}}) {
    Bench edge;
    edge.add_both(0, 100 / factor, 80 / factor);
    CHECK((edge.decide().decision.missing_us_per_layer != 0) == stated);
    CHECK(edge.decide().decision.gap == doctest::Approx(factor));
  }
}

TEST_CASE("the factor of all points and the time of the first one do not contradict each other") {
  Bench bench;
  bench.add_both(0, 101, 40);  // slower than predicted at the second point only
  const Decided decided = bench.decide();
  CHECK(decided.decision.gap == doctest::Approx(std::sqrt(100.0 / 101 * 2)));
  CHECK(warns(decided,
              "measured time is 1.41x the predicted one (over all points; 0.990x at the first, -9.90 us a MoE "
              "layer): the cost model"));
}

TEST_CASE("a context that was not filled is one warning and no part of the gap") {
  Bench bench;
  bench.input.measured = {0, 1};
  for (const size_t index : {0, 1}) {
    bench.add(index, 128, index == 0 ? 100 : 90);
    bench.add(index, 1024, 500, 300);  // shorter, so faster than predicted
  }
  const Decided decided = bench.decide();
  CHECK(decided.decision.gap == doctest::Approx(1));
  CHECK(decided.decision.warnings ==
        std::vector<std::string>{"decode runs at context 1024 had 300 tokens only: a larger --budget fills it"});
  for (Measurement& m : bench.measurements) m.at["context_filled"] = 10;
  CHECK(bench.decide().decision.gap == 0);
  CHECK(warns(bench.decide(), "the prediction was not checked"));
}

TEST_CASE("remarks of series are one warning each; the search's remarks and rejections come along; forced is kept") {
  Bench bench;
  bench.add_both(0, 100, 80);
  for (Measurement& m : bench.measurements) m.remarks = {"not steady"};
  bench.search.remarks = {"a pinned knob"};
  bench.search.rejected = {{Strategy::kResident, "needs 99 slots"}};
  bench.input.forced = true;
  const Decided decided = bench.decide();
  CHECK(decided.decision.warnings ==
        std::vector<std::string>{"a pinned knob", "candidate0.128 and 1 more: not steady"});
  CHECK(decided.decision.forced);
  CHECK(decided.candidates.back().strategy == "resident");
  CHECK(decided.candidates.back().verdict == "needs 99 slots");
  CHECK(decided.candidates.back().predicted_tok_s.empty());
}

TEST_CASE("worth a decode run: the best of each strategy, the prediction's choice first, plain offload last") {
  SearchResult search;
  search.ranked = {prediction(Strategy::kCpu, 9, 9), prediction(Strategy::kOffload, 8, 8),
                   prediction(Strategy::kCpu, 7, 7), prediction(Strategy::kHybrid, 6, 6),
                   prediction(Strategy::kOffload, 5, 5)};
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 3, 1});
  std::swap(search.ranked[0], search.ranked[1]);
  CHECK(candidates_to_confirm(search) == std::vector<size_t>{0, 1, 3});
}

}  // namespace ft
