// Owners of kernels/cuda/device.h: what they hold, what they say when something is refused, graphs, registered memory.
#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/worker_pool.h"
#include "tests/device/moe_copies.h"
#include "tests/device/moe_report.h"

namespace ft::device_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Empty: it threw an Error with these words. Otherwise what happened instead.
std::string throws(const std::function<void()>& f, const std::string& words) {
  try {
    f();
  } catch (const Error& error) {
    return std::string(error.what()).find(words) != std::string::npos ? "" : std::string("it said: ") + error.what();
  }
  return "no error";
}

void test_facts(Report& report) {
  const cuda::DeviceFacts facts = cuda::device_facts(0);
  bool uuid_ok = facts.uuid.size() == 40 && facts.uuid.rfind("GPU-", 0) == 0;
  for (const size_t dash : {size_t{12}, size_t{17}, size_t{22}, size_t{27}})
    uuid_ok = uuid_ok && facts.uuid[dash] == '-';
  report.result("device facts",
                uuid_ok && !facts.name.empty() && facts.compute_capability >= 80 && facts.multiprocessors > 0 &&
                    facts.free_bytes > 0 && facts.free_bytes <= facts.memory_bytes && facts.l2_bytes > 0,
                text("%s, sm %d, %d multiprocessors, %lld of %lld MiB free, L2 %lld MiB", facts.name.c_str(),
                     facts.compute_capability, facts.multiprocessors, static_cast<long long>(facts.free_bytes / kMiB),
                     static_cast<long long>(facts.memory_bytes / kMiB), static_cast<long long>(facts.l2_bytes / kMiB)));
  const cuda::LinkState link = cuda::link_state(0);
  const std::string seen =
      text("driver %s, link now %d x%d, at most %d x%d, uuid of %zu characters", facts.driver.c_str(), link.generation,
           link.width, facts.link_generation_max, facts.link_width_max, facts.uuid.size());
  if (facts.driver.empty()) {
    report.skip("driver and link by NVML", "libnvidia-ml.so.1 is not there");
  } else {
    report.result("driver and link by NVML", link.generation <= facts.link_generation_max, seen);
  }
}

void test_refusals(Report& report) {
  std::string problem = throws([] { cuda::use_device(99); }, "allowed: 0 to");
  report.result("a device that is not there", problem.empty(), problem);
  problem = throws([] { const cuda::DeviceBuffer buffer(int64_t{1} << 50); }, "are free");
  report.result("more device memory than there is", problem.empty(), problem);
  const auto* nowhere = reinterpret_cast<const std::byte*>(uintptr_t{1} << 46);
  problem = throws([&] { const cuda::RegisteredMemory memory(nowhere, kMiB); }, "ulimit -l");
  report.result("registering memory that is not there", problem.empty(), problem);
}

void test_buffers(Report& report) {
  constexpr int64_t kBytes = 3 * kMiB + 17;
  cuda::Stream stream;
  cuda::PinnedBuffer from(kBytes), to(kBytes);
  bool zeroed = true;
  for (int64_t i = 0; i < kBytes; ++i) zeroed = zeroed && from.host()[i] == std::byte{0};
  for (int64_t i = 0; i < kBytes; ++i) from.host()[i] = static_cast<std::byte>(mix64(static_cast<uint64_t>(i)));
  cuda::DeviceBuffer first(kBytes), second(kBytes);
  cuda::Event begin(true), end(true);
  begin.record(stream.handle());
  cuda::copy_to_device(first.data(), from.host(), kBytes, stream.handle());
  cuda::copy_on_device(second.data(), first.data(), kBytes, stream.handle());
  cuda::fill_zero(second.data(), 16, stream.handle());
  end.record(stream.handle());
  const cuda::DeviceBuffer moved = std::move(second);
  cuda::copy_to_host(to.host(), moved.data(), kBytes, stream.handle());
  stream.synchronize();
  std::memset(from.host(), 0, 16);
  report.result("buffers, copies, events", zeroed && stream.idle() && end.seconds_since(begin) > 0 &&
                                               std::memcmp(from.host(), to.host(), kBytes) == 0);
}

// Two streams joined by events: a = from, b = from (beside it), then a's first half is cleared after b.
void test_graph(Report& report) {
  constexpr int64_t kBytes = 64 * 1024;
  cuda::Stream stream, beside;
  cuda::PinnedBuffer from(kBytes), to(2 * kBytes);
  cuda::DeviceBuffer device(2 * kBytes);
  cuda::Event fork, join;
  const auto record = [&] {
    fork.record(stream.handle());
    fork.make_wait(beside.handle());
    cuda::copy_to_device(device.data(), from.host(), kBytes, stream.handle());
    cuda::copy_to_device(device.data() + kBytes, from.host(), kBytes, beside.handle());
    join.record(beside.handle());
    join.make_wait(stream.handle());
    cuda::copy_to_host(to.host(), device.data(), 2 * kBytes, stream.handle());
  };
  {
    const cuda::GraphCapture abandoned(stream.handle());
    cuda::fill_zero(device.data(), 16, stream.handle());
  }
  cuda::GraphCapture capture(stream.handle());
  record();
  cuda::Graph graph;
  graph = capture.end();
  bool same = static_cast<bool>(graph);
  for (int replay = 1; replay <= 3; ++replay) {
    std::memset(from.host(), replay, static_cast<size_t>(kBytes));
    graph.launch(stream.handle());
    stream.synchronize();
    same = same && std::memcmp(from.host(), to.host(), kBytes) == 0 &&
           std::memcmp(from.host(), to.host() + kBytes, kBytes) == 0;
  }
  report.result("a graph over two streams, replayed", same && graph.nodes() == 3,
                text("%lld nodes", static_cast<long long>(graph.nodes())));
}

int64_t available_mib() {
  long long kib = 0;
  char line[256];
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib / 1024;
}

double register_seconds(const HostBuffer& memory, int64_t bytes) {
  const double begin = now_seconds();
  const cuda::RegisteredMemory registered(memory.data(), bytes);
  return now_seconds() - begin;
}

// A blob across the edge of two pieces, by all ways; `memory` is registered.
std::string copy_across(const HostBuffer& memory, const cuda::RegisteredMemory& registered, int64_t edge) {
  constexpr int64_t kBlob = 2 * kMiB;
  cuda::Stream stream;
  const cuda::DeviceBuffer target(kBlob);
  cuda::PinnedBuffer back(kBlob);
  Arena arena(65536, stream);
  cuda::Fetch fetch;
  auto* copy = arena.take<cuda::Copy>(1);
  auto* count = arena.take<int32_t>(1);
  constexpr auto kUnits = static_cast<uint32_t>(kBlob / cuda::kUnitBytes);
  *arena.host(copy) = {
      registered.device() + edge - kMiB, target.data(), arena.take<uint32_t>(cuda::kArrivalParts), {kUnits, kUnits}};
  *arena.host(count) = 1;
  arena.upload();
  fetch.copies = copy;
  fetch.count = count;
  enum class Way { kGather, kCopy, kProxy };
  constexpr const char* kNames[] = {"gather", "copy", "copy engine's thread"};
  for (const Way way : {Way::kGather, Way::kCopy, Way::kProxy}) {
    cuda::fill_zero(target.data(), kBlob, stream.handle());
    if (way == Way::kGather) {
      cuda::gather(fetch, cuda::kGatherBlocks, stream.handle());
    } else if (way == Way::kCopy) {
      registered.copy_to_device(target.data(), edge - kMiB, kBlob, stream.handle());
    } else {
      stream.synchronize();
      cuda::CopyProxy proxy(1, registered.device());
      cuda::Fetch posted = fetch;
      posted.post = proxy.post(1'000'000'000);
      proxy.begin();
      cuda::gather(posted, cuda::kGatherBlocks, stream.handle());
      stream.synchronize();
      proxy.finish();
      proxy.check();
    }
    cuda::copy_to_host(back.host(), target.data(), kBlob, stream.handle());
    stream.synchronize();
    if (std::memcmp(back.host(), memory.data() + edge - kMiB, kBlob) != 0) {
      return std::string(kNames[static_cast<int>(way)]) + ": bytes differ";
    }
  }
  return {};
}

}  // namespace

void test_owners(Report& report) {
  test_facts(report);
  test_refusals(report);
  test_buffers(report);
  test_graph(report);
}

void test_registered_memory(Report& report) {
  constexpr int64_t kBytes = int64_t{20} << 30, kSlackMib = 2048;
  const std::string name = "registering 20 GiB in two pieces";
  if (available_mib() < (kBytes >> 20) + kSlackMib) {
    report.skip(name, text("%lld MiB of host memory are available", static_cast<long long>(available_mib())));
    return;
  }
  WorkerPoolOptions options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  WorkerPool pool(options);
  const double begin = now_seconds();
  HostBuffer memory(kBytes, &pool);
  const double touched = now_seconds() - begin;
  constexpr int64_t kEdge = cuda::kMaxRegisterBytes;
  auto* words = memory.as<uint64_t>();
  for (int64_t i = (kEdge - kMiB) / 8; i < (kEdge + kMiB) / 8; ++i) words[i] = mix64(static_cast<uint64_t>(i));
  std::string problem;
  double ten = 0, twenty = 0;
  try {
    ten = register_seconds(memory, int64_t{10} << 30);
    {
      // The second piece holds memory that is registered already: it is refused, and the first must be undone.
      const cuda::RegisteredMemory tail(memory.data() + kEdge + kMiB, kMiB);
      problem = throws([&] { const cuda::RegisteredMemory whole(memory.data(), kBytes); }, "ulimit -l");
      if (!problem.empty()) problem = "a piece that is refused: " + problem;
    }
    const double registering = now_seconds();
    const cuda::RegisteredMemory registered(memory.data(), kBytes);
    twenty = now_seconds() - registering;
    if (problem.empty()) problem = copy_across(memory, registered, kEdge);
  } catch (const Error& error) {
    problem = error.what();
  }
  report.result(
      name, problem.empty(),
      text("touch %.2f s, register 10 GiB %.2f s, 20 GiB %.2f s, huge pages %.0f %% %s", touched, ten, twenty,
           100.0 * static_cast<double>(page_report(memory).huge_bytes) / static_cast<double>(kBytes), problem.c_str()));
}

}  // namespace ft::device_test
