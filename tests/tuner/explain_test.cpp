// Checked against: sentences written by hand for a profile that is built from known parameters, whose crossings are in
// closed form (flip_test.cpp has the same two arms); and profiles with parts taken away, as older versions are.
#include "tuner/explain.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/profiles/sample_profile.h"
#include "tuner/explain_words.h"
#include "tuner/prediction.h"

namespace ft {
namespace {

// On a GPU, one point: cpu 140 us, offload 226 us a layer beside 4 us of base, 48 layers, 3 ms outside.
Profile two_arms() {
  Profile profile;
  profile.conditions.device = "cuda";
  profile.conditions.contexts = {128};
  profile.conditions.batches = {1};
  const auto parameter = [&](const char* name, double us) {
    profile.cost_model.parameters.push_back({std::string(name) + ".threads=4", "s", us * 1e-6, us * 1e-6, us * 1e-6});
  };
  parameter("a_layer", 4);
  parameter("a_g", 3);
  parameter("s_g", 2);
  parameter("a_c", 12);
  parameter("s_c", 32);
  parameter("a_f", 7);
  parameter("s_f", 50);
  parameter("dense_fixed", 3000);
  profile.cost_model.parameters.push_back({std::string(kMoeLayersParameter), "1", 48, 48, 48});
  Measurement single;
  single.probe = "expert_single";
  single.at = {{"expert_bytes", 2.5e6}};
  profile.measurements = {single};
  const auto candidate = [](const char* strategy, int fetched, int cpu) {
    Candidate made;
    made.strategy = strategy;
    made.threads = 4;
    made.slots = 1536;
    ReplayedCounts counts;
    counts.times = 48;
    counts.hits = counts.hit_picks = 4;
    counts.fetched = counts.fetched_picks = fetched;
    counts.cpu = counts.cpu_picks = cpu;
    made.replays = {{1, 0.5, {counts}}};
    return made;
  };
  profile.candidates = {candidate("cpu", 0, 4), candidate("offload", 4, 0)};
  for (Candidate& made : profile.candidates) {
    made.predicted_tok_s = predicted_rates(candidate_model(profile, made), profile.conditions.contexts);
  }
  profile.candidates[0].chosen = true;
  profile.candidates[0].verdict = "chosen";
  profile.candidates[1].verdict = "predicted 40 % slower";
  profile.decision.strategy = profile.serve.strategy = "cpu";
  profile.decision.reason = "best prediction";
  profile.decision.runner_up = "offload";
  profile.decision.margin = profile.decision.margin_low = profile.decision.margin_high =
      (3000 + 48 * 230.0) / (3000 + 48 * 144.0);
  return profile;
}

const ChangeNeeded& change(const Explanation& why, const std::string& term) {
  for (const ChangeNeeded& entry : why.changes) {
    if (entry.term == term) return entry;
  }
  FAIL("no change of " << term);
  return why.changes.front();
}

bool holds(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("what would have to change, in closed form and physical words") {
  const Explanation why = explain(two_arms());
  CHECK(why.missing.size() == 1);  // parts
  CHECK(why.contradictions.empty());
  // offload is simpler: it is chosen when it ties, at 1.005.
  const double step = (3000 + 48 * 230.0) / 1.005;
  const double s_c = ((step - 3000) / 48 - 4 - 12) / 4;
  CHECK(change(why, "s_c").factor.value() == doctest::Approx(s_c / 32));
  CHECK(change(why, "s_c").words ==
        "the CPU would have to be 1.66x slower per expert (32.0 us -> 53.1 us an expert, 78.1 -> 47.0 GB/s)");
  const double s_f = ((1.005 * (3000 + 48 * 144.0) - 3000) / 48 - 4 - 26) / 4;
  CHECK(change(why, "s_f").factor.value() == doctest::Approx(s_f / 50));
  CHECK(
      change(why, "s_f").words ==
      "the link would have to carry 86.9 GB/s of experts instead of 50.0: 1.74x faster (50.0 us -> 28.8 us an expert)");
  CHECK(!change(why, "a_f").factor.has_value());
  CHECK(change(why, "a_f").words == "starting a layer's copies (7.00 us a layer)");
  CHECK(why.changes[0].term == "s_c");
  CHECK(why.changes[1].term == "s_f");
  CHECK(holds(why.change_basis, "by prediction the choice is 1.416x as fast as the runner-up"));
  CHECK(holds(why.change_basis, "below 1.005x the runner-up is chosen, as a tie goes to it"));
}

TEST_CASE("a runner-up that is more complex must leave the tie, and one of the same strategy only be faster") {
  Profile profile = two_arms();
  profile.candidates[1].strategy = profile.decision.runner_up = "hybrid";
  CHECK(holds(explain(profile).change_basis,
              "below 0.995x the runner-up is chosen, as a tie stays with the simpler one"));
  profile.candidates[1].strategy = profile.decision.runner_up = "cpu";
  CHECK(holds(explain(profile).change_basis, "below 1.000x the runner-up is chosen"));
  // The same strategy with look-ahead is the more complex of the two.
  profile.candidates[1].max_prefetches_per_layer = 2;
  CHECK(holds(explain(profile).change_basis, "below 0.995x the runner-up is chosen"));
  profile.candidates[1].max_prefetches_per_layer.reset();
  // Measured, the interval of the margin says how wide a tie is.
  profile.candidates[1].strategy = profile.decision.runner_up = "hybrid";
  for (Candidate& candidate : profile.candidates) candidate.measured_tok_s = candidate.predicted_tok_s;
  profile.decision.margin_high = profile.decision.margin * 1.1;
  CHECK(holds(explain(profile).change_basis, "as measured the choice is 1.416x as fast as the runner-up"));
  CHECK(holds(explain(profile).change_basis, "below 0.909x the runner-up is chosen"));
}

TEST_CASE("the texts of runner-up and tie say with whom, and when it is the same strategy") {
  const auto said = [](const Profile& profile) {
    std::string all;
    for (const std::string& sentence : explain(profile).choice) all += sentence + "\n";
    return all;
  };
  Profile profile = two_arms();
  CHECK(!holds(said(profile), "same strategy"));
  CHECK(!holds(said(profile), "tie"));
  profile.decision.tie = true;
  CHECK(holds(said(profile), "\ntie: the interval of the prediction holds 1"));
  CHECK(holds(said(profile), "goes to the simpler strategy"));
  // The runner-up is another strategy and far behind: the tie is with other settings of the choice's own.
  profile.candidates.push_back(profile.candidates[0]);
  profile.candidates[2].chosen = false;
  profile.candidates[2].max_prefetches_per_layer = 3;
  for (double& rate : profile.candidates[2].predicted_tok_s) rate *= 1.002;
  CHECK(holds(said(profile), "runner-up: offload, 4 threads, 1536 slots; the choice is 1.42x as fast"));
  CHECK(holds(said(profile), "\ntie with cpu, 4 threads, 1536 slots, 3 ahead: the interval of the prediction"));
  CHECK(holds(said(profile), "of one strategy a tie goes to the settings without look-ahead"));
  // Measured, the runner-up is the fastest other, whatever its strategy.
  for (Candidate& candidate : profile.candidates) candidate.measured_tok_s = candidate.predicted_tok_s;
  profile.decision.runner_up = "cpu";
  profile.decision.margin = profile.decision.margin_low = profile.decision.margin_high = 1 / 1.002;
  CHECK(
      holds(said(profile), "runner-up: cpu, 4 threads, 1536 slots, 3 ahead (the same strategy with other settings);"));
  CHECK(holds(said(profile), "\ntie: the interval holds 1"));
  CHECK(holds(said(profile), "of one strategy a tie goes to"));
}

TEST_CASE("with decode runs the changes start from what was measured") {
  Profile profile = two_arms();
  profile.candidates[0].measured_tok_s = {1e6 / (4000 + 48 * 144.0)};  // 1 ms more than predicted
  profile.candidates[1].measured_tok_s = {1e6 / (3000 + 48 * 230.0)};
  profile.decision.margin = profile.decision.margin_low = profile.decision.margin_high =
      (3000 + 48 * 230.0) / (4000 + 48 * 144.0);
  const double step = (3000 + 48 * 230.0) / 1.005;
  CHECK(change(explain(profile), "s_c").factor.value() == doctest::Approx(((step - 4000) / 48 - 4 - 12) / 4 / 32));
}

TEST_CASE("measured against predicted is said first") {
  Profile profile = two_arms();
  profile.candidates[0].chosen = false;
  profile.candidates[1].chosen = true;
  profile.candidates[0].measured_tok_s = {1e6 / 30000};
  profile.candidates[1].measured_tok_s = {1e6 / 17500};
  profile.decision.strategy = profile.serve.strategy = "offload";
  profile.decision.runner_up = "cpu";
  profile.decision.margin = profile.decision.margin_low = profile.decision.margin_high = 30000.0 / 17500;
  profile.decision.gap = 17500 / (3000 + 48 * 230.0);
  profile.decision.missing_us_per_layer = 72.125;
  const std::string text = explain_text(profile);
  CHECK(text.starts_with(
      "! the prediction ranked cpu first, 42 % ahead of offload; in the decode runs offload was 71 % "));
  // Where the intervals meet it is noise, and no contradiction.
  profile.candidates[0].measured_low = {30};
  profile.candidates[0].measured_high = {57};
  profile.candidates[1].measured_low = {57};
  profile.candidates[1].measured_high = {58};
  CHECK(!explain_text(profile).starts_with("!"));
  profile.candidates[1].measured_low = {57.1};
  profile.candidates[0].verdict = "tie with the choice, which is not more complex";
  CHECK(!explain_text(profile).starts_with("!"));
  profile.candidates[0].verdict = "measured 71 % slower";
  CHECK(explain_text(profile).starts_with("! the prediction ranked cpu first"));
  profile.decision.gap = 1.3;
  CHECK(explain_text(profile).starts_with(
      "! measured contradicts predicted: offload takes 1.30x the predicted time, 72.1 us a MoE layer "));
  profile.decision.missing_us_per_layer = -0.04;  // of the first point, which another one outweighs
  CHECK(
      explain(profile).contradictions[0] ==
      "measured contradicts predicted: offload takes 1.30x the predicted time over all points, though 0.0400 us a MoE "
      "layer less than the cost model's at the first; the measured winner stands");
  profile.decision.gap = 1.25;  // at the bound the model still explains the machine
  CHECK(!holds(explain_text(profile), "contradicts"));
}

TEST_CASE("ties, forced options and warnings are told") {
  Profile profile = two_arms();
  profile.decision.tie = true;
  profile.decision.warnings = {"not confirmed: no decode run was measured, the prediction decides"};
  profile.conditions.forced = {"--slots 25%"};
  const std::string text = explain_text(profile);
  CHECK(holds(text, "- tie: the interval of the prediction holds 1, or the two are nearer than 0.5 %; a tie goes to"));
  CHECK(holds(text, "- forced: --slots 25%: candidates that it excludes were not compared\n"));
  CHECK(holds(text, "\nwarnings\n- not confirmed: no decode run was measured, the prediction decides\n"));
  CHECK(holds(text, "- not confirmed: no decode run of it was measured, the prediction decides\n"));
  CHECK(holds(text, "\nwhy not the others\n- offload, 4 threads, 1536 slots: predicted 40 % slower\n"));
  CHECK(holds(text, "predicted: 100.9 tok/s at context 128, 1 sequence, number 1 of 2 predicted candidates"));
}

TEST_CASE("parts of a step as a table, with their shares") {
  Profile profile = two_arms();
  profile.candidates[0].parts = {{"dense", {0.003}}, {"cpu", {0.001}}};
  const std::string text = explain_text(profile);
  CHECK(holds(text, "where a step's time goes, as predicted\n  chosen: cpu, 4 threads, 1536 slots\n"));
  CHECK(holds(text,
              "  dense                   3000 us   75 %\n  cpu                     1000 us   25 %\n  step              "
              "      4000 us  100 %\n"));
  CHECK(!holds(text, "what this profile does not tell"));
}

TEST_CASE("older profiles are explained as far as they go") {
  Profile profile = two_arms();
  profile.version = "1.3.0";
  for (Candidate& candidate : profile.candidates) candidate.replays.clear();
  const Explanation why = explain(profile);
  CHECK(why.changes.empty());
  CHECK(why.choice.size() >= 3);
  CHECK(why.missing == std::vector<std::string>{
                           "where a token's time goes: a profile of version 1.3.0 does not record the parts of a "
                           "predicted step (1.4 does)",
                           "what would have to change: a profile of version 1.3.0 does not record what the caches of "
                           "both candidates did (1.4 does)"});
}

TEST_CASE("a profile that contradicts itself is said to, and nothing breaks") {
  Profile profile = two_arms();
  profile.candidates[0].predicted_tok_s[0] *= 1.5;
  CHECK(holds(explain_text(profile), "the predictions in the profile are up to 33.3 % off"));
  profile = two_arms();
  profile.candidates[0].replays[0].counts[0].times = 47;  // no whole number of steps
  CHECK(holds(explain_text(profile), "what would have to change: profile refused"));
  profile = two_arms();
  profile.cost_model.parameters.clear();
  CHECK(holds(explain_text(profile), "what would have to change: profile refused"));
  profile = two_arms();
  profile.decision.runner_up = "resident";
  CHECK(holds(explain_text(profile), "no candidate is the runner-up"));
  profile = two_arms();
  profile.candidates[0].chosen = false;
  CHECK(holds(explain_text(profile), "no candidate is marked as chosen"));
  CHECK_NOTHROW(explain_text(Profile{}));
  CHECK_NOTHROW(explain_text(sample_profile()));
}

TEST_CASE("as JSON: the same, with numbers") {
  const OrderedJson json = explain_json(two_arms());
  CHECK(json["strategy"] == "cpu");
  CHECK(json["changes"][0]["term"] == "s_c");
  CHECK(json["changes"][0]["factor"].get<double>() > 1);
  CHECK(json["changes"].back()["factor"].is_null());
  CHECK(json["candidates"].size() == 2);
  CHECK(json["runner_up"] == "offload, 4 threads, 1536 slots");
}

TEST_CASE("changes in words") {
  CHECK(microseconds(0.5e-6) == "0.50 us");
  CHECK(microseconds(0.00404e-6) == "0.004040 us");
  CHECK(microseconds(0) == "0.00 us");
  CHECK(microseconds(9.994e-6) == "9.99 us");
  CHECK(microseconds(9.996e-6) == "10.0 us");
  CHECK(microseconds(156.2e-6) == "156 us");
  CHECK(change_words("s_f", Device::kHost, 10e-6, 2, 50e3) ==
        "the copy thread would have to carry 2.5 GB/s of experts instead of 5.0: 2.00x slower (10.0 us -> 20.0 us an "
        "expert)");
  CHECK(change_words("s_f", Device::kCuda, 10e-6, 2, 0) ==
        "the link would have to be 2.00x slower (10.0 us -> 20.0 us an expert)");
  CHECK(change_words("a_c", Device::kCuda, 12e-6, 0.25, 0) ==
        "starting the CPU on a layer's experts would have to be 4.00x faster (12.0 us -> 3.00 us a layer)");
  CHECK(change_words("k_c", Device::kCuda, 0.2, 1.5, 0) ==
        "copies slow the CPU's work beside them by 20 %; it would have to be 30 %");
  CHECK(change_words("s_c", Device::kCuda, 32e-6, 1.004, 0) ==
        "the CPU would have to be 1.004x slower per expert (32.0 us -> 32.1 us an expert)");
  // Beside a factor no two equal numbers.
  CHECK(change_words("s_c", Device::kCuda, 32e-6, 1.0011, 160e3) ==
        "the CPU would have to be 1.001x slower per expert (32.00 us -> 32.04 us an expert, 5.00 -> 4.99 GB/s)");
  CHECK(change_words("s_c", Device::kCuda, 32e-6, 1.0004, 160e3) ==
        "the CPU would have to be less than 0.1 % slower than 32.0 us an expert");
  CHECK(change_words("s_p", Device::kCuda, 4e-9, 1.4, 0) ==
        "copying a promoted expert would have to be 1.40x slower (0.004000 us -> 0.005600 us an expert)");
  CHECK(change_words("k_f", Device::kCuda, 0.001, 1.4, 0) ==
        "the CPU's work slows copies beside it by 0.10 %; it would have to be 0.14 %");
  CHECK(percent_more(1.004) == "less than 1 %");
  CHECK(percent_more(1.126) == "13 %");
}

}  // namespace ft
