// Checked against: a table written out by hand for a small profile.
#include "tuner/report.h"

#include <doctest/doctest.h>

namespace ft {
namespace {

Profile small_profile() {
  Profile profile;
  profile.conditions.contexts = {128, 1024};
  profile.conditions.batches = {1};
  profile.conditions.forced = {"--threads 2"};
  Candidate chosen;
  chosen.strategy = "cpu";
  chosen.threads = 2;
  chosen.slots = 0;
  chosen.split = "fetch none";
  chosen.predicted_tok_s = {1234.4, 99.96};
  chosen.measured_tok_s = {1200, 90};
  chosen.measured_hit_rate = 0.25;
  chosen.chosen = true;
  chosen.verdict = "chosen";
  Candidate other = chosen;
  other.strategy = "offload";
  other.slots = 96;
  other.split = "fetch all";
  other.chosen = false;
  other.measured_tok_s.clear();
  other.predicted_hit_rate = 0.5;
  other.verdict = "predicted 9 % slower";
  Candidate rejected;
  rejected.strategy = "resident";
  rejected.verdict = "needs 192 slots";
  profile.candidates = {chosen, other, rejected};
  profile.decision.strategy = "cpu";
  profile.decision.reason = "best prediction";
  profile.decision.warnings = {"careful"};
  profile.skipped = {{"pcie_linear", "no link"}};
  profile.cost_model = {{}, 0.061, 0.25, 41, 7};
  return profile;
}

}  // namespace

TEST_CASE("the table shows every candidate, predicted over measured, and why not") {
  const std::string expected =
      "decode rates are tokens per second over the whole batch, predicted > measured\n"
      "strategy    threads  slots  split       ctx 128 x1   ctx 1024 x1   hits  verdict\n"
      "* cpu       2        0      fetch none  1234 > 1200  100.0 > 90.0  25 %  chosen\n"
      "  offload   2        96     fetch all   1234 > -     100.0 > -     50 %  predicted 9 % slower\n"
      "  resident  -        -      -           -            -             -     needs 192 slots\n"
      "\nchoice: cpu, best prediction\n"
      "cost model: held-out error 6.1 %, 25.0 % without fixed costs; 41 cells fitted, 7 held out\n"
      "forced: --threads 2\n"
      "warning: careful\n"
      "skipped: pcie_linear: no link\n";
  CHECK(decision_table(small_profile()) == expected);
}

TEST_CASE("a split that takes words to read has them above the table") {
  Profile profile = small_profile();
  CHECK(decision_table(profile).find("\nsplit: ") == std::string::npos);
  profile.candidates[1].split = "fetch 1 more at 2, 5; promote 1";
  CHECK(decision_table(profile).find(
            "measured\nsplit: of one layer's misses; \"fetch 1 more at 2, 5\" fetches none of 1") != std::string::npos);
}

TEST_CASE("slots that were asked for as a share show it beside the count") {
  Profile profile = small_profile();
  profile.conditions.forced = {"--threads 2", "--slots 50%"};
  const std::string table = decision_table(profile);
  CHECK(table.find("  offload   2        96 (50%)  fetch all ") != std::string::npos);
  CHECK(table.find("forced: --slots 50%\n") != std::string::npos);
  profile.conditions.forced = {"--slots 96"};
  CHECK(decision_table(profile).find('(') == std::string::npos);
}

TEST_CASE("what spoilt the numbers is a warning with its command; notes stay in the profile") {
  Profile profile = small_profile();
  profile.conditions.findings = {{"cpu.throttled", "warning", "stopped", "raise the quota"},
                                 {"gpu.clocks", "warning", "lowered", ""},
                                 {"cpu.quota", "note", "a quota", "raise it"}};
  const std::string table = decision_table(profile);
  CHECK(table.find("warning: careful\nwarning: cpu.throttled: stopped; to change it: raise the quota\n"
                   "warning: gpu.clocks: lowered\nskipped: ") != std::string::npos);
  CHECK(table.find("cpu.quota") == std::string::npos);
}

TEST_CASE("a runner-up comes with its margin") {
  Profile profile = small_profile();
  profile.decision.runner_up = "offload";
  profile.decision.margin = 1.25;
  profile.decision.margin_low = 1.2;
  profile.decision.margin_high = 1.3;
  CHECK(decision_table(profile).find("; runner-up offload, margin 1.25x (1.20 to 1.30)\n") != std::string::npos);
}

}  // namespace ft
