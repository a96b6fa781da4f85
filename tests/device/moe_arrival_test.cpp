// Experts whose bytes are on their way: gate_up and down of one list of items against the same launches with every blob
// in its slot, bit for bit. Bytes are brought by the launch's own first blocks, by the copier beside it, by the copy
// engine, by nobody (the time limit and abandonment by the clock).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/ops/activations.h"
#include "tests/device/moe_copies.h"
#include "tests/device/moe_report.h"

namespace ft::device_test {
namespace {

struct Ways {  // of the items, in this order; the rest are hits
  int fetched = 0, queued = 0;
};

class ArrivalRig {
 public:
  ArrivalRig(int items, int tokens, cuda::Stream& stream)
      : layout(expert_layout(FormatId::kNvfp4, 1024, 512)),
        item_count(items),
        pairs(items * tokens),
        copies(items, items, layout.bytes, stream),
        arena(16 << 20, stream) {
    copies.units = cuda::blob_units(layout);
    for (int i = 0; i < items; ++i) {
      synthesize_expert(layout, static_cast<uint64_t>(i) + 1, copies.bank.host() + i * layout.bytes);
    }
    items_ = arena.take<cuda::ExpertItem>(items);
    args.layout = layout;
    args.items = items_;
    bounds_ = arena.take<int32_t>(2);
    args.item_begin = bounds_;
    args.item_end = bounds_ + 1;
    args.max_items = items;
    args.max_item_pairs = tokens;
    auto* order = arena.take<int32_t>(pairs);
    for (int i = 0; i < items; ++i) {
      for (int t = 0; t < tokens; ++t) arena.host(order)[i * tokens + t] = t * items + i;
    }
    args.pairs = order;
    args.top_k = items;
    const int64_t words = tokens * activation_words(layout.hidden);
    auto* x = arena.take<uint32_t>(words);
    for (int64_t i = 0; i < words; ++i) arena.host(x)[i] = 0x3f803e00u + static_cast<uint32_t>(i % 97);
    args.x = x;
    args.activated = arena.take<uint32_t>(pairs * activation_words(layout.intermediate));
    args.out = arena.take<float>(pairs * layout.hidden);
    args.out_stride = layout.hidden;
    arena.host(bounds_)[1] = items;
    for (int i = 0; i < items; ++i) order_.push_back(i);
  }

  // Blobs that nobody brings are in their slots already.
  void prepare(const Ways& ways, int missing) {
    copies.set_copies(order_, ways.fetched, 0, ways.queued);
    copies.poison();
    const int tokens = pairs / item_count, coming = ways.fetched + ways.queued;
    for (int i = 0; i < item_count; ++i) {
      cuda::ExpertItem& item = arena.host(items_)[item_count - 1 - i];  // hits first
      std::byte* slot = copies.slot_memory.data() + i * layout.bytes;
      item = {slot, i * tokens, tokens, i < coming + missing ? i : -1};
      if (i < coming + missing) continue;
      cuda::copy_to_device(slot, copies.bank.host() + i * layout.bytes, layout.bytes, copies.stream.handle());
    }
    args.arrivals = {copies.arrived, copies.units, copies.mailbox.as_device<cuda::CpuMailbox>(), 4,
                     CopyRig::kTimeoutNs};
    args.fetch = copies.fetch();
    args.fetch.here = ways.fetched > 0;
    arena.upload();
    copies.stream.synchronize();
  }
  void launch() {
    cuda::expert_gate_up(args, copies.stream.handle());
    cuda::expert_down(args, copies.stream.handle());
  }
  std::vector<float> outputs() {
    arena.download();
    const float* out = arena.host(args.out);
    return {out, out + pairs * layout.hidden};
  }

  ExpertLayout layout;
  int item_count, pairs;
  CopyRig copies;
  Arena arena;
  cuda::ExpertArgs args;

 private:
  cuda::ExpertItem* items_ = nullptr;
  int32_t* bounds_ = nullptr;
  std::vector<int> order_;
};

std::string compare_outputs(const std::vector<float>& got, const std::vector<float>& want) {
  const bool finite = std::all_of(want.begin(), want.end(), [](float value) { return std::isfinite(value); });
  const bool nothing = std::all_of(want.begin(), want.end(), [](float value) { return value == 0; });
  if (!finite || nothing) return "the expected outputs say nothing";
  return std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0 ? "" : "outputs differ";
}

enum class Bringer { kGather, kProxy };

// The launches wait for what comes: `late`: the copier starts only when they spin.
std::string run(ArrivalRig& rig, const Ways& ways, Bringer bringer, cuda::CopyProxy& proxy,
                const std::vector<float>& want) {
  rig.prepare(ways, 0);
  if (bringer == Bringer::kProxy) rig.args.fetch.post = proxy.post(CopyRig::kTimeoutNs);
  rig.args.fetch.pending = rig.copies.word(cuda::kPending);
  if (ways.fetched > 0) {
    rig.copies.write(rig.copies.word(cuda::kPending), static_cast<uint32_t>(ways.fetched) * rig.copies.units.all);
  }
  cuda::Stream side;
  if (ways.queued > 0) {  // resident before its readers, as in a step
    cuda::copy_queued(rig.copies.copier(), side.handle());
    cuda::wait_for_copier(rig.copies.copier(), rig.copies.stream.handle());
  }
  rig.launch();
  if (ways.queued > 0) cuda::close_queue(rig.copies.queue, rig.copies.beside.handle());
  std::string difference = compare_outputs(rig.outputs(), want);
  side.synchronize();
  if (rig.copies.box().failed != 0) difference = text("failed %u", rig.copies.box().failed);
  if (difference.empty() && rig.copies.read(rig.copies.word(cuda::kPending)) != 0) {
    difference = "fetches are still pending";
  }
  return difference;
}

void test_ways(Report& report, int items, int tokens) {
  cuda::Stream stream;
  ArrivalRig rig(items, tokens, stream);
  cuda::CopyProxy proxy(items);
  rig.prepare({}, 0);
  rig.launch();
  const std::vector<float> want = rig.outputs();
  proxy.begin();
  for (const Ways& ways : {Ways{0, 0}, Ways{1, 0}, Ways{items, 0}, Ways{0, 1}, Ways{0, items},
                           Ways{items / 2, items / 2}, Ways{1, items - 1}}) {
    for (const Bringer bringer : {Bringer::kGather, Bringer::kProxy}) {
      if (bringer == Bringer::kProxy && ways.fetched == 0) continue;
      std::string difference;
      for (int round = 0; round < 2 && difference.empty(); ++round) difference = run(rig, ways, bringer, proxy, want);
      report.result(text("%d items, %d tokens: %d fetched by the %s, %d queued", items, tokens, ways.fetched,
                         bringer == Bringer::kProxy ? "copy engine" : "launch", ways.queued),
                    difference.empty(), difference);
    }
  }
  proxy.end();
}

// Parts in the wrong order, by hand: gate_up goes on with its part alone, down waits for the other.
void test_parts(Report& report) {
  cuda::Stream stream;
  ArrivalRig rig(2, 1, stream);
  rig.prepare({}, 0);
  rig.launch();
  const std::vector<float> want = rig.outputs();
  rig.prepare({}, 1);  // item 0 comes from here
  const cuda::BlobUnits& units = rig.copies.units;
  const int64_t bytes = rig.layout.bytes, front = int64_t{units.gate_up - 1} * cuda::kUnitBytes;
  const int64_t last = bytes - cuda::kUnitBytes;
  const auto bring = [&](int64_t begin, int64_t end) {
    cuda::copy_to_device(rig.copies.slot_memory.data() + begin, rig.copies.bank.host() + begin, end - begin,
                         rig.copies.beside.handle());
    rig.copies.beside.synchronize();
  };
  bring(front, last);  // down's units first
  rig.copies.write(rig.copies.arrived + 1, units.all - units.gate_up);
  cuda::Event gate_up_done;
  cuda::expert_gate_up(rig.args, stream.handle());
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  const bool waits = !stream.idle();
  bring(last, bytes);
  bring(0, front);
  rig.copies.write(rig.copies.arrived, units.gate_up);
  stream.synchronize();
  rig.copies.write(rig.copies.arrived + 1, units.all - units.gate_up - 1);
  cuda::expert_down(rig.args, stream.handle());
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  const bool down_waits = !stream.idle();
  rig.copies.write(rig.copies.arrived + 1, cuda::kAllArrived);
  const std::string difference = compare_outputs(rig.outputs(), want);
  report.result("parts that arrive in another order", waits && down_waits && difference.empty(),
                waits ? down_waits ? difference : "down did not wait" : "gate_up did not wait");
}

void test_nobody(Report& report) {
  cuda::Stream stream;
  ArrivalRig rig(8, 1, stream);
  rig.prepare({}, 3);
  rig.args.arrivals.timeout_ns = 20'000'000;
  double begin = now_seconds();
  rig.launch();
  stream.synchronize();
  double seconds = now_seconds() - begin;
  report.result("bytes that nobody brings: the step goes on and says which layer",
                rig.copies.box().failed == 5 && seconds >= 0.02 && seconds < 0.5,
                text("failed %u after %.1f ms", rig.copies.box().failed, seconds * 1e3));
  const bool told = rig.copies.read(rig.copies.arrived) == cuda::kGivenUp;
  rig.prepare({}, 3);
  begin = now_seconds();
  rig.launch();  // it failed before: no waiting
  stream.synchronize();
  seconds = now_seconds() - begin;
  report.result("after a failure nothing waits long", told && seconds < 0.05, text("%.1f ms", seconds * 1e3));
  rig.copies.box().failed = 0;
  rig.prepare({}, 3);
  begin = now_seconds();
  rig.launch();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const bool waits = !stream.idle();
  std::atomic_ref(rig.copies.box().abandon).store(1, std::memory_order_release);
  stream.synchronize();
  seconds = now_seconds() - begin;
  report.result("an abandoned step does not wait for bytes", waits && seconds < 0.5 && rig.copies.box().failed == 0,
                text("after %.1f ms", seconds * 1e3));
}

}  // namespace

void test_arrivals(Report& report) {
  test_ways(report, 8, 1);
  test_ways(report, 8, 8);
  test_ways(report, 64, 2);
  test_parts(report);
  test_nobody(report);
}

}  // namespace ft::device_test
