// The hand-over: a host thread answers with a function of the ids and rows it was given, and what the device reads
// after the wait is compared with the same function of what was sent. Time-out and abandonment by the clock.
#include "tests/device/moe_mailbox.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/ops/activations.h"
#include "tests/device/moe_report.h"

namespace ft::device_test {
namespace {

constexpr double kAnswererSeconds = 20;  // it ends by itself whatever the device does

uint32_t load(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

uint32_t answer_of(int32_t id, const uint32_t* row) {
  return static_cast<uint32_t>(mix64(static_cast<uint64_t>(id) << 32 ^ row[0])) ^ row[127];
}

}  // namespace

Answerer::Answerer(PlanRig& rig, cuda::PinnedBuffer& answers) : rig_(rig), answers_(answers) {
  thread_ = std::thread([this] { answer(); });
}

Answerer::~Answerer() {
  stop_.store(true);
  thread_.join();
}

void Answerer::answer() {
  cuda::CpuMailbox& box = rig_.box();
  uint32_t seen = load(box.answered);  // the device may have posted already
  const int64_t words = activation_words(rig_.shape.hidden);
  for (const double begin = now_seconds(); !stop_.load() && now_seconds() - begin < kAnswererSeconds;) {
    const uint32_t posted = load(box.posted);
    if (posted == seen) continue;
    seen = posted;
    for (int pair = 0; pair < box.tokens * rig_.shape.top_k; ++pair) {
      const int32_t id = rig_.mailbox_ids.as_host<int32_t>()[pair];
      const uint32_t* row = rig_.mailbox_x.as_host<uint32_t>() + pair / rig_.shape.top_k * words;
      if (id >= 0) answers_.as_host<uint32_t>()[pair] = answer_of(id, row);
    }
    std::atomic_ref(box.answered).store(posted, std::memory_order_release);
  }
}

namespace {

// A step of `layers` layers as the engine captures it, without the experts' products.
cuda::Graph capture_step(PlanRig& rig, const cuda::PinnedBuffer& answers, uint32_t* received, uint32_t* step_number) {
  cuda::GraphCapture capture(rig.stream.handle());
  const int64_t pairs = rig.args.tokens * rig.shape.top_k;
  for (int layer = 0; layer < rig.shape.layers; ++layer) {
    rig.args.layer = layer;
    cuda::plan_layer(rig.args, rig.stream.handle());
    cuda::wait_for_cpu(
        {rig.mailbox.as_device<cuda::CpuMailbox>(), rig.args.work.ticket, layer, 2'000'000'000, rig.args.counters},
        rig.stream.handle());
    cuda::copy_to_device(received + layer * pairs, answers.host(), pairs * 4, rig.stream.handle());
  }
  cuda::finish_step(rig.mailbox.as_device<cuda::CpuMailbox>(), step_number, rig.stream.handle());
  return capture.end();
}

// Without slots all pairs go to the CPU in every layer; answers of a layer are overwritten by the next.
void test_round_trip(Report& report) {
  constexpr int kReplays = 100;
  const RigShape shape{6, 64, 0, 4, 8};
  PlanRig rig(shape);
  cuda::PinnedBuffer answers(4 * 8 * 4);
  constexpr int kTokens = 3, kPairs = kTokens * 8;
  auto* received = rig.arena.take<uint32_t>(shape.layers * kPairs);
  auto* step_number = rig.arena.take<uint32_t>(1);
  Random random(4);
  rig.set_ids(random_ids(random, kTokens, shape.top_k, shape.experts), kTokens);
  rig.stream.synchronize();
  const cuda::Graph graph = capture_step(rig, answers, received, step_number);
  std::string difference;
  uint64_t waited_ns = 0;
  {
    const Answerer answerer(rig, answers);
    for (int replay = 0; replay < kReplays && difference.empty(); ++replay) {
      const std::vector<int32_t> ids = random_ids(random, kTokens, shape.top_k, shape.experts);
      rig.set_ids(ids, kTokens);
      graph.launch(rig.stream.handle());
      rig.arena.download();
      for (int i = 0; i < shape.layers * kPairs && difference.empty(); ++i) {
        const int pair = i % kPairs;
        if (ids[static_cast<size_t>(pair)] < 0) continue;
        const uint32_t* row = rig.arena.host(rig.args.x) + pair / shape.top_k * activation_words(shape.hidden);
        const uint32_t want = answer_of(ids[static_cast<size_t>(pair)], row), got = rig.arena.host(received)[i];
        if (got != want) {
          difference =
              text("replay %d, layer %d, pair %d is %08x, should be %08x", replay, i / kPairs, pair, got, want);
        }
      }
      if (difference.empty() && load(rig.box().finished) != static_cast<uint32_t>(replay + 1)) {
        difference = text("finished is %u after %d steps", load(rig.box().finished), replay + 1);
      }
      if (load(rig.box().failed) != 0) difference = text("layer %u got no answer", load(rig.box().failed) - 1);
    }
    waited_ns = rig.arena.host(rig.args.counters)->wait_nanoseconds;
  }
  report.result("hand-over in a replayed graph", difference.empty(),
                difference.empty() ? text("%d steps of %d layers, %lld nodes, %.1f us of waiting a layer", kReplays,
                                          shape.layers, static_cast<long long>(graph.nodes()),
                                          static_cast<double>(waited_ns) * 1e-3 / (kReplays * shape.layers))
                                   : difference);
}

// With slots for everything nothing is posted after the first fetch, and no wait waits.
void test_no_touch(Report& report) {
  const RigShape shape{2, 8, 16, 1, 4};
  PlanRig rig(shape);
  rig.set_ids({1, 3, 5, 7}, 1);
  rig.set_split({0, 1, 2, 3, 4});
  for (int step = 0; step < 3; ++step) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      rig.args.layer = layer;
      cuda::plan_layer(rig.args, rig.stream.handle());
      cuda::wait_for_cpu({rig.args.mailbox.box, rig.args.work.ticket, layer, 2'000'000'000, rig.args.counters},
                         rig.stream.handle());
    }
  }
  rig.arena.download();
  const cuda::StepCounters& counters = *rig.arena.host(rig.args.counters);
  report.result("a layer without CPU experts does not touch the CPU",
                load(rig.box().posted) == 0 && counters.wait_nanoseconds == 0 && counters.hits == 16 &&
                    counters.fetched == 8 && load(rig.box().failed) == 0);
}

void test_time_out(Report& report) {
  constexpr uint64_t kTimeoutNs = 20'000'000;
  PlanRig rig({9, 8, 0, 1, 4});
  rig.set_ids({1, 3, 5, 7}, 1);
  rig.args.layer = 7;
  cuda::plan_layer(rig.args, rig.stream.handle());
  const double begin = now_seconds();
  for (const int layer : {7, 8}) {  // layer 8 comes after the failure: it does not wait
    cuda::wait_for_cpu({rig.args.mailbox.box, rig.args.work.ticket, layer, kTimeoutNs, rig.args.counters},
                       rig.stream.handle());
  }
  rig.arena.download();
  const double seconds = now_seconds() - begin;
  const auto waited_ns = rig.arena.host(rig.args.counters)->wait_nanoseconds;
  report.result("no answer: the step goes on and says which layer",
                load(rig.box().failed) == 8 && waited_ns >= kTimeoutNs && waited_ns < 2 * kTimeoutNs && seconds < 1,
                text("failed %u after %.1f ms", load(rig.box().failed), static_cast<double>(waited_ns) * 1e-6));
}

void test_abandon(Report& report) {
  PlanRig rig({1, 8, 0, 1, 4});
  rig.set_ids({1, 3, 5, 7}, 1);
  cuda::plan_layer(rig.args, rig.stream.handle());
  const double begin = now_seconds();
  cuda::wait_for_cpu({rig.args.mailbox.box, rig.args.work.ticket, 0, 5'000'000'000, rig.args.counters},
                     rig.stream.handle());
  while (now_seconds() - begin < 0.02) std::this_thread::yield();
  const bool waited = !rig.stream.idle();
  std::atomic_ref(rig.box().abandon).store(1, std::memory_order_release);
  rig.stream.synchronize();
  const double seconds = now_seconds() - begin;
  report.result("an abandoned step ends", waited && seconds < 1 && load(rig.box().failed) == 0,
                text("after %.1f ms", seconds * 1e3));
}

}  // namespace

void test_mailbox(Report& report) {
  test_round_trip(report);
  test_no_touch(report);
  test_time_out(report);
  test_abandon(report);
}

}  // namespace ft::device_test
