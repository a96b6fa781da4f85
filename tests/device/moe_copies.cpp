#include "tests/device/moe_copies.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/cuda/copy_proxy.h"
#include "tests/device/moe_report.h"

namespace ft::device_test {
namespace {

constexpr uint64_t kTimeoutNs = 2'000'000'000;

// Word i of the bank, and never four times kPoison.
uint32_t bank_word(int64_t i) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(i))) & 0x7fffffffu; }

using Copier = void (*)(CopyRig& rig, cuda::CopyProxy* proxy, bool promotions, int blocks, int repeat);

void copy_by_gather(CopyRig& rig, cuda::CopyProxy*, bool promotions, int blocks, int repeat) {
  cuda::gather({rig.work, promotions, rig.blob_bytes, blocks, repeat}, rig.stream.handle());
}

void copy_by_proxy(CopyRig& rig, cuda::CopyProxy* proxy, bool promotions, int, int repeat) {
  for (int i = 0; i < repeat; ++i) {
    proxy->post(rig.work, promotions, rig.blob_bytes, kTimeoutNs, rig.stream.handle());
  }
  proxy->wait(promotions, kTimeoutNs, rig.stream.handle());
}

struct Round {
  int fetches, promotions, blocks, repeat;
};

// Fetches, compares, then promotions, compares again.
std::string run_round(CopyRig& rig, cuda::CopyProxy* proxy, Copier copy, const Round& round, Random& random) {
  const std::vector<int> order = shuffled(random, rig.slots);
  rig.set_copies(order, round.fetches, round.promotions);
  rig.poison();
  copy(rig, proxy, false, round.blocks, round.repeat);
  std::string difference = rig.compare(order, 0, round.fetches);
  if (!difference.empty()) return "fetches: " + difference;
  rig.poison();
  copy(rig, proxy, true, round.blocks, round.repeat);
  difference = rig.compare(order, round.fetches, round.promotions);
  return difference.empty() ? "" : "promotions: " + difference;
}

void test_copier(Report& report, const std::string& mechanism, Copier copy) {
  cuda::Stream stream;
  cuda::CopyProxy proxy(64);
  proxy.begin();
  struct Case {
    int64_t blob_bytes;
    std::vector<Round> rounds;
  };
  const std::vector<Case> cases = {
      {4096, {{0, 0, 0, 1}, {1, 0, 0, 1}, {0, 1, 0, 1}, {2, 3, 1, 1}, {7, 5, 3, 2}, {64, 0, 0, 1}, {31, 33, 128, 1}}},
      {3 * 4096, {{1, 1, 64, 1}, {3, 2, 5, 3}, {5, 8, 16, 1}, {17, 1, 7, 1}, {40, 24, 0, 1}}},
      {661 * 4096, {{1, 0, 64, 1}, {4, 1, 64, 2}, {8, 8, 0, 1}, {3, 0, 132, 1}}},  // 2.7 MB
  };
  for (const Case& c : cases) {
    CopyRig rig(64, 64, c.blob_bytes, stream);
    Random random(3);
    std::string difference;
    for (const Round& round : c.rounds) {
      if (difference.empty()) difference = run_round(rig, &proxy, copy, round, random);
      if (!difference.empty() && difference.find("(round") == std::string::npos) {
        difference += text(" (round of %d fetches, %d promotions, %d blocks, repeat %d)", round.fetches,
                           round.promotions, round.blocks, round.repeat);
      }
    }
    report.result(mechanism + text(", blobs of %lld bytes", static_cast<long long>(c.blob_bytes)), difference.empty(),
                  difference);
  }
  try {
    proxy.end();
    proxy.check();
  } catch (const Error& error) {
    report.result(mechanism + ", the proxy's state", false, error.what());
  }
}

// One graph with a post and a wait, replayed: what is copied is read from device memory each time.
void test_proxy_graph(Report& report) {
  cuda::Stream stream;
  cuda::CopyProxy proxy(16);
  CopyRig rig(16, 16, 3 * 4096, stream);
  stream.synchronize();
  cuda::GraphCapture capture(stream.handle());
  copy_by_proxy(rig, &proxy, false, 0, 1);
  const cuda::Graph graph = capture.end();
  Random random(8);
  std::string difference;
  for (int replay = 0; replay < 200 && difference.empty(); ++replay) {
    const std::vector<int> order = shuffled(random, rig.slots);
    const int count = replay % 17;
    rig.set_copies(order, count, 0);
    rig.poison();
    proxy.begin();
    graph.launch(stream.handle());
    difference = rig.compare(order, 0, count);
    proxy.end();
    if (!difference.empty()) difference += text(" (replay %d of %d copies)", replay, count);
  }
  report.result("copy engine, 200 replays of a graph", difference.empty(),
                difference.empty() ? text("flag by %s, %lld nodes",
                                          proxy.writes_flag_by_stream_operation() ? "stream operation" : "copy",
                                          static_cast<long long>(graph.nodes()))
                                   : difference);
}

// Nobody began: the thread sleeps, the wait must end by itself and the error must be told.
void test_proxy_timeout(Report& report) {
  constexpr uint64_t kShortNs = 50'000'000;
  cuda::Stream stream;
  CopyRig rig(2, 2, 4096, stream);
  cuda::CopyProxy proxy(2);
  rig.set_copies({0, 1}, 2, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread has started and gone to sleep
  const double begin = now_seconds();
  proxy.post(rig.work, false, rig.blob_bytes, kShortNs, stream.handle());
  proxy.wait(false, kShortNs, stream.handle());
  proxy.wait(false, kTimeoutNs, stream.handle());  // it failed before: no waiting
  stream.synchronize();
  const double seconds = now_seconds() - begin;
  std::string message = "no error";
  try {
    proxy.check();
  } catch (const Error& error) {
    message = error.what();
  }
  report.result("copy engine, a thread that sleeps is an error in time",
                seconds >= 0.05 && seconds < 1 && message.find("in time") != std::string::npos,
                text("%.3f s: ", seconds) + message);
}

}  // namespace

CopyRig::CopyRig(int blobs, int slot_count, int64_t bytes, cuda::Stream& s)
    : blob_bytes(bytes),
      slots(slot_count),
      stream(s),
      bank(blobs * bytes),
      mirror(slot_count * bytes),
      slot_memory(slot_count * bytes),
      arena(65536, s) {
  auto* words = bank.as_host<uint32_t>();
  for (int64_t i = 0; i < bank.bytes() / 4; ++i) words[i] = bank_word(i);
  work.copy_source = arena.take<const std::byte*>(slots);
  work.copy_target = arena.take<std::byte*>(slots);
  work.copy_counts = arena.take<int32_t>(2);
}

void CopyRig::set_copies(const std::vector<int>& blob_of_slot, int fetches, int promotions) {
  FT_CHECK(fetches + promotions <= slots);
  stream.synchronize();
  for (int slot = 0; slot < fetches + promotions; ++slot) {
    arena.host(work.copy_source)[slot] = bank.device() + blob_of_slot[static_cast<size_t>(slot)] * blob_bytes;
    arena.host(work.copy_target)[slot] = slot_memory.data() + slot * blob_bytes;
  }
  arena.host(work.copy_counts)[0] = fetches;
  arena.host(work.copy_counts)[1] = promotions;
  arena.upload();
}

void CopyRig::poison() {
  stream.synchronize();
  std::memset(mirror.host(), kPoison, static_cast<size_t>(mirror.bytes()));
  cuda::copy_to_device(slot_memory.data(), mirror.host(), mirror.bytes(), stream.handle());
}

std::string CopyRig::compare(const std::vector<int>& blob_of_slot, int first, int count) {
  cuda::copy_to_host(mirror.host(), slot_memory.data(), mirror.bytes(), stream.handle());
  stream.synchronize();
  const std::vector<uint8_t> poisoned(static_cast<size_t>(blob_bytes), kPoison);
  for (int slot = 0; slot < slots; ++slot) {
    const bool copied = slot >= first && slot < first + count;
    const auto* got = reinterpret_cast<const uint8_t*>(mirror.host() + slot * blob_bytes);
    const auto* want =
        copied ? reinterpret_cast<const uint8_t*>(bank.host() + blob_of_slot[static_cast<size_t>(slot)] * blob_bytes)
               : poisoned.data();
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
  test_copier(report, "gather", copy_by_gather);
  test_copier(report, "copy engine", copy_by_proxy);
  test_proxy_graph(report);
  test_proxy_timeout(report);
}

}  // namespace ft::device_test
