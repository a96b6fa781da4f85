// Checked against: a library that plays NVML (fake_nvml.cpp) and is found in its place, since it is loaded already when
// the code asks for its soname. No GPU takes part.
#include <doctest/doctest.h>

#include "kernels/cuda/conditions.h"
#include "kernels/cuda/nvml.h"
#include "tests/device/fake_nvml.h"

TEST_CASE("every reading, in our units") {
  *fake_nvml() = {.supported = true,
                  .throttle_reasons = 0x24,
                  .power_limited_ns = 7'000'000'000,
                  .thermal_limited_ns = 8,
                  .processes = 2};
  const ft::cuda::GpuConditions now = ft::cuda::gpu_conditions("GPU-fake");
  CHECK(now.why_unknown.empty());
  CHECK(now.pci_address == "0000:65:01.0");
  CHECK(now.temperature_c == 61);
  CHECK(now.slowdown_temperature_c == 89);
  CHECK(now.throttle_reasons == 0x24);
  CHECK(now.power_limited_ns == 7'000'000'000);
  CHECK(now.thermal_limited_ns == 8);
  CHECK(now.power_limit_w == 350.0);
  CHECK(now.default_power_limit_w == 700.0);
  CHECK(now.ecc == true);
  CHECK(now.mig == false);
  CHECK(now.persistence == true);
  CHECK(now.uncorrected_errors == 3);
  CHECK(now.busy_percent == 17);
  REQUIRE(now.processes.has_value());
  REQUIRE(now.processes->size() == 2);
  CHECK(now.processes->at(0).pid == 100);
  CHECK(now.processes->at(0).memory_bytes == 5'000'000'000);
  CHECK_FALSE(now.processes->at(1).memory_bytes.has_value());
}

TEST_CASE("as many processes as fit the list, and one more") {
  *fake_nvml() = {};
  fake_nvml()->processes = 64;
  CHECK(ft::cuda::gpu_conditions("GPU-fake").processes->size() == 64);
  fake_nvml()->processes = 65;
  const ft::cuda::GpuConditions now = ft::cuda::gpu_conditions("GPU-fake");
  CHECK(now.processes->size() == 65);
  CHECK(now.processes->at(0).pid == 0);
}

TEST_CASE("what the driver does not support is not known, not zero") {
  *fake_nvml() = {};
  fake_nvml()->supported = false;
  const ft::cuda::GpuConditions now = ft::cuda::gpu_conditions("GPU-fake");
  CHECK(now.why_unknown.empty());
  CHECK_FALSE(now.temperature_c.has_value());
  CHECK_FALSE(now.throttle_reasons.has_value());
  CHECK_FALSE(now.power_limited_ns.has_value());
  CHECK_FALSE(now.power_limit_w.has_value());
  CHECK_FALSE(now.ecc.has_value());
  CHECK_FALSE(now.busy_percent.has_value());
  CHECK_FALSE(now.processes.has_value());
}

TEST_CASE("no counter of limited time is not a very long one") {
  *fake_nvml() = {};
  fake_nvml()->power_limited_ns = ~0ULL;
  CHECK_FALSE(ft::cuda::gpu_conditions("GPU-fake").power_limited_ns.has_value());
}

TEST_CASE("another GPU") {
  const ft::cuda::GpuConditions now = ft::cuda::gpu_conditions("GPU-other");
  CHECK(now.why_unknown == "the driver's management library does not know GPU-other");
}

TEST_CASE("the facts of a device") {
  *fake_nvml() = {};
  const ft::cuda::NvmlFacts facts = ft::cuda::nvml_facts("GPU-fake");
  CHECK(facts.driver == "580.159.04");
  CHECK(facts.link_generation == 4);
  CHECK(facts.link_width == 8);
  CHECK(facts.link_generation_max == 5);
  CHECK(facts.link_width_max == 16);
  CHECK(ft::cuda::nvml_facts("GPU-other").driver == "580.159.04");
  CHECK(ft::cuda::nvml_facts("GPU-other").link_width == 0);
}
