// Checked against: streams of steps made up here, whose cause is known, and expectations worked out by hand.
#include "engine/runtime/drift.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "kernels/base/error.h"

using namespace ft;
using Q = StepQuantity;

namespace {

// A step of 10 ms: 5 ms dense, 1 ms attention at 1000 positions, 3 ms fetching 30 experts and 1 ms waiting for the CPU,
// which has 10. 160 experts are hits: a hit rate of 80 %.
StepValues step_values(double seconds, double attention) {
  StepValues values;
  values[Q::kSeconds] = values[Q::kPartsSeconds] = seconds;
  values[Q::kSecondsLow] = seconds / 1.1;
  values[Q::kSecondsHigh] = seconds / 0.9;
  values[Q::kHits] = 160;
  values[Q::kFetched] = 30;
  values[Q::kCpu] = 10;
  values[Q::kMissSeconds] = 4e-3;
  values[Q::kLinkWaitSeconds] = 3e-3;
  values[Q::kCpuWaitSeconds] = 1e-3;
  values[Q::kAttentionSeconds] = attention;
  return values;
}

// Contexts 1000 and 3000 (12 ms), batches 1 and 4 (20 and 28 ms).
ExpectedSteps tuned() {
  return ExpectedSteps({{1000, 1, step_values(10e-3, 1e-3)},
                        {1000, 4, step_values(20e-3, 4e-3)},
                        {3000, 1, step_values(12e-3, 3e-3)},
                        {3000, 4, step_values(28e-3, 12e-3)}});
}

struct MadeStep {
  int batch = 1;
  double context = 1000;
  double seconds = 10e-3;
  uint64_t hits = 160, fetched = 30, cpu = 10;
  double link_wait = 3e-3, cpu_wait = 1e-3, attention = 1e-3, throttled = 0;
};

// The engine and the thread that steps it.
class Service {
 public:
  explicit Service(bool measures_waits = true) : measures_waits_(measures_waits) {}

  DriftWatch watch{tuned()};
  std::vector<DriftEvent> events;

  void step(const MadeStep& step) {
    watch.add_step(step.batch, step.context, step.seconds);
    reading.hits += step.hits;
    reading.fetched += step.fetched;
    reading.cpu += step.cpu;
    reading.cpu_wait_seconds += step.cpu_wait;
    reading.throttled_seconds += step.throttled;
    if (measures_waits_) {
      reading.link_wait_seconds = reading.link_wait_seconds.value_or(0) + step.link_wait;
      reading.attention_seconds = reading.attention_seconds.value_or(0) + step.attention;
    }
    if (!watch.window_is_full()) return;
    if (const auto event = watch.close_window(reading)) events.push_back(*event);
  }
  void windows(const MadeStep& made, int count) {
    const uint64_t end = watch.summary().windows + static_cast<uint64_t>(count);
    for (int i = 0; i < 1'000'000 && watch.summary().windows < end; ++i) step(made);
    REQUIRE(watch.summary().windows == end);
  }
  DriftReading reading;

 private:
  bool measures_waits_;
};

// A drift after a time inside the band, which ends at the third window and names one term.
DriftEvent only_event(Service& service, const MadeStep& made) {
  service.windows({}, 5);
  CHECK(service.watch.summary().state == DriftState::kInside);
  service.windows(made, kWindowsInARow - 1);
  CHECK(service.events.empty());
  service.windows(made, 20);
  REQUIRE(service.events.size() == 1);
  return service.events[0];
}

}  // namespace

TEST_CASE("between the tuned points is interpolated, below them attention shrinks, outside nothing is known") {
  const ExpectedSteps steps = tuned();
  StepValues values;
  REQUIRE(steps.at(1000, 1, values));
  CHECK(values[Q::kSeconds] == doctest::Approx(10e-3));
  REQUIRE(steps.at(2000, 1, values));
  CHECK(values[Q::kSeconds] == doctest::Approx(11e-3));
  REQUIRE(steps.at(1000, 2, values));
  CHECK(values[Q::kSeconds] == doctest::Approx(10e-3 + 10e-3 / 3));
  REQUIRE(steps.at(2000, 4, values));
  CHECK(values[Q::kSeconds] == doctest::Approx(24e-3));
  CHECK(values[Q::kAttentionSeconds] == doctest::Approx(8e-3));
  REQUIRE(steps.at(500, 4, values));  // half of 4 ms of attention
  CHECK(values[Q::kSeconds] == doctest::Approx(18e-3));
  CHECK(values[Q::kAttentionSeconds] == doctest::Approx(2e-3));
  REQUIRE(steps.at(0, 1, values));
  CHECK(values[Q::kSeconds] == doctest::Approx(9e-3));
  REQUIRE(steps.at(3000, 4, values));
  CHECK(!steps.at(3001, 4, values));
  CHECK(!steps.at(1000, 5, values));
  CHECK(!steps.at(1000, 0, values));
  CHECK(!steps.at(-1, 1, values));

  StepValues no_attention = step_values(10e-3, 0);
  REQUIRE(ExpectedSteps({{1000, 2, no_attention}}).at(0, 2, values));
  CHECK(values[Q::kSeconds] == doctest::Approx(10e-3));
  no_attention[Q::kPartsSeconds] = 0;
  const ExpectedSteps without_parts({{1000, 2, no_attention}});
  REQUIRE(without_parts.at(1000, 2, values));
  CHECK(!without_parts.at(999, 2, values));
  CHECK(!without_parts.at(1001, 2, values));
  CHECK(!without_parts.at(1000, 1, values));
  CHECK(ExpectedSteps().empty());
}

TEST_CASE("steady service is inside the band and says nothing") {
  Service service;
  service.windows({}, 50);
  CHECK(service.events.empty());
  const DriftSummary& summary = service.watch.summary();
  CHECK(summary.state == DriftState::kInside);
  CHECK(summary.ratio == doctest::Approx(1));
  CHECK(summary.low == doctest::Approx(0.9));
  CHECK(summary.high == doctest::Approx(1.1));
  CHECK(summary.times_left == 0);
  CHECK(summary.steps_not_judged == 0);
}

TEST_CASE("a window has at least so many steps and so much time") {
  DriftWatch watch(tuned());
  for (int i = 1; i < kWindowSteps; ++i) watch.add_step(1, 1000, 1.0);
  CHECK(!watch.window_is_full());
  watch.add_step(1, 1000, 1.0);
  CHECK(watch.window_is_full());
  DriftWatch quick(tuned());
  for (int i = 0; i < 999; ++i) quick.add_step(1, 1000, kWindowSeconds / 1000);
  CHECK(!quick.window_is_full());
  for (int i = 0; i < 2; ++i) quick.add_step(1, 1000, kWindowSeconds / 1000);
  CHECK(quick.window_is_full());
}

TEST_CASE("one slow step says nothing, however slow, and neither do two slow windows") {
  Service service;
  for (int i = 0; i < 5; ++i) {
    service.windows({}, 5);
    service.step({.seconds = 3600});
    service.windows({}, 5);
    service.windows({.seconds = 30e-3}, kWindowsInARow - 1);
  }
  service.windows({}, 5);
  CHECK(service.events.empty());
}

TEST_CASE("slow fetches are named") {
  Service service;
  const DriftEvent event = only_event(service, {.seconds = 20e-3, .link_wait = 13e-3});
  CHECK(event.state == DriftState::kBelow);
  CHECK(event.term == DriftTerm::kFetch);
  CHECK(event.ratio == doctest::Approx(0.5));
  CHECK(event.expected_seconds == doctest::Approx(10e-3));
  CHECK(event.achieved_seconds == doctest::Approx(20e-3));
  CHECK(event.moved_seconds == doctest::Approx(10e-3));
  CHECK(event.expected == doctest::Approx(3e-3));
  CHECK(event.achieved == doctest::Approx(13e-3));
  CHECK(event.steps >= kWindowsInARow * kWindowSteps);
}

TEST_CASE("a hit rate that fell is named, not the fetches that it makes") {
  Service service;  // 80 misses in place of 40: 4 ms more, of which the link has 3
  const DriftEvent event = only_event(service, {.seconds = 14e-3,
                                                .hits = 120,
                                                .fetched = 60,
                                                .cpu = 20,
                                                .link_wait = 6e-3,
                                                .cpu_wait = 2e-3,
                                                .attention = 1e-3});
  CHECK(event.term == DriftTerm::kHitRate);
  CHECK(event.expected == doctest::Approx(0.8));
  CHECK(event.achieved == doctest::Approx(0.6));
  CHECK(event.moved_seconds == doctest::Approx(4e-3));
}

TEST_CASE("misses where none were expected are named") {
  StepValues resident = step_values(10e-3, 1e-3);
  for (const Q q : {Q::kFetched, Q::kCpu, Q::kMissSeconds, Q::kLinkWaitSeconds, Q::kCpuWaitSeconds}) resident[q] = 0;
  Service service;
  service.watch = DriftWatch(ExpectedSteps({{1000, 1, resident}}));
  const MadeStep hit{.hits = 200, .fetched = 0, .cpu = 0, .link_wait = 0, .cpu_wait = 0};
  MadeStep miss = hit;
  miss.hits = 180, miss.fetched = 20, miss.link_wait = 8e-3, miss.seconds = 18e-3;
  service.windows(hit, 5);
  service.windows(miss, 5);
  REQUIRE(service.events.size() == 1);
  CHECK(service.events[0].term == DriftTerm::kHitRate);
  CHECK(service.events[0].expected == doctest::Approx(1));
  CHECK(service.events[0].achieved == doctest::Approx(0.9));
}

TEST_CASE("waits for the CPU that rose are named, also by a device that measures nothing else") {
  for (const bool measures_waits : {true, false}) {
    Service service(measures_waits);
    const DriftEvent event = only_event(service, {.seconds = 16e-3, .cpu_wait = 6e-3});
    CHECK(event.term == DriftTerm::kCpuWaits);
    CHECK(event.moved_seconds == doctest::Approx(5e-3));
    CHECK(event.measures_waits == measures_waits);
  }
}

TEST_CASE("throttling is named before what it stretches") {
  Service service;
  const DriftEvent event =
      only_event(service, {.seconds = 20e-3, .link_wait = 6e-3, .cpu_wait = 7e-3, .throttled = 9e-3});
  CHECK(event.term == DriftTerm::kThrottling);
  CHECK(event.achieved == doctest::Approx(9e-3));
  Service other;  // too little to be the cause
  CHECK(only_event(other, {.seconds = 20e-3, .cpu_wait = 9e-3, .throttled = 1e-3}).term == DriftTerm::kCpuWaits);
}

TEST_CASE("attention is named where it is measured, otherwise the contexts that are slow") {
  Service service;
  CHECK(only_event(service, {.seconds = 15e-3, .attention = 6e-3}).term == DriftTerm::kAttention);

  Service gpu(false);
  for (int i = 0; i < 3000; ++i) {
    gpu.step({.context = 1000});
    gpu.step({.context = 2900, .seconds = 30e-3});
  }
  REQUIRE(gpu.events.size() == 1);
  CHECK(gpu.events[0].term == DriftTerm::kContext);
  CHECK(gpu.events[0].context == doctest::Approx(1950));
}

TEST_CASE("a batch that is slow alone is named") {
  Service service(false);
  for (int i = 0; i < 3000; ++i) {
    service.step({.batch = 1});
    service.step({.batch = 4, .seconds = 40e-3});
  }
  REQUIRE(service.events.size() == 1);
  CHECK(service.events[0].term == DriftTerm::kBatch);
}

TEST_CASE("what no counter explains is computing itself") {
  Service service;
  const DriftEvent event = only_event(service, {.seconds = 20e-3});
  CHECK(event.term == DriftTerm::kNone);
  CHECK(drift_term_name(event.term) == "compute");
  CHECK(event.moved_seconds == 0);
}

TEST_CASE("a term about which the model was wrong all along is not what moved") {
  Service service;  // waits of 4 ms in place of 1 inside the band, then fetches become slow
  service.windows({.cpu_wait = 4e-3}, 10);
  service.windows({.seconds = 14e-3, .link_wait = 5.5e-3, .cpu_wait = 4e-3}, 5);
  REQUIRE(service.events.size() == 1);
  CHECK(service.events[0].term == DriftTerm::kFetch);

  Service never;  // never inside: the profile alone says what is too much
  never.windows({.seconds = 14e-3, .link_wait = 5.5e-3, .cpu_wait = 4e-3}, 5);
  REQUIRE(never.events.size() == 1);
  CHECK(never.events[0].term == DriftTerm::kCpuWaits);
}

TEST_CASE("faster than the band is a drift too, and a return is one line") {
  Service service;
  const DriftEvent event =
      only_event(service, {.seconds = 6e-3, .hits = 200, .fetched = 0, .cpu = 0, .link_wait = 0, .cpu_wait = 0});
  CHECK(event.state == DriftState::kAbove);
  CHECK(event.term == DriftTerm::kHitRate);
  CHECK(event.moved_seconds == doctest::Approx(-4e-3));
  service.windows({}, kWindowsInARow - 1);
  CHECK(service.events.size() == 1);
  service.windows({}, 20);
  REQUIRE(service.events.size() == 2);
  CHECK(service.events[1].state == DriftState::kInside);
  CHECK(service.events[1].term == DriftTerm::kNone);
  CHECK(service.watch.summary().times_left == 1);
  service.windows({.seconds = 30e-3}, 20);
  CHECK(service.events.size() == 3);
  CHECK(service.watch.summary().times_left == 2);
}

TEST_CASE("the edges: beyond the leave factor is out, within the return factor is back, between them nothing changes") {
  const double low = 10e-3 / 0.9;  // of the interval
  Service service;
  service.windows({}, 2);
  service.windows({.seconds = low * kLeaveFactor * 0.999}, 20);
  CHECK(service.events.empty());
  service.windows({.seconds = low * kLeaveFactor * 1.001}, kWindowsInARow);
  CHECK(service.events.size() == 1);
  service.windows({.seconds = low * kReturnFactor * 1.001}, 20);
  CHECK(service.events.size() == 1);
  service.windows({.seconds = low * kReturnFactor * 0.999}, kWindowsInARow);
  CHECK(service.events.size() == 2);
}

TEST_CASE("noise at an edge does not flap") {
  for (const double factor : {kLeaveFactor, kReturnFactor, (kLeaveFactor + kReturnFactor) / 2}) {
    std::mt19937 random(17);
    std::uniform_real_distribution<double> noise(0.97, 1.03);
    Service service;
    service.windows({}, 2);
    for (int i = 0; i < 1000; ++i) service.windows({.seconds = 10e-3 / 0.9 * factor * noise(random)}, 1);
    CHECK(service.events.size() <= 1);
  }
}

TEST_CASE("outside of what was tuned nothing is judged, and it is counted") {
  Service service;
  for (int i = 0; i < 1000; ++i) service.step({.context = 5000, .seconds = 90e-3});
  CHECK(service.events.empty());
  CHECK(service.watch.summary().state == DriftState::kNotJudged);
  CHECK(service.watch.summary().windows == 0);
  CHECK(service.watch.summary().steps_not_judged == 1000);
  // Beside more steps that are judged they do not matter.
  for (int i = 0; i < 1000; ++i) {
    service.step({});
    service.step({});
    service.step({.context = 5000, .seconds = 90e-3});
  }
  CHECK(service.watch.summary().windows > 10);
  CHECK(service.events.empty());
  CHECK(service.watch.summary().state == DriftState::kInside);

  DriftWatch nothing{ExpectedSteps()};
  for (int i = 0; i < 1000; ++i) nothing.add_step(1, 10, 1.0);
  CHECK(!nothing.window_is_full());
}

TEST_CASE("other expectations begin anew") {
  Service service;
  service.windows({.seconds = 30e-3}, 5);
  REQUIRE(service.events.size() == 1);
  service.watch.expect(ExpectedSteps({{1000, 1, step_values(30e-3, 1e-3)}}), service.reading);
  CHECK(service.watch.summary().state == DriftState::kNotJudged);
  CHECK(service.watch.summary().times_left == 1);
  service.windows({.seconds = 30e-3}, 5);
  CHECK(service.watch.summary().state == DriftState::kInside);
  CHECK(service.events.size() == 1);
}
