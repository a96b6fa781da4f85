// Times of the parts of a decode step, next to a plain copy in the same run. Prints a table; judges nothing.
#include <algorithm>

#include "kernels/base/clock.h"
#include "kernels/cuda/copy_proxy.h"
#include "tests/device/moe_copies.h"
#include "tests/device/moe_mailbox.h"
#include "tests/device/moe_report.h"

namespace ft::device_test {
namespace {

constexpr uint64_t kTimeoutNs = 2'000'000'000;
constexpr int kRounds = 7;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median seconds of f() on the stream, the first one discarded.
template <class F>
double stream_seconds(cuda::Stream& stream, F&& f) {
  cuda::Event begin(true), end(true);
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    begin.record(stream.handle());
    f();
    end.record(stream.handle());
    stream.synchronize();
    if (round > 0) seconds.push_back(end.seconds_since(begin));
  }
  return median(seconds);
}

// Median seconds of one of `count` f(i) in a graph.
template <class F>
double node_seconds(cuda::Stream& stream, int count, F&& f) {
  stream.synchronize();
  cuda::GraphCapture capture(stream.handle());
  for (int i = 0; i < count; ++i) f(i);
  const cuda::Graph graph = capture.end();
  return stream_seconds(stream, [&] { graph.launch(stream.handle()); }) / count;
}

double plain_copy_gbps(cuda::Stream& stream) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const cuda::PinnedBuffer from(kBytes);
  const cuda::DeviceBuffer to(kBytes);
  const double seconds =
      stream_seconds(stream, [&] { cuda::copy_to_device(to.data(), from.host(), kBytes, stream.handle()); });
  return static_cast<double>(kBytes) / seconds * 1e-9;
}

void bench_gather(cuda::Stream& stream) {
  const double plain = plain_copy_gbps(stream);
  const cuda::LinkState link = cuda::link_state(0);
  std::printf("plain copy to the device, 256 MiB: %.1f GB/s (link now: generation %d x%d)\n", plain, link.generation,
              link.width);
  std::printf("gather GB/s          blocks:     16     32     64    128   repeat 4  copy engine  best / plain\n");
  for (const auto& [blob_bytes, counts] :
       std::vector<std::pair<int64_t, std::vector<int>>>{{661 * 4096, {1, 2, 4, 8, 32}}, {3418 * 4096, {1, 8}}}) {
    CopyRig rig(32, counts.back(), blob_bytes, stream);
    cuda::CopyProxy proxy(32);
    Random random(9);
    for (const int count : counts) {
      rig.set_copies(shuffled(random, 32), count);
      const double bytes = static_cast<double>(blob_bytes) * count;
      const auto gbps = [&](int blocks, int repeat) {
        const double seconds =
            stream_seconds(stream, [&] { cuda::gather(rig.fetch(repeat), blocks, stream.handle()); });
        return bytes * repeat / seconds * 1e-9;
      };
      std::printf("%2d blobs of %4.1f MB         ", count, static_cast<double>(blob_bytes) * 1e-6);
      double best = 0;
      for (const int blocks : {16, 32, 64, 128}) {
        const double value = gbps(blocks, 1);
        best = std::max(best, value);
        std::printf(" %6.1f", value);
      }
      proxy.begin();
      const double seconds = stream_seconds(stream, [&] {
        cuda::fill_zero(rig.arrived, int64_t{cuda::kArrivalParts} * rig.slots * 4, stream.handle());
        cuda::gather(rig.fetch(1, &proxy), 1, stream.handle());
        cuda::await_copies(rig.fetch(), kTimeoutNs, stream.handle());
      });
      proxy.end();
      std::printf(" %10.1f %12.1f %13.2f\n", gbps(64, 4), bytes / seconds * 1e-9, best / plain);
      std::fflush(stdout);
    }
  }
}

void bench_hand_over() {
  const RigShape shape{48, 128, 0, 1, 8, 2048};
  PlanRig rig(shape);
  cuda::PinnedBuffer answers(8 * 4);
  Random random(1);
  rig.set_ids(random_ids(random, 1, 8, 128), 1);
  const auto layer = [&](int index) {
    rig.args.layer = index;
    cuda::plan_layer(rig.args, rig.stream.handle());
  };
  const double plan = node_seconds(rig.stream, 48, layer);
  const Answerer answerer(rig, answers);
  const double both = node_seconds(rig.stream, 48, [&](int index) {
    layer(index);
    cuda::wait_for_cpu({rig.args.mailbox.box, rig.args.work.ticket, index, kTimeoutNs, rig.args.counters},
                       rig.stream.handle());
  });
  std::printf("plan and post, 8 experts on the CPU, 4 KiB of activations: %.1f us; with the answer's wait: %.1f us\n",
              plan * 1e6, both * 1e6);
  std::printf("round trip (post -> host -> wait): %.1f us\n", (both - plan) * 1e6);
  if (rig.box().failed != 0) std::printf("FAILED: layer %u got no answer\n", rig.box().failed - 1);
}

// What a plan costs by what it has to do: all hits, all misses fetched. Qwen3-30B-A3B: 48 x 128 experts, top 8.
void bench_plan(int slots, int tokens, int half_life_log2 = 0, int predicted = 0) {
  const RigShape shape{48, 128, slots, tokens, 8, 2048, 4096, half_life_log2, predicted};
  PlanRig rig(shape);
  std::vector<int> all;
  for (int m = 0; m <= rig.max_distinct(); ++m) all.push_back(m);
  rig.set_split(all);
  Random random(2);
  const int kSets = 16;  // replays of one graph alternate, so that experts come and go
  std::vector<std::vector<int32_t>> ids;
  for (int i = 0; i < kSets; ++i) ids.push_back(random_ids(random, tokens, 8, 128));
  rig.set_ids(ids[0], tokens);
  if (predicted > 0) rig.set_predicted(random_ids(random, tokens, predicted, 128), 4);
  rig.stream.synchronize();
  const auto step = [&](int index) {
    rig.args.layer = index;
    cuda::plan_layer(rig.args, rig.stream.handle());
  };
  int turn = 0;
  cuda::GraphCapture capture(rig.stream.handle());
  for (int i = 0; i < 48; ++i) step(i);
  const cuda::Graph graph = capture.end();
  const auto seconds_of = [&](bool change) {
    cuda::Event begin(true), end(true);
    std::vector<double> seconds;
    for (int round = 0; round < 2 * kSets; ++round) {
      if (change) rig.set_ids(ids[static_cast<size_t>(turn++ % kSets)], tokens);
      rig.begin_step();
      begin.record(rig.stream.handle());
      graph.launch(rig.stream.handle());
      end.record(rig.stream.handle());
      rig.stream.synchronize();
      seconds.push_back(end.seconds_since(begin) / 48);
    }
    return median(seconds) * 1e6;
  };
  const double hits = seconds_of(false);
  rig.arena.download();
  const cuda::StepCounters before = *rig.arena.host(rig.args.counters);
  const double mixed = seconds_of(true);
  rig.arena.download();
  const cuda::StepCounters& after = *rig.arena.host(rig.args.counters);
  const auto fetched = static_cast<double>(after.fetched - before.fetched);
  std::printf(
      "plan, %d slots, batch %d, half-life 2^%d, %d predicted: all hits %.2f us; changing experts %.2f us (%.1f misses "
      "a layer)\n",
      slots, tokens, half_life_log2, predicted, hits, mixed, fetched / (2 * kSets * 48));
}

void bench_nodes() {
  PlanRig rig({1, 8, 8, 1, 4});
  const double empty = node_seconds(rig.stream, 200, [&](int) {
    cuda::wait_for_cpu({rig.args.mailbox.box, rig.args.work.ticket, 0, kTimeoutNs, rig.args.counters},
                       rig.stream.handle());
  });
  std::printf("a node that has nothing to do: wait %.2f us\n", empty * 1e6);
}

}  // namespace

void bench_moe() {
  cuda::Stream stream;
  bench_nodes();
  for (const auto& [slots, tokens] : {std::pair{1500, 1}, {1500, 8}, {6144, 1}, {512, 8}}) bench_plan(slots, tokens);
  bench_plan(1500, 1, 14);
  bench_plan(1500, 1, 14, 10);
  bench_plan(1500, 8, 14, 10);
  bench_hand_over();
  bench_gather(stream);
}

}  // namespace ft::device_test
