// ft-tune doctor: collects readings, judges them (tuner/doctor.h), prints.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/runtime/device.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/host/numa.h"
#include "kernels/host/worker_pool.h"
#include "tuner/commands/commands.h"
#include "tuner/condition_watch.h"
#include "tuner/machine_state.h"

namespace ft {
namespace {

constexpr double kAskSeconds = 0.05;  // how often an interrupt is looked for
// A quarter of it may go into making experts that are together eight times the last-level cache: 10 GB at 1 GB/s.
constexpr double kCountingBudgetSeconds = 40;

void stop_if_interrupted() {
  if (interrupted()) throw Error(ErrorKind::kInterrupted, {.what = "interrupted"});
}

void idle(double seconds) {
  const double end = now_seconds() + seconds;
  while (now_seconds() < end) {
    stop_if_interrupted();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(kAskSeconds, end - now_seconds())));
  }
}

// Keeps the CPUs busy; returns the clock of each at the end.
std::vector<double> load(std::span<const int> cpus, double seconds) {
  WorkerPool pool({.threads = static_cast<int>(cpus.size()), .cpus = {cpus.begin(), cpus.end()}});
  std::vector<double> ghz(cpus.size());
  const double end = now_seconds() + seconds;
  while (now_seconds() < end) {
    stop_if_interrupted();
    pool.run([&](int worker, int) {
      const double pause = std::min(end, now_seconds() + kAskSeconds);
      while (now_seconds() < pause) ghz[static_cast<size_t>(worker)] = measure_core_ghz();
    });
  }
  return ghz;
}

// What the engine does with a bank, at a small scale: asks for a node and touches there.
std::vector<PlacedMemory> try_placement(const HostTopology& topology, std::span<const int> cpus) {
  constexpr int64_t kBytes = 16 << 20;
  std::vector<PlacedMemory> placed;
  if (topology.numa_nodes.size() < 2) return placed;
  for (const NumaNode& node : topology.numa_nodes) {
    const auto cpu = std::find_first_of(cpus.begin(), cpus.end(), node.cpus.begin(), node.cpus.end());
    if (cpu == cpus.end()) continue;
    HostBuffer buffer(kBytes);
    const std::span<const std::byte> bytes(buffer.data(), static_cast<size_t>(buffer.bytes()));
    prefer_node(bytes, node.os_index);
    const std::vector<int> own = {*cpu, *cpu};  // a pool pins its second thread, not its caller
    WorkerPool pool({.threads = 2, .cpus = own});
    pool.run([&](int worker, int) {
      if (worker == 1) std::fill_n(buffer.data(), buffer.bytes(), std::byte{1});
    });
    placed.push_back({"a buffer", node.os_index, read_page_nodes(bytes)});
  }
  return placed;
}

Check check_counters(const HostTopology& topology, const CpuBudget& budget, double seconds) {
  std::string why_not;
  const std::unique_ptr<DramCounter> counter = open_dram_counter(why_not);
  if (counter == nullptr) return check_reads({}, why_not);
  const MemoryBudget memory = detect_memory_budget();
  ProbeContext context;
  context.topology = &topology;
  context.cpus = &budget;
  context.memory = &memory;
  context.budget.seconds = kCountingBudgetSeconds;
  return check_reads(count_expert_reads(context, *counter, seconds), {});
}

std::vector<Check> check_device(double seconds) {
  const std::string uuid = cuda::device_uuid(0);
  GpuReadings readings;
  readings.before = cuda::gpu_conditions(uuid);
  idle(seconds);
  readings.after = cuda::gpu_conditions(uuid);
  readings.seconds = seconds;
  readings.link = read_pci_link(readings.after.pci_address);
  try {
    cuda::under_link_load([&] { readings.link = read_pci_link(readings.after.pci_address); });
    readings.link_under_load = true;
  } catch (const Error&) {  // no memory left on it, say: the other checks tell who has it
  }
  return check_gpu(readings);
}

void append(std::vector<Check>& checks, std::vector<Check> more) {
  checks.insert(checks.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<Check> examine(const std::string& asked, double seconds) {
  const DeviceChoice choice = choose_device(asked);
  const HostTopology topology = detect_topology();
  const CpuBudget budget = detect_cpu_budget(topology);
  const std::vector<int> cpus = computing_cpus(budget);
  HostFacts facts;
  facts.settings = read_host_settings(cpus);
  facts.pages = try_huge_pages();
  facts.placed = try_placement(topology, cpus);
  facts.pins_memory = choice.device == Device::kCuda;
  const HostCounters begin = read_host_counters(cpus);
  idle(seconds / 2);
  const HostCounters middle = read_host_counters(cpus);
  const std::vector<double> core_ghz = load(cpus, seconds / 2);
  const HostCounters end = read_host_counters(cpus);
  const NamedChecks intervals[] = {{"while idle", check_interval(facts.settings, begin, middle)},
                                   {"under load", check_interval(facts.settings, middle, end)}};
  std::vector<Check> checks = check_facts(facts);
  append(checks, check_clock(facts.settings, core_ghz));
  append(checks, worst_checks(intervals));
  checks.push_back(check_counters(topology, budget, seconds / 2));
  if (choice.device == Device::kCuda) {
    append(checks, check_device(seconds / 2));
  } else if (asked == "auto") {
    checks.push_back({.id = "gpu.device", .state = CheckState::kSkipped, .what = choice.reason, .fix = {}, .size = 0});
  }
  return checks;
}

}  // namespace

int run_doctor(const ParsedOptions& options) {
  install_interrupt_handler();
  const std::vector<Check> checks = examine(options.text("--device"), options.number("--seconds"));
  const std::string text =
      options.text("--format") == "json" ? doctor_json(checks).dump(2) + "\n" : doctor_text(checks);
  std::fputs(text.c_str(), stdout);
  return any_warning(checks) ? kExitFailed : kExitDone;
}

}  // namespace ft
