#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tuner/doctor_checks.h"

namespace ft {
namespace {

using namespace limits;

// "0-3,8"
std::string cpu_list(std::span<const int> cpus) {
  std::set<int> sorted(cpus.begin(), cpus.end());
  std::string text;
  for (auto at = sorted.begin(); at != sorted.end();) {
    const int first = *at;
    int last = first;
    while (++at != sorted.end() && *at == last + 1) last = *at;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (last != first) text += fmt::format("-{}", last);
  }
  return text;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

CpuTicks ticks_between(const HostCounters& before, const HostCounters& after, int cpu) {
  const auto then = before.cpus.find(cpu), now = after.cpus.find(cpu);
  if (then == before.cpus.end() || now == after.cpus.end()) return {};
  // A CPU that was taken offline meanwhile begins anew.
  return {std::max<int64_t>(0, now->second.busy - then->second.busy),
          std::max<int64_t>(0, now->second.idle - then->second.idle),
          std::max<int64_t>(0, now->second.steal - then->second.steal)};
}

CpuTicks ticks_between(const HostCounters& before, const HostCounters& after, std::span<const int> cpus) {
  CpuTicks sum;
  for (const int cpu : cpus) {
    const CpuTicks ticks = ticks_between(before, after, cpu);
    sum.busy += ticks.busy;
    sum.idle += ticks.idle;
    sum.steal += ticks.steal;
  }
  return sum;
}

bool long_enough(const CpuTicks& ticks, size_t cpus) {
  return cpus > 0 && ticks.total() >= kLeastTicks * static_cast<int64_t>(cpus);
}

constexpr const char* kTooShort = "the time between the readings is too short to tell shares of it";

Check check_other_load(const HostSettings& settings, const HostCounters& before, const HostCounters& after) {
  const std::string id = "cpu.other_load";
  if (before.cpus.empty() || !before.own_ticks || !after.own_ticks) {
    return skipped_check(id, "/proc/stat or /proc/self/stat cannot be read");
  }
  const std::optional<double> share = other_load(settings, before, after);
  if (!share) return skipped_check(id, kTooShort);
  const double cpus = static_cast<double>(settings.cpus.size());
  const double cores = *share * cpus;
  CheckState state = state_of(*share, {kOtherLoadNote, kOtherLoadWarning});
  if (cores >= kOtherLoadCoresWarning) state = CheckState::kWarning;
  return graded_check(id, state,
                      fmt::format("other processes had {:.2f} of {} ({} of their time)", cores,
                                  counted(static_cast<int64_t>(settings.cpus.size()), "core"), percent(*share)),
                      "end or move them: ps -eo pid,psr,pcpu,comm --sort=-pcpu | head; taskset -cp CPUS PID", *share);
}

// Hardware threads that share a core with one that computes and are not used themselves.
std::vector<int> idle_siblings(const HostSettings& settings) {
  std::set<int> found;
  for (const std::vector<int>& core : settings.siblings) found.insert(core.begin(), core.end());
  for (const int cpu : settings.cpus) found.erase(cpu);
  return {found.begin(), found.end()};
}

Check check_sibling_load(const HostSettings& settings, const HostCounters& before, const HostCounters& after) {
  const std::string id = "cpu.sibling_load";
  const std::vector<int> siblings = idle_siblings(settings);
  if (siblings.empty()) return ok_check(id, "no core has a hardware thread beside the one that computes");
  const CpuTicks ticks = ticks_between(before, after, siblings);
  if (!long_enough(ticks, siblings.size())) return skipped_check(id, kTooShort);
  int worst = siblings.front();
  double worst_share = 0;
  for (const int cpu : siblings) {
    const CpuTicks own = ticks_between(before, after, cpu);
    const double share = own.total() == 0 ? 0 : static_cast<double>(own.busy) / static_cast<double>(own.total());
    if (share > worst_share) std::tie(worst, worst_share) = std::pair(cpu, share);
  }
  return graded_check(
      id, worst_share >= kSiblingLoadWarning ? CheckState::kWarning : CheckState::kOk,
      fmt::format("CPU {}, the other hardware thread of a core that computes, was busy {} of the time", worst,
                  percent(worst_share)),
      fmt::format("keep other processes off CPUs {}: taskset -cp CPUS PID, or switch siblings off: echo off > "
                  "/sys/devices/system/cpu/smt/control",
                  cpu_list(siblings)),
      worst_share);
}

Check check_steal(const HostSettings& settings, const HostCounters& before, const HostCounters& after) {
  const std::string id = "cpu.steal";
  const CpuTicks ticks = ticks_between(before, after, settings.cpus);
  if (!long_enough(ticks, settings.cpus.size())) return skipped_check(id, kTooShort);
  const double share = static_cast<double>(ticks.steal) / static_cast<double>(ticks.total());
  return graded_check(id, state_of(share, {kStealNote, kStealWarning}),
                      fmt::format("the hypervisor kept {} of the cores' time", percent(share)),
                      "use a machine with dedicated CPUs, or measure again when the host is less loaded", share);
}

Check check_throttled(const HostSettings& settings, const HostCounters& before, const HostCounters& after) {
  const std::string id = "cpu.throttled";
  const std::optional<int64_t> then = before.throttling.throttled_usec, now = after.throttling.throttled_usec;
  if (!then || !now) {
    if (!settings.quota_cores) return ok_check(id, "no CPU quota is visible here");
    return skipped_check(id, "there is a CPU quota, but no readable cpu.stat tells when it stops this process");
  }
  const double seconds = static_cast<double>(std::max<int64_t>(0, *now - *then)) / 1e6;
  const int64_t periods = std::max<int64_t>(
      0, after.throttling.throttled_periods.value_or(0) - before.throttling.throttled_periods.value_or(0));
  const double time = std::max(1e-3, after.at_seconds - before.at_seconds);
  const double share = seconds / (time * static_cast<double>(std::max<size_t>(1, settings.cpus.size())));
  const bool stopped = seconds > 0 || periods > 0;
  const CheckState state = !stopped                     ? CheckState::kOk
                           : share >= kThrottledWarning ? CheckState::kWarning
                                                        : CheckState::kNote;
  std::string what = "no stop by a CPU quota";
  if (stopped) {
    what = fmt::format("a CPU quota stopped the cores in {} periods, for {:.0f} ms together ({} of their time)",
                       periods, seconds * 1e3, percent(share));
  }
  return graded_check(id, state, std::move(what),
                      "raise the quota: docker update --cpus N CONTAINER, systemctl set-property UNIT CPUQuota=N%, or "
                      "the pod's limits.cpu; or use fewer --threads",
                      share);
}

Check check_thermal(const HostSettings&, const HostCounters& before, const HostCounters& after) {
  const std::string id = "cpu.thermal";
  if (!before.thermal_events || !after.thermal_events) {
    return skipped_check(id,
                         "the kernel has no counter of thermal limits here (thermal_throttle, Intel without a "
                         "hypervisor)");
  }
  const int64_t events = std::max<int64_t>(0, *after.thermal_events - *before.thermal_events);
  const int64_t ms = std::max<int64_t>(0, after.thermal_ms.value_or(0) - before.thermal_ms.value_or(0));
  std::string what = "no core was slowed down for heat";
  if (events > 0) what = fmt::format("cores were slowed down for heat {}, {} ms together", counted(events, "time"), ms);
  return graded_check(id, events > 0 ? CheckState::kWarning : CheckState::kOk, std::move(what),
                      "cool the machine, or lower its clocks: cpupower frequency-set -u MHZ",
                      static_cast<double>(events));
}

void add_quota(const HostSettings& settings, std::vector<Check>& checks) {
  const std::string id = "cpu.quota";
  if (!settings.quota_cores) {
    checks.push_back(ok_check(id, "no CPU quota"));
    return;
  }
  const double cores = *settings.quota_cores;
  checks.push_back(graded_check(
      id, cores < kLeastQuotaCores ? CheckState::kWarning : CheckState::kNote,
      fmt::format("a quota of {:.2f} cores holds for this process; {} will compute", cores,
                  counted(static_cast<int64_t>(settings.cpus.size()), "thread")),
      "numbers hold for this quota; to change it: docker update --cpus N CONTAINER, systemctl set-property UNIT "
      "CPUQuota=N%, or the pod's limits.cpu",
      1 / std::max(cores, 1e-3)));
}

void add_siblings(const HostSettings& settings, std::vector<Check>& checks) {
  const std::string id = "cpu.siblings";
  std::vector<int> shared;
  bool known = !settings.siblings.empty();
  for (size_t i = 0; i < settings.siblings.size(); ++i) {
    known = known && !settings.siblings[i].empty();
    for (const int sibling : settings.siblings[i]) {
      const bool used = std::find(settings.cpus.begin(), settings.cpus.end(), sibling) != settings.cpus.end();
      if (used && sibling != settings.cpus[i]) shared.push_back(settings.cpus[i]);
    }
  }
  if (!known) {
    checks.push_back(skipped_check(id, "the kernel does not say which hardware threads share a core"));
    return;
  }
  checks.push_back(graded_check(
      id, shared.empty() ? CheckState::kOk : CheckState::kWarning,
      shared.empty()
          ? fmt::format("CPU {}: a core of its own for each thread", cpu_list(settings.cpus))
          : fmt::format("CPUs {} share cores with each other: two threads will compete for one core", cpu_list(shared)),
      "give the process one hardware thread per core: taskset -c CPUS, or --cpuset-cpus of a container",
      static_cast<double>(shared.size())));
}

// What intel_pstate and amd-pstate call powersave is their ordinary one, which follows the load.
CheckState governor_state(const CpuFrequency& frequency) {
  if (frequency.governor == "performance") return CheckState::kOk;
  const bool follows_load = frequency.driver == "intel_pstate" || frequency.driver.starts_with("amd-pstate") ||
                            frequency.driver.starts_with("amd_pstate");
  if (follows_load && frequency.preference == "performance") return CheckState::kOk;
  if (!follows_load && frequency.governor == "powersave") return CheckState::kWarning;  // the lowest clock, always
  return CheckState::kNote;
}

void add_frequency(const HostSettings& settings, std::vector<Check>& checks) {
  if (settings.frequencies.empty() || settings.frequencies.front().driver.empty()) {
    checks.push_back(skipped_check(
        "cpu.governor", settings.virtual_machine ? "a virtual machine without cpufreq: the host decides about clocks"
                                                 : "no cpufreq driver: clocks are the firmware's"));
    return;
  }
  const CpuFrequency* worst = &settings.frequencies.front();
  const CpuFrequency* lowest = nullptr;
  double lowest_share = 1;
  for (const CpuFrequency& frequency : settings.frequencies) {
    if (governor_state(frequency) > governor_state(*worst)) worst = &frequency;
    if (!frequency.limit_khz || !frequency.hardware_max_khz) continue;
    const double share = static_cast<double>(*frequency.limit_khz) / static_cast<double>(*frequency.hardware_max_khz);
    if (share < lowest_share) {
      lowest_share = share;
      lowest = &frequency;
    }
  }
  std::string governor = fmt::format("{}, governor {}", worst->driver, worst->governor);
  if (!worst->preference.empty()) governor += ", preference " + worst->preference;
  checks.push_back(graded_check("cpu.governor", governor_state(*worst), std::move(governor),
                                "cpupower frequency-set -g performance"));
  if (lowest == nullptr || lowest_share > 1 - kLimitBelowHardware) {
    checks.push_back(ok_check("cpu.frequency_limit", "clocks are not limited below what the cores can do"));
  } else {
    checks.push_back(graded_check(
        "cpu.frequency_limit", CheckState::kWarning,
        fmt::format("clocks are limited to {:.2f} of {:.2f} GHz", static_cast<double>(*lowest->limit_khz) * 1e-6,
                    static_cast<double>(*lowest->hardware_max_khz) * 1e-6),
        fmt::format("cpupower frequency-set -u {}kHz", *lowest->hardware_max_khz), 1 - lowest_share));
  }
}

void add_turbo(const HostSettings& settings, std::vector<Check>& checks) {
  if (!settings.turbo) {
    checks.push_back(skipped_check("cpu.turbo", "the kernel does not say whether turbo clocks are allowed"));
    return;
  }
  checks.push_back(
      graded_check("cpu.turbo", *settings.turbo ? CheckState::kOk : CheckState::kNote,
                   *settings.turbo ? "turbo clocks are allowed" : "turbo clocks are off: steady, but slower",
                   "echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 1 > "
                   "/sys/devices/system/cpu/cpufreq/boost"));
}

std::optional<double> base_ghz(const HostSettings& settings) {
  for (const CpuFrequency& frequency : settings.frequencies) {
    if (frequency.base_khz) return static_cast<double>(*frequency.base_khz) * 1e-6;
  }
  return settings.model_ghz;
}

}  // namespace

std::optional<double> other_load(const HostSettings& settings, const HostCounters& before, const HostCounters& after) {
  if (!before.own_ticks || !after.own_ticks) return std::nullopt;
  const CpuTicks ticks = ticks_between(before, after, settings.cpus);
  if (!long_enough(ticks, settings.cpus.size())) return std::nullopt;
  const int64_t own = std::max<int64_t>(0, *after.own_ticks - *before.own_ticks);
  // Own time is counted exactly and that of CPUs by ticks, so the difference can be below zero.
  return static_cast<double>(std::max<int64_t>(0, ticks.busy - own)) / static_cast<double>(ticks.total());
}

void add_cpu_facts(const HostFacts& facts, std::vector<Check>& checks) {
  add_quota(facts.settings, checks);
  add_siblings(facts.settings, checks);
  add_frequency(facts.settings, checks);
  add_turbo(facts.settings, checks);
}

std::vector<Check> check_interval(const HostSettings& settings, const HostCounters& before, const HostCounters& after) {
  std::vector<Check> checks;
  for (const auto& check : {check_other_load, check_sibling_load, check_steal, check_throttled, check_thermal}) {
    checks.push_back(check(settings, before, after));
  }
  add_memory_interval(before, after, checks);
  return checks;
}

std::vector<Check> check_clock(const HostSettings& settings, std::span<const double> core_ghz) {
  std::vector<double> known;
  for (const double ghz : core_ghz) {
    if (ghz > 0) known.push_back(ghz);
  }
  if (known.empty()) {
    return {skipped_check("cpu.clock", "the clock is measured on x86-64 only")};
  }
  const auto [low, high] = std::minmax_element(known.begin(), known.end());
  const std::optional<double> base = base_ghz(settings);
  std::vector<Check> checks;
  const double below = base ? 1 - *high / *base : 0;
  const std::string range = fmt::format("{:.2f} GHz", *high);
  checks.push_back(graded_check(
      "cpu.clock", below >= kBelowBaseWarning ? CheckState::kWarning : CheckState::kOk,
      base ? fmt::format("{} measured, base clock {:.2f} GHz", range, *base)
           : range + " measured; base clock not known",
      "look for a power or thermal limit: turbostat, ipmitool dcmi power reading; cpupower frequency-info", below));
  if (known.size() > 1) {
    const double spread = (*high - *low) / *high;
    checks.push_back(graded_check("cpu.clock_spread", state_of(spread, {kClockSpreadNote, kClockSpreadWarning}),
                                  fmt::format("{:.2f} to {:.2f} GHz in {} readings", *low, *high, known.size()),
                                  "fix the clock: cpupower frequency-set -g performance, and echo 1 > "
                                  "/sys/devices/system/cpu/intel_pstate/no_turbo where it may be slower",
                                  spread));
  }
  return checks;
}

}  // namespace ft
