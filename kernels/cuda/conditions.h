// What about a GPU can spoil a measurement, as the driver's management library (NVML) tells it: no context is made and
// nothing is changed. The library is loaded when it is there, in every build; without it nothing is known, and why.
//
// Cost: a dozen calls of NVML. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ft::cuda {

struct GpuProcess {
  int64_t pid = 0;  // in the namespace of the driver: not ours in some containers
  std::optional<int64_t> memory_bytes;
};

// Bits of throttle_reasons, NVIDIA's "NVML API reference", nvmlClocksEventReasons.
inline constexpr uint64_t kReasonIdle = 0x1, kReasonApplicationClocks = 0x2, kReasonPowerCap = 0x4,
                          kReasonHardwareSlowdown = 0x8, kReasonSyncBoost = 0x10, kReasonSoftwareThermal = 0x20,
                          kReasonHardwareThermal = 0x40, kReasonPowerBrake = 0x80;

struct GpuConditions {
  std::string why_unknown;  // not empty: nothing else is known
  std::string pci_address;  // "0000:65:00.0"; empty: not known
  std::optional<int> temperature_c, slowdown_temperature_c;
  std::optional<uint64_t> throttle_reasons;  // now
  std::optional<int64_t> power_limited_ns,
      thermal_limited_ns;  // time with clocks lowered for it, since the driver started
  std::optional<double> power_limit_w, default_power_limit_w;  // enforced one
  std::optional<bool> ecc, persistence, mig;
  std::optional<int64_t> uncorrected_errors;         // since the driver started
  std::optional<int> busy_percent;                   // of the last sample period, up to a second
  std::optional<std::vector<GpuProcess>> processes;  // that compute
};
// uuid as nvidia-smi prints it. Does not throw.
GpuConditions gpu_conditions(const std::string& uuid);

// Copies to device 0 while `read` runs once, so that its link is trained up. Throws Error(kFailed), in a build without
// CUDA too.
void under_link_load(const std::function<void()>& read);

}  // namespace ft::cuda
