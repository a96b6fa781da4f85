// Checked against: lines written by hand.
#include <doctest/doctest.h>

#include "engine/server/metrics.h"

namespace {

ft::ServedProfile profile() {
  ft::ServedProfile profile;
  profile.predicted_tok_s = 100;
  profile.ceiling_gbps = 20;
  return profile;
}

}  // namespace

TEST_CASE("before anything was generated only the prediction is known") {
  CHECK(ft::stats_line(profile(), {}) == "0 tokens | predicted 100.0 tok/s");
  ft::ServedProfile without = profile();
  without.predicted_tok_s = 0;  // batch 1 was not tuned
  CHECK(ft::stats_line(without, {}) == "0 tokens");
}

TEST_CASE("one token comes from the prompt: its time and the hash are known, no rate") {
  ft::ServiceStats stats;
  stats.scheduler.generated_tokens = 1;
  stats.engine.prefill_tokens = 12;
  stats.engine.prefill_seconds = 0.25;
  stats.engine.logits_hash = "0123456789abcdef0123456789abcdef";
  CHECK(ft::stats_line(profile(), stats) ==
        "1 token | prefill of 12 in 0.250 s | predicted 100.0 tok/s | logits 0123456789abcdef");
}

TEST_CASE("with decode steps everything is said") {
  ft::ServiceStats stats;
  stats.scheduler.generated_tokens = 3;
  stats.engine.decode_steps = stats.engine.single_steps = 2;
  stats.engine.expert_hits = 3;
  stats.decode_tok_s = 50;
  stats.decode_ms_per_step = 20;
  stats.decode_gbps = 5;
  stats.ceiling_share = 0.25;
  stats.hit_rate = 1;
  stats.achieved_over_predicted = 0.5;
  CHECK(ft::stats_line(profile(), stats) ==
        "3 tokens | 50.0 tok/s | 20.00 ms a step | 5.0 GB/s = 25 % of ceiling | hits 100 % | predicted 100.0 tok/s, "
        "achieved 0.50x");
  stats.engine.expert_fetched = 1;
  stats.fetched_share = 1;
  CHECK(ft::stats_line(profile(), stats).find(" | misses: 100 % fetched, 0 % on CPU | ") != std::string::npos);
}
