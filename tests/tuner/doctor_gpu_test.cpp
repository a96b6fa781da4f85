// Checked against: tables worked out by hand, each limit at its value and one step past it.
#include <doctest/doctest.h>

#include <algorithm>

#include "tuner/doctor.h"

namespace ft {
namespace {

GpuReadings quiet_gpu() {
  GpuReadings readings;
  cuda::GpuConditions now;
  now.pci_address = "0000:65:00.0";
  now.temperature_c = 40;
  now.slowdown_temperature_c = 90;
  now.throttle_reasons = cuda::kReasonIdle;
  now.power_limited_ns = 0;
  now.thermal_limited_ns = 0;
  now.power_limit_w = now.default_power_limit_w = 700;
  now.ecc = true;
  now.uncorrected_errors = 0;
  now.persistence = true;
  now.mig = false;
  now.busy_percent = 0;
  now.processes.emplace();
  readings.before = readings.after = now;
  readings.seconds = 10;
  readings.link = {32, 32, 32, 16, 16, 16};
  readings.link_under_load = true;
  return readings;
}

std::string state(const GpuReadings& readings, std::string_view id) {
  for (const Check& check : check_gpu(readings)) {
    if (check.id == id) return std::string(check_state_name(check.state));
  }
  return "absent";
}

}  // namespace

TEST_CASE("a quiet GPU has no findings") {
  for (const Check& check : check_gpu(quiet_gpu())) {
    CAPTURE(check.id);
    CHECK(check.state == CheckState::kOk);
    CHECK(check.fix.empty());
  }
}

TEST_CASE("other processes and their load") {
  GpuReadings gpu = quiet_gpu();
  gpu.after.processes = {{1234, 2'500'000'000}};
  CHECK(state(gpu, "gpu.processes") == "warning");
  gpu.own_process = true;
  CHECK(state(gpu, "gpu.processes") == "ok");
  CHECK(state(gpu, "gpu.utilization") == "absent");
  gpu.after.processes->push_back({99, {}});
  CHECK(state(gpu, "gpu.processes") == "warning");
  gpu = quiet_gpu();
  for (const auto& [busy, expected] :
       {std::pair(1, "ok"), std::pair(2, "note"), std::pair(4, "note"), std::pair(5, "warning")}) {
    gpu.after.busy_percent = busy;
    CHECK(state(gpu, "gpu.utilization") == expected);
  }
  gpu.after.processes = std::vector<cuda::GpuProcess>(64, {7, 1});
  for (const Check& check : check_gpu(gpu)) CHECK(check.what.size() < 512);  // a finding holds 1024
}

TEST_CASE("clocks, heat, power") {
  GpuReadings gpu = quiet_gpu();
  for (const uint64_t bit : {0x8u, 0x20u, 0x40u, 0x80u}) {
    gpu.after.throttle_reasons = bit | cuda::kReasonIdle;
    CHECK(state(gpu, "gpu.clocks") == "warning");
  }
  for (const uint64_t bit : {0x2u, 0x4u, 0x10u}) {
    gpu.after.throttle_reasons = bit;
    CHECK(state(gpu, "gpu.clocks") == "note");
  }
  gpu.after.throttle_reasons = 0x100;  // display clocks: nobody asked
  CHECK(state(gpu, "gpu.clocks") == "ok");
  gpu.after.temperature_c = 84;
  CHECK(state(gpu, "gpu.temperature") == "ok");
  gpu.after.temperature_c = 85;
  CHECK(state(gpu, "gpu.temperature") == "warning");
  gpu.after.slowdown_temperature_c.reset();
  CHECK(state(gpu, "gpu.temperature") == "ok");
  const auto limited = [](int64_t heat_ns, int64_t power_ns) {
    GpuReadings one = quiet_gpu();
    one.after.thermal_limited_ns = heat_ns;
    one.after.power_limited_ns = power_ns;
    return state(one, "gpu.limited");
  };
  CHECK(limited(49'999'999, 49'999'999) == "ok");
  CHECK(limited(0, 50'000'000) == "note");
  CHECK(limited(50'000'000, 0) == "warning");
  gpu.after.power_limit_w = 693.1;
  CHECK(state(gpu, "gpu.power_limit") == "ok");
  gpu.after.power_limit_w = 692.9;
  CHECK(state(gpu, "gpu.power_limit") == "note");
}

TEST_CASE("modes and memory errors") {
  GpuReadings gpu = quiet_gpu();
  gpu.after.persistence = false;
  CHECK(state(gpu, "gpu.persistence") == "note");
  gpu.after.mig = true;
  CHECK(state(gpu, "gpu.mig") == "note");
  gpu.after.uncorrected_errors = 1;
  CHECK(state(gpu, "gpu.ecc") == "warning");
  gpu.after.ecc.reset();
  CHECK(state(gpu, "gpu.ecc") == "absent");
}

TEST_CASE("the link: idle it may be slow, narrow it may not be") {
  GpuReadings gpu = quiet_gpu();
  gpu.link.speed_gts = 16;
  CHECK(state(gpu, "gpu.link") == "warning");
  gpu.link_under_load = false;
  CHECK(state(gpu, "gpu.link") == "note");
  gpu.link.width = 8;
  CHECK(state(gpu, "gpu.link") == "warning");
  gpu.link.port_max_width = 8;
  const std::vector<Check> checks = check_gpu(gpu);
  CHECK(std::any_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.what == "16 GT/s x8 of 32 GT/s x16; the slot can do no more";
  }));
  gpu.link = {};
  CHECK(state(gpu, "gpu.link") == "skipped");
}

TEST_CASE("without the driver's library one line says so, and the kernel's own facts stay") {
  GpuReadings gpu = quiet_gpu();
  gpu.after = {};
  gpu.after.why_unknown = "no library";
  CHECK(state(gpu, "gpu.driver") == "skipped");
  CHECK(state(gpu, "gpu.processes") == "absent");
  CHECK(state(gpu, "gpu.link") == "ok");
  gpu.after.why_unknown.clear();  // a driver that tells nothing
  for (const char* id : {"gpu.processes", "gpu.utilization", "gpu.clocks", "gpu.temperature", "gpu.power_limit"}) {
    CHECK(state(gpu, id) == "skipped");
  }
}

}  // namespace ft
