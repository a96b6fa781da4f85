#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "tuner/doctor_checks.h"

namespace ft {
namespace {

using namespace limits;
using cuda::GpuConditions;

std::string process_list(const std::vector<cuda::GpuProcess>& processes) {
  constexpr size_t kMostListed = 8;
  std::string text;
  size_t listed = 0;
  for (const cuda::GpuProcess& process : processes) {
    if (process.pid == 0) continue;
    if (listed++ == kMostListed) return text + ", ..";
    text += fmt::format("{}{}", text.empty() ? ": pid " : ", ", process.pid);
    if (process.memory_bytes) text += fmt::format(" ({:.1f} GB)", static_cast<double>(*process.memory_bytes) * 1e-9);
  }
  return text;
}

void add_others(const GpuReadings& readings, std::vector<Check>& checks) {
  const GpuConditions& now = readings.after;
  if (!now.processes) {
    checks.push_back(skipped_check("gpu.processes", "the driver does not list processes here"));
  } else {
    // In a container the driver's pids are not ours, so the own process is known by number only.
    const size_t own = readings.own_process ? 1 : 0;
    const size_t others = now.processes->size() > own ? now.processes->size() - own : 0;
    checks.push_back(graded_check("gpu.processes", others > 0 ? CheckState::kWarning : CheckState::kOk,
                                  others > 0 ? fmt::format("{} on the GPU{}",
                                                           counted(static_cast<int64_t>(others),
                                                                   "other process computes", "other processes compute"),
                                                           process_list(*now.processes))
                                             : "no other process computes on the GPU",
                                  "end them (nvidia-smi shows them), or choose another GPU with CUDA_VISIBLE_DEVICES",
                                  static_cast<double>(others)));
  }
  if (readings.own_process) return;
  if (!now.busy_percent) {
    checks.push_back(skipped_check("gpu.utilization", "the driver does not tell the utilization"));
    return;
  }
  checks.push_back(
      graded_check("gpu.utilization", state_of(*now.busy_percent, {kGpuBusyNotePercent, kGpuBusyWarningPercent}),
                   fmt::format("busy {} % of the time before this program uses it", *now.busy_percent),
                   "end what uses it: nvidia-smi shows processes, also those that draw", *now.busy_percent));
}

struct Reason {
  uint64_t bit;
  CheckState state;
  const char* text;
};
constexpr Reason kReasons[] = {
    {cuda::kReasonHardwareSlowdown, CheckState::kWarning, "hardware slowdown"},
    {cuda::kReasonHardwareThermal, CheckState::kWarning, "hardware thermal slowdown"},
    {cuda::kReasonPowerBrake, CheckState::kWarning, "power brake"},
    {cuda::kReasonSoftwareThermal, CheckState::kWarning, "thermal limit"},
    {cuda::kReasonPowerCap, CheckState::kNote, "power cap"},
    {cuda::kReasonApplicationClocks, CheckState::kNote, "application clocks below the maximum"},
    {cuda::kReasonSyncBoost, CheckState::kNote, "sync boost"},
};

void add_clocks(const GpuReadings& readings, std::vector<Check>& checks) {
  const GpuConditions& now = readings.after;
  if (!now.throttle_reasons) {
    checks.push_back(skipped_check("gpu.clocks", "the driver does not tell why clocks are low"));
  } else {
    std::string found;
    CheckState state = CheckState::kOk;
    for (const Reason& reason : kReasons) {
      if ((*now.throttle_reasons & reason.bit) == 0) continue;
      found += (found.empty() ? "" : ", ") + std::string(reason.text);
      state = std::max(state, reason.state);
    }
    checks.push_back(graded_check(
        "gpu.clocks", state, found.empty() ? "nothing but idleness lowers the clocks" : "clocks are lowered: " + found,
        "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE; nvidia-smi -rac resets "
        "application clocks",
        static_cast<double>(state)));
  }
  const auto share = [&](std::optional<int64_t> then, std::optional<int64_t> later) {
    if (!then || !later || readings.seconds <= 0) return 0.0;
    return static_cast<double>(std::max<int64_t>(0, *later - *then)) * 1e-9 / readings.seconds;
  };
  const double power = share(readings.before.power_limited_ns, now.power_limited_ns);
  const double heat = share(readings.before.thermal_limited_ns, now.thermal_limited_ns);
  if (readings.seconds <= 0) return;
  const bool bad = heat >= kGpuViolationWarning;
  checks.push_back(graded_check(
      "gpu.limited",
      bad                             ? CheckState::kWarning
      : power >= kGpuViolationWarning ? CheckState::kNote  // ordinary under full load, and the same when serving
                                      : CheckState::kOk,
      fmt::format("clocks were lowered for heat {:.1f} %, for power {:.1f} % of the time", 100 * heat, 100 * power),
      "cool the GPU; raise its power limit: nvidia-smi -pl WATTS", std::max(heat, power)));
}

void add_heat(const GpuConditions& now, std::vector<Check>& checks) {
  if (!now.temperature_c) {
    checks.push_back(skipped_check("gpu.temperature", "the driver does not tell the temperature"));
    return;
  }
  std::string what = fmt::format("{} C", *now.temperature_c);
  bool near = false;
  if (now.slowdown_temperature_c && *now.slowdown_temperature_c > 0) {
    what += fmt::format(", slows down at {} C", *now.slowdown_temperature_c);
    near = *now.temperature_c >= *now.slowdown_temperature_c - kGpuDegreesBelowSlowdown;
  }
  checks.push_back(graded_check("gpu.temperature", near ? CheckState::kWarning : CheckState::kOk, what,
                                "let it cool down, and see to its air flow", *now.temperature_c));
}

void add_modes(const GpuConditions& now, std::vector<Check>& checks) {
  if (now.power_limit_w && now.default_power_limit_w) {
    checks.push_back(graded_check(
        "gpu.power_limit",
        *now.power_limit_w < kPowerLimitNote * *now.default_power_limit_w ? CheckState::kNote : CheckState::kOk,
        fmt::format("{:.0f} W of {:.0f} W", *now.power_limit_w, *now.default_power_limit_w),
        fmt::format("nvidia-smi -pl {:.0f}", *now.default_power_limit_w),
        *now.default_power_limit_w - *now.power_limit_w));
  } else {
    checks.push_back(skipped_check("gpu.power_limit", "the driver does not tell the power limit"));
  }
  if (now.persistence) {
    checks.push_back(graded_check(
        "gpu.persistence", *now.persistence ? CheckState::kOk : CheckState::kNote,
        *now.persistence ? "persistence mode on" : "persistence mode off: the driver starts anew with every program",
        "nvidia-smi -pm 1"));
  }
  if (now.mig) {
    checks.push_back(graded_check(
        "gpu.mig", *now.mig ? CheckState::kNote : CheckState::kOk,
        *now.mig ? "MIG is on: this is a part of a GPU, and others may share its link" : "the whole GPU (MIG off)",
        "nvidia-smi -mig 0, when nobody uses the other parts"));
  }
  if (now.ecc) {
    const int64_t errors = now.uncorrected_errors.value_or(0);
    checks.push_back(graded_check("gpu.ecc", errors > 0 ? CheckState::kWarning : CheckState::kOk,
                                  fmt::format("ECC {}{}", *now.ecc ? "on" : "off",
                                              errors > 0 ? fmt::format(", {} uncorrected errors", errors) : ""),
                                  "nvidia-smi -q -d ECC,PAGE_RETIREMENT; reset or replace the GPU",
                                  static_cast<double>(errors)));
  }
}

void add_link(const GpuReadings& readings, std::vector<Check>& checks) {
  const std::string id = "gpu.link";
  const PciLink& link = readings.link;
  if (link.speed_gts <= 0 || link.width <= 0 || link.max_speed_gts <= 0 || link.max_width <= 0) {
    checks.push_back(skipped_check(id,
                                   "the kernel does not show the link of the GPU (a virtual machine, or a GPU on "
                                   "another bus)"));
    return;
  }
  const bool narrow = link.width < link.max_width;
  const bool slow = link.speed_gts < link.max_speed_gts;
  CheckState state = CheckState::kOk;
  std::string why;
  if (narrow || (slow && readings.link_under_load)) {
    state = CheckState::kWarning;
    const bool by_port = (link.port_max_width > 0 && link.port_max_width <= link.width && narrow) ||
                         (link.port_max_speed_gts > 0 && link.port_max_speed_gts <= link.speed_gts && slow);
    if (by_port) why = "; the slot can do no more";
  } else if (slow) {
    state = CheckState::kNote;
    why = "; idle links may be slower, ft-tune reads it under load";
  }
  checks.push_back(graded_check(
      id, state,
      fmt::format("{:g} GT/s x{} of {:g} GT/s x{}{}{}", link.speed_gts, link.width, link.max_speed_gts, link.max_width,
                  readings.link_under_load ? " under load" : "", why),
      "lspci -vv -s ADDRESS | grep LnkSta; seat the card again, use a slot with all lanes, look for a limit in the "
      "firmware",
      (link.max_speed_gts * link.max_width) / (link.speed_gts * link.width)));
}

}  // namespace

std::vector<Check> check_gpu(const GpuReadings& readings) {
  std::vector<Check> checks;
  if (readings.after.why_unknown.empty()) {
    add_others(readings, checks);
    add_clocks(readings, checks);
    add_heat(readings.after, checks);
    add_modes(readings.after, checks);
  } else {
    checks.push_back(skipped_check("gpu.driver", readings.after.why_unknown));
  }
  add_link(readings, checks);
  return checks;
}

}  // namespace ft
