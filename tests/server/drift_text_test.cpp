// Checked against: lines written by hand.
#include "engine/server/drift_text.h"

#include <doctest/doctest.h>

namespace {

ft::DriftEvent below(ft::DriftTerm term) {
  ft::DriftEvent event;
  event.state = ft::DriftState::kBelow;
  event.term = term;
  event.ratio = 0.52;
  event.low = 0.9;
  event.high = 1.1;
  event.steps = 214;
  event.expected_seconds = 10e-3;
  event.achieved_seconds = 19.25e-3;
  event.moved_seconds = 4e-3;
  event.expected = 3e-3;
  event.achieved = 7e-3;
  event.context = 512.4;
  event.batch = 1.5;
  return event;
}

const std::string kRate =
    "drift: decodes at 0.52 of the expected rate (band 0.90 to 1.10): 19.2 ms a step in place of 10 ms, over 214 steps "
    "at context 512, batch 1.5; ";

}  // namespace

TEST_CASE("a line says by how much, over what, and which term moved") {
  using ft::DriftTerm;
  ft::DriftEvent hits = below(DriftTerm::kHitRate);
  hits.expected = 0.8, hits.achieved = 0.61;
  CHECK(ft::drift_text(hits) == kRate + "hit rate moved: 61 % in place of 80 %, +4 ms a step");
  CHECK(ft::drift_text(below(DriftTerm::kFetch)) == kRate + "fetch moved: 7 ms in place of 3 ms, +4 ms a step");
  CHECK(ft::drift_text(below(DriftTerm::kCpuWaits)) == kRate + "CPU waits moved: 7 ms in place of 3 ms, +4 ms a step");
  CHECK(ft::drift_text(below(DriftTerm::kAttention)) == kRate + "attention moved: 7 ms in place of 3 ms, +4 ms a step");
  CHECK(ft::drift_text(below(DriftTerm::kThrottling)) ==
        kRate + "throttling: the CPU quota of the control group stops it for 7 ms a step");
  CHECK(ft::drift_text(below(DriftTerm::kContext)).find("; context moved: only steps in the longer half") !=
        std::string::npos);
  CHECK(ft::drift_text(below(DriftTerm::kBatch)).find("; batch moved: only steps with more sequences") !=
        std::string::npos);
  CHECK(ft::drift_text(below(DriftTerm::kNone)).find("; compute moved: ") != std::string::npos);
  ft::DriftEvent gpu = below(DriftTerm::kNone);
  gpu.measures_waits = false;
  CHECK(ft::drift_text(gpu).find("; compute or fetch moved, which this device does not tell apart") !=
        std::string::npos);
}

TEST_CASE("a return is said with the rate") {
  ft::DriftEvent event = below(ft::DriftTerm::kNone);
  event.state = ft::DriftState::kInside;
  event.ratio = 0.97;
  CHECK(
      ft::drift_text(event) ==
      "drift: inside the band again, 0.97 of the expected rate (band 0.90 to 1.10): 19.2 ms a step in place of 10 ms, "
      "over 214 steps at context 512, batch 1.5");
}

TEST_CASE("what is outside says what was tuned") {
  ft::StepValues values;
  values[ft::StepQuantity::kSeconds] = 1;
  const ft::ExpectedSteps expected({{512, 1, values}, {512, 4, values}, {2048, 1, values}, {2048, 4, values}});
  ft::DriftSummary summary;
  summary.outside_context = 4000;
  summary.outside_batch = 2;
  CHECK(ft::drift_outside_text(summary, expected) ==
        "drift: steps at context 4000 and batch 2 are outside of what was tuned (contexts 512 to 2048, batches 1 to 4) "
        "and are not judged");
}
