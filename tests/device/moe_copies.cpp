// Copies of blobs by every way that brings them: bytes and arrival counters against the bank, what is not copied
// against poison. The copier: order of queues, yielding, ends. Time-outs by the clock.
#include "tests/device/moe_copies.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "tests/device/moe_report.h"

namespace ft::device_test {
namespace {

// Word i of the bank, and never four times kPoison.
uint32_t bank_word(int64_t i) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(i))) & 0x7fffffffu; }

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Polls for at most a second.
bool becomes_true(const std::function<bool()>& condition) {
  for (const double begin = now_seconds(); now_seconds() - begin < 1;) {
    if (condition()) return true;
    sleep_ms(1);
  }
  return condition();
}

struct Round {
  int fetches, blocks, repeat;
};

void copy_by(CopyRig& rig, const cuda::CopyProxy* proxy, const Round& round) {
  const cuda::Fetch fetch = rig.fetch(round.repeat, proxy);
  cuda::gather(fetch, round.blocks, rig.stream.handle());
  if (proxy != nullptr) cuda::await_copies(fetch, CopyRig::kTimeoutNs, rig.stream.handle());
}

void test_fetches(Report& report, bool by_proxy) {
  cuda::Stream stream;
  cuda::CopyProxy proxy(64);
  proxy.begin();
  struct Case {
    int64_t blob_bytes;
    std::vector<Round> rounds;
  };
  const std::vector<Case> cases = {
      {4096, {{0, 1, 1}, {1, 1, 1}, {1, 64, 1}, {5, 1, 1}, {12, 3, 2}, {64, 64, 1}, {33, 128, 1}}},
      {3 * 4096, {{1, 64, 1}, {5, 5, 3}, {13, 16, 1}, {18, 7, 1}, {64, 64, 1}}},
      {661 * 4096, {{1, 64, 1}, {5, 64, 2}, {16, 64, 1}, {3, 132, 1}}},  // 2.7 MB
  };
  for (const Case& c : cases) {
    CopyRig rig(64, 64, c.blob_bytes, stream);
    Random random(3);
    std::string difference;
    for (const Round& round : c.rounds) {
      const std::vector<int> order = shuffled(random, rig.slots);
      rig.set_copies(order, round.fetches);
      rig.poison();
      copy_by(rig, by_proxy ? &proxy : nullptr, round);
      difference = rig.compare(order, 0, round.fetches);
      if (difference.empty()) continue;
      difference += text(" (round of %d copies, %d blocks, repeat %d)", round.fetches, round.blocks, round.repeat);
      break;
    }
    report.result(
        (by_proxy ? "copy engine" : "gather") + text(", blobs of %lld bytes", static_cast<long long>(c.blob_bytes)),
        difference.empty(), difference);
  }
  try {
    proxy.end();
    proxy.check();
  } catch (const Error& error) {
    report.result("the copy engine's state", false, error.what());
  }
}

// One graph with a post and a wait, replayed: what is copied is read from device memory each time.
void test_proxy_graph(Report& report) {
  cuda::Stream stream;
  cuda::CopyProxy proxy(16);
  CopyRig rig(16, 16, 3 * 4096, stream);
  stream.synchronize();
  cuda::GraphCapture capture(stream.handle());
  copy_by(rig, &proxy, {16, 1, 1});
  const cuda::Graph graph = capture.end();
  Random random(8);
  std::string difference;
  for (int replay = 0; replay < 200 && difference.empty(); ++replay) {
    const std::vector<int> order = shuffled(random, rig.slots);
    const int count = replay % 17;
    rig.set_copies(order, count);
    rig.poison();
    proxy.begin();
    rig.write(rig.word(cuda::kPending), count > 0 ? 5 : 0);
    graph.launch(stream.handle());
    difference = rig.compare(order, 0, count);
    if (difference.empty() && rig.read(rig.word(cuda::kPending)) != 0) difference = "fetches are still pending";
    proxy.end();
    if (!difference.empty()) difference += text(" (replay %d of %d copies)", replay, count);
  }
  report.result("copy engine, 200 replays of a graph", difference.empty(),
                difference.empty() ? text("signals by %s, %lld nodes",
                                          proxy.signals_by_stream_operation() ? "stream operations" : "copies",
                                          static_cast<long long>(graph.nodes()))
                                   : difference);
}

// Nobody began: the thread sleeps and reads no list. The post that finds none free must end by itself, and the error be
// told; the waits end by theirs.
void test_proxy_timeout(Report& report) {
  constexpr uint64_t kShortNs = 50'000'000;
  cuda::Stream stream;
  CopyRig rig(2, 2, 4096, stream);
  cuda::CopyProxy proxy(2);
  rig.set_copies({0, 1}, 2);
  sleep_ms(20);  // the thread has started and gone to sleep
  cuda::Fetch fetch = rig.fetch();
  fetch.post = proxy.post(kShortNs);
  const double begin = now_seconds();
  for (uint32_t i = 0; i < cuda::kCopyLists + 2; ++i) cuda::gather(fetch, 1, stream.handle());
  cuda::await_copies(fetch, kShortNs, stream.handle());
  stream.synchronize();
  const double seconds = now_seconds() - begin;
  std::string message = "no error";
  try {
    proxy.check();
  } catch (const Error& error) {
    message = error.what();
  }
  report.result("copy engine, a thread that sleeps is an error in time",
                seconds >= 0.1 && seconds < 1 && message.find("in time") != std::string::npos,
                text("%.3f s: ", seconds) + message);
}

std::string queue_is_zero(CopyRig& rig) {
  for (int word = 0; word < cuda::kLinkWords; ++word) {
    if (rig.read(rig.word(word)) != 0) return text("word %d of the queue is not zero", word);
  }
  return {};
}

// Everything queued before it starts, or while it runs; blobs of several sizes of line.
void test_copier(Report& report) {
  cuda::Stream stream;
  Random random(5);
  struct Case {
    int64_t blob_bytes;
    int promotions, prefetches, blocks, repeat;
    bool drain;
  };
  for (const Case& c :
       {Case{4096, 0, 0, 8, 1, false}, Case{4096, 3, 0, 8, 1, false}, Case{3 * 4096, 20, 12, 3, 1, false},
        Case{661 * 4096, 5, 7, 8, 1, false}, Case{661 * 4096, 2, 1, 8, 3, false}, Case{3 * 4096, 9, 4, 8, 1, true}}) {
    CopyRig rig(32, 32, c.blob_bytes, stream);
    const std::vector<int> order = shuffled(random, rig.slots);
    rig.set_copies(order, 0, c.promotions, c.prefetches);
    rig.poison();
    cuda::CopierArgs args = rig.copier();
    args.blocks = c.blocks;
    args.repeat = c.repeat;
    args.drain = c.drain;
    if (c.drain) rig.write(rig.word(cuda::kPending), 4);  // a drain does not look at it
    // While it runs: the counts as they are now come half of it later.
    const uint32_t queued[] = {static_cast<uint32_t>(c.promotions), static_cast<uint32_t>(c.prefetches)};
    if (!c.drain) {
      for (const cuda::LinkKind kind : {cuda::kPromotion, cuda::kPrefetch})
        rig.write(rig.word(cuda::queued_word(kind)), queued[kind] / 2);
    }
    cuda::copy_queued(args, stream.handle());
    if (!c.drain) {
      sleep_ms(1);
      for (const cuda::LinkKind kind : {cuda::kPromotion, cuda::kPrefetch})
        rig.write(rig.word(cuda::queued_word(kind)), queued[kind]);
      cuda::close_queue(rig.queue, rig.beside.handle());
    }
    std::string difference = rig.compare(order, 0, c.promotions + c.prefetches);
    if (difference.empty()) difference = queue_is_zero(rig);
    report.result(text("copier, %d promotions and %d prefetches of %lld bytes%s", c.promotions, c.prefetches,
                       static_cast<long long>(c.blob_bytes), c.drain ? ", drained" : ""),
                  difference.empty(), difference);
  }
}

// While fetches are pending nothing is copied; prefetches come before promotions.
void test_yield(Report& report) {
  cuda::Stream stream;
  CopyRig rig(8, 8, 661 * 4096, stream);
  const std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
  rig.set_copies(order, 0, 4, 4);
  rig.poison();
  rig.write(rig.word(cuda::kPending), 1);
  cuda::copy_queued(rig.copier(), stream.handle());
  cuda::wait_for_copier(rig.copier(), rig.beside.handle());
  const bool started = rig.read(rig.word(cuda::kStarted)) == cuda::kCopierBlocks;
  sleep_ms(5);
  bool waits = true;
  for (int slot = 0; slot < 8; ++slot) waits = waits && rig.read(rig.arrived + cuda::kArrivalParts * slot) == 0;
  rig.write(rig.word(cuda::kPending), 0);
  cuda::close_queue(rig.queue, rig.beside.handle());
  const std::string difference = rig.compare(order, 0, 8);
  report.result("copier, yields to fetches", started && waits && difference.empty(),
                started ? waits ? difference : "copied while fetches were pending" : "did not start");
}

// Slowed, so that the order can be seen: the prefetch is complete while promotions are not.
void test_order(Report& report) {
  cuda::Stream stream;
  CopyRig rig(2, 2, 661 * 4096, stream);
  rig.set_copies({0, 1}, 0, 1, 1);  // slot 1 is the prefetch
  rig.poison();
  cuda::CopierArgs args = rig.copier();
  args.repeat = 400;
  cuda::copy_queued(args, stream.handle());
  const uint32_t* prefetch = rig.arrived + cuda::kArrivalParts;
  uint32_t promoted = 0;
  const bool complete = becomes_true([&] {
    promoted = rig.read(rig.arrived) + rig.read(rig.arrived + 1);
    return rig.read(prefetch) + rig.read(prefetch + 1) == rig.units.all;
  });
  cuda::close_queue(rig.queue, rig.beside.handle());
  const std::string difference = rig.compare({0, 1}, 0, 2);
  report.result("copier, prefetches first", complete && promoted < rig.units.all / 2 && difference.empty(),
                text("%u of %u units promoted ", promoted, rig.units.all) + difference);
}

void test_copier_ends(Report& report) {
  cuda::Stream stream;
  CopyRig rig(2, 2, 4096, stream);
  rig.set_copies({0, 1}, 0, 1, 1);
  cuda::CopierArgs args = rig.copier();
  rig.write(rig.word(cuda::kPending), 1);  // and nobody clears it
  args.timeout_ns = 20'000'000;
  double begin = now_seconds();
  cuda::copy_queued(args, stream.handle());
  stream.synchronize();
  double seconds = now_seconds() - begin;
  std::string difference = queue_is_zero(rig);
  report.result("copier, leaves after its time and says so",
                seconds >= 0.02 && seconds < 1 && rig.box().failed == cuda::kCopierLeft && difference.empty(),
                text("%.3f s, failed %u ", seconds, rig.box().failed) + difference);
  rig.box().failed = 0;
  rig.write(rig.word(cuda::kPending), 1);
  begin = now_seconds();
  cuda::copy_queued(rig.copier(), stream.handle());
  sleep_ms(5);
  const bool runs = !stream.idle();
  std::atomic_ref(rig.box().abandon).store(1, std::memory_order_release);
  stream.synchronize();
  seconds = now_seconds() - begin;
  difference = queue_is_zero(rig);
  report.result("copier, leaves an abandoned step", runs && seconds < 1 && rig.box().failed == 0 && difference.empty(),
                text("%.3f s ", seconds) + difference);
}

}  // namespace

CopyRig::CopyRig(int blobs, int slot_count, int64_t bytes, cuda::Stream& s)
    : blob_bytes(bytes),
      slots(slot_count),
      stream(s),
      bank(blobs * bytes),
      mirror(slot_count * bytes),
      mailbox(sizeof(cuda::CpuMailbox)),
      one_word(256),
      slot_memory(slot_count * bytes),
      arena(65536, s) {
  auto* words = bank.as_host<uint32_t>();
  for (int64_t i = 0; i < bank.bytes() / 4; ++i) words[i] = bank_word(i);
  units.all = static_cast<uint32_t>(bytes / cuda::kUnitBytes);
  units.gate_up = std::max(1u, units.all * 2 / 3);
  list = arena.take<cuda::Copy>(slots);
  arrived = arena.take<uint32_t>(cuda::kArrivalParts * slots);
  count = arena.take<int32_t>(1);
  queue.words = arena.take<uint32_t>(cuda::kLinkWords);
}

void CopyRig::set_copies(const std::vector<int>& blob_of_slot, int fetches, int promotions, int prefetches) {
  FT_CHECK(fetches + promotions + prefetches <= slots);
  stream.synchronize();
  for (int slot = 0; slot < fetches + promotions + prefetches; ++slot) {
    arena.host(list)[slot] = {bank.device() + blob_of_slot[static_cast<size_t>(slot)] * blob_bytes,
                              slot_memory.data() + slot * blob_bytes, arrived + cuda::kArrivalParts * slot, units};
  }
  std::fill_n(arena.host(arrived), cuda::kArrivalParts * slots, 0u);
  *arena.host(count) = fetches;
  queue.copies[cuda::kPromotion] = list + fetches;
  queue.copies[cuda::kPrefetch] = list + fetches + promotions;
  std::fill_n(arena.host(queue.words), static_cast<int>(cuda::kLinkWords), 0u);
  arena.host(queue.words)[cuda::queued_word(cuda::kPromotion)] = static_cast<uint32_t>(promotions);
  arena.host(queue.words)[cuda::queued_word(cuda::kPrefetch)] = static_cast<uint32_t>(prefetches);
  arena.upload();
  stream.synchronize();
}

void CopyRig::poison() {
  stream.synchronize();
  std::memset(mirror.host(), kPoison, static_cast<size_t>(mirror.bytes()));
  cuda::copy_to_device(slot_memory.data(), mirror.host(), mirror.bytes(), stream.handle());
  stream.synchronize();
}

cuda::Fetch CopyRig::fetch(int repeat, const cuda::CopyProxy* proxy) const {
  cuda::Fetch fetch;
  fetch.copies = list;
  fetch.count = count;
  fetch.repeat = repeat;
  if (proxy == nullptr) return fetch;
  fetch.post = proxy->post(kTimeoutNs);
  fetch.pending = queue.words + cuda::kPending;
  return fetch;
}

cuda::CopierArgs CopyRig::copier() const {
  return {.queue = queue, .box = mailbox.as_device<cuda::CpuMailbox>(), .timeout_ns = kTimeoutNs};
}

uint32_t CopyRig::read(const uint32_t* device) {
  cuda::copy_to_host(one_word.host(), device, sizeof(uint32_t), beside.handle());
  beside.synchronize();
  return *one_word.as_host<uint32_t>();
}

void CopyRig::write(uint32_t* device, uint32_t value) {
  *one_word.as_host<uint32_t>() = value;
  cuda::copy_to_device(device, one_word.host(), sizeof value, beside.handle());
  beside.synchronize();
}

std::string CopyRig::compare(const std::vector<int>& blob_of_slot, int first, int copies) {
  cuda::copy_to_host(mirror.host(), slot_memory.data(), mirror.bytes(), stream.handle());
  arena.download();
  const std::vector<uint8_t> poisoned(static_cast<size_t>(blob_bytes), kPoison);
  for (int slot = 0; slot < slots; ++slot) {
    const bool copied = slot >= first && slot < first + copies;
    const auto* got = reinterpret_cast<const uint8_t*>(mirror.host() + slot * blob_bytes);
    const auto* want =
        copied ? reinterpret_cast<const uint8_t*>(bank.host() + blob_of_slot[static_cast<size_t>(slot)] * blob_bytes)
               : poisoned.data();
    const uint32_t* there = arena.host(arrived) + cuda::kArrivalParts * slot;
    const uint32_t wanted[] = {copied ? units.gate_up : 0u, copied ? units.all - units.gate_up : 0u};
    for (int part = 0; part < cuda::kArrivalParts; ++part) {
      if (there[part] == wanted[part] || (copied && there[part] == cuda::kAllArrived)) continue;
      return text("slot %d has %u units of part %d, should have %u", slot, there[part], part, wanted[part]);
    }
    if (std::memcmp(got, want, static_cast<size_t>(blob_bytes)) == 0) continue;
    const int64_t at = std::mismatch(got, got + blob_bytes, want).first - got;
    return text("slot %d (%s) byte %lld is %02x, should be %02x", slot, copied ? "copied" : "not copied",
                static_cast<long long>(at), got[at], want[at]);
  }
  return {};
}

std::vector<int> shuffled(Random& random, int count) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

void test_copies(Report& report) {
  test_fetches(report, false);
  test_fetches(report, true);
  test_proxy_graph(report);
  test_proxy_timeout(report);
  test_copier(report);
  test_yield(report);
  test_order(report);
  test_copier_ends(report);
}

}  // namespace ft::device_test
