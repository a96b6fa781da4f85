#include "tuner/condition_watch.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/host/numa.h"
#include "kernels/host/proc_text.h"
#include "tuner/machine_state.h"

namespace ft {

std::vector<int> computing_cpus(const CpuBudget& cpus) {
  const auto count = std::min(cpus.pinning.size(), static_cast<size_t>(cpus.usable_cores));
  return {cpus.pinning.begin(), cpus.pinning.begin() + static_cast<std::ptrdiff_t>(count)};
}

ConditionWatch::ConditionWatch(const CpuBudget& cpus, std::string gpu_uuid)
    : settings_(read_host_settings(computing_cpus(cpus))), gpu_uuid_(std::move(gpu_uuid)), pages_(try_huge_pages()) {}

void ConditionWatch::begin() {
  if (!gpu_uuid_.empty()) gpu_before_ = cuda::gpu_conditions(gpu_uuid_);
  before_ = read_host_counters(settings_.cpus);
  if (intervals_.empty()) first_ = before_;
}

GpuReadings ConditionWatch::gpu_readings() {
  GpuReadings readings;
  readings.before = gpu_before_;
  readings.after = cuda::gpu_conditions(gpu_uuid_);
  readings.link = read_pci_link(readings.after.pci_address);
  readings.own_process = true;
  return readings;
}

void ConditionWatch::end(std::string_view probe, std::span<Measurement> taken) {
  last_ = read_host_counters(settings_.cpus);
  // Only now: at the beginning of a probe the clock of a core that was idle still rises.
  core_ghz_.push_back(measure_core_ghz());
  NamedChecks interval{std::string(probe), check_interval(settings_, before_, last_)};
  if (!gpu_uuid_.empty()) {
    GpuReadings readings = gpu_readings();
    readings.seconds = last_.at_seconds - before_.at_seconds;
    for (Check& check : check_gpu(readings)) interval.checks.push_back(std::move(check));
  }
  for (Measurement& measurement : taken) add_remarks(interval.checks, measurement.remarks);
  intervals_.push_back(std::move(interval));
}

std::vector<Finding> ConditionWatch::findings(std::span<const PlacedMemory> placed,
                                              std::span<const Finding> earlier) const {
  HostFacts facts{.settings = settings_,
                  .pages = pages_,
                  .placed = {placed.begin(), placed.end()},
                  .pins_memory = !gpu_uuid_.empty()};
  std::vector<Check> checks = check_facts(facts);
  for (Check& check : check_clock(settings_, core_ghz_)) checks.push_back(std::move(check));
  std::vector<NamedChecks> intervals = intervals_;
  // Of small budgets no probe alone is long enough to tell shares of its time.
  intervals.push_back({"all together", check_interval(settings_, first_, last_)});
  for (Check& check : worst_checks(intervals)) checks.push_back(std::move(check));
  return merged_findings(findings_of(checks), earlier);
}

void add_remarks(std::span<const Check> interval, std::vector<std::string>& remarks) {
  for (const Check& check : interval) {
    const bool spoils =
        check.state == CheckState::kWarning || (check.state == CheckState::kNote && check.id == "cpu.throttled");
    if (spoils) remarks.push_back(check.id + ": " + check.what);
  }
}

std::vector<Finding> merged_findings(std::span<const Finding> now, std::span<const Finding> earlier) {
  std::vector<Finding> merged(now.begin(), now.end());
  for (const Finding& old : earlier) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const Finding& f) { return f.id == old.id; });
    if (same == merged.end()) {
      merged.push_back(old);
    } else if (same->level == "note" && old.level == "warning") {
      *same = old;
    }
  }
  std::stable_partition(merged.begin(), merged.end(), [](const Finding& f) { return f.level == "warning"; });
  if (merged.size() > kMaxFindings) merged.resize(kMaxFindings);
  return merged;
}

std::vector<PlacedMemory> placed_banks(const ProbeContext& context) {
  std::vector<PlacedMemory> placed;
  if (context.model.weights == nullptr) return placed;
  const ExpertBank& bank = context.model.weights->bank;
  const NumaPlan plan = make_numa_plan(*context.topology, context.base.pinning, context.base.threads);
  if (plan.nodes.size() < 2) return placed;
  std::vector<int64_t> blob_bytes;
  blob_bytes.reserve(static_cast<size_t>(bank.layers()));
  for (int layer = 0; layer < bank.layers(); ++layer) blob_bytes.push_back(bank.layout(layer).bytes);
  const std::string numa_maps = read_proc_text("/proc/self/numa_maps");
  const auto begin = reinterpret_cast<uintptr_t>(bank.bytes().data());
  for (const BankPart& part : bank_parts(plan, blob_bytes, bank.experts())) {
    const uint64_t from = begin + static_cast<uint64_t>(part.offset);
    placed.push_back({fmt::format("the bank's part at {:.1f} GB", static_cast<double>(part.offset) * 1e-9),
                      part.os_node, parse_page_nodes(numa_maps, from, from + static_cast<uint64_t>(part.bytes))});
  }
  return placed;
}

}  // namespace ft
