// Calls and their structs as in NVIDIA's "NVML API reference".
#include <array>
#include <cstdio>

#include "kernels/cuda/conditions.h"
#include "kernels/cuda/nvml_library.h"

namespace ft::cuda {
namespace {

struct NvmlPci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct NvmlViolation {
  unsigned long long reference_us, violation_ns;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long memory_bytes;
  unsigned gpu_instance, compute_instance;
};

constexpr unsigned kSensorGpu = 0;          // NVML_TEMPERATURE_GPU
constexpr unsigned kThresholdSlowdown = 1;  // NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
constexpr unsigned kPolicyPower = 0, kPolicyThermal = 1;
constexpr unsigned kUncorrected = 1, kSinceStart = 0;
constexpr int kTooSmall = 7;                         // NVML_ERROR_INSUFFICIENT_SIZE
constexpr unsigned long long kNotAvailable = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE
constexpr unsigned kMaxProcesses = 64;               // more are counted, not listed

std::optional<int> as_int(std::optional<unsigned> value) {
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}
std::optional<bool> as_bool(std::optional<unsigned> value) { return value ? std::optional(*value != 0) : std::nullopt; }
std::optional<double> milliwatts(std::optional<unsigned> value) {
  return value ? std::optional(static_cast<double>(*value) * 1e-3) : std::nullopt;
}

std::optional<bool> current_mode(const NvmlLibrary& nvml, NvmlDevice device, const char* name) {
  const auto call = nvml.function<int (*)(NvmlDevice, unsigned*, unsigned*)>(name);
  unsigned current = 0, pending = 0;
  if (call == nullptr || call(device, &current, &pending) != 0) return std::nullopt;
  return current != 0;
}

std::optional<int64_t> limited_ns(const NvmlLibrary& nvml, NvmlDevice device, unsigned policy) {
  const auto violation = nvml.read<NvmlViolation>(device, "nvmlDeviceGetViolationStatus", policy);
  if (!violation || violation->violation_ns == kNotAvailable) return std::nullopt;
  return static_cast<int64_t>(violation->violation_ns);
}

std::optional<int64_t> uncorrected_errors(const NvmlLibrary& nvml, NvmlDevice device) {
  const auto call =
      nvml.function<int (*)(NvmlDevice, unsigned, unsigned, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  unsigned long long errors = 0;
  if (call == nullptr || call(device, kUncorrected, kSinceStart, &errors) != 0) return std::nullopt;
  return static_cast<int64_t>(errors);
}

std::optional<std::vector<GpuProcess>> processes(const NvmlLibrary& nvml, NvmlDevice device) {
  const auto call =
      nvml.function<int (*)(NvmlDevice, unsigned*, NvmlProcess*)>("nvmlDeviceGetComputeRunningProcesses_v3");
  std::array<NvmlProcess, kMaxProcesses> found{};
  unsigned count = kMaxProcesses;
  if (call == nullptr) return std::nullopt;
  const int code = call(device, &count, found.data());
  if (code != 0 && code != kTooSmall) return std::nullopt;
  if (code == kTooSmall) return std::vector<GpuProcess>(count);  // all that is known is how many
  std::vector<GpuProcess> list;
  for (unsigned i = 0; i < count && i < kMaxProcesses; ++i) {
    GpuProcess process{.pid = found[i].pid, .memory_bytes = {}};
    if (found[i].memory_bytes != kNotAvailable) process.memory_bytes = static_cast<int64_t>(found[i].memory_bytes);
    list.push_back(process);
  }
  return list;
}

std::string pci_address(const NvmlLibrary& nvml, NvmlDevice device) {
  const auto pci = nvml.read<NvmlPci>(device, "nvmlDeviceGetPciInfo_v3");
  if (!pci) return {};
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
  return text;
}

}  // namespace

GpuConditions gpu_conditions(const std::string& uuid) {
  GpuConditions now;
  const NvmlLibrary& nvml = nvml_library();
  if (!nvml.started()) {
    now.why_unknown = "libnvidia-ml.so.1, which comes with the driver, cannot be loaded or started";
    return now;
  }
  const NvmlDevice device = nvml.device(uuid);
  if (device == nullptr) {
    now.why_unknown = "the driver's management library does not know " + uuid;
    return now;
  }
  now.pci_address = pci_address(nvml, device);
  now.temperature_c = as_int(nvml.read<unsigned>(device, "nvmlDeviceGetTemperature", kSensorGpu));
  now.slowdown_temperature_c =
      as_int(nvml.read<unsigned>(device, "nvmlDeviceGetTemperatureThreshold", kThresholdSlowdown));
  const auto reasons = nvml.read<unsigned long long>(device, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (reasons) now.throttle_reasons = *reasons;
  now.power_limited_ns = limited_ns(nvml, device, kPolicyPower);
  now.thermal_limited_ns = limited_ns(nvml, device, kPolicyThermal);
  now.power_limit_w = milliwatts(nvml.read<unsigned>(device, "nvmlDeviceGetEnforcedPowerLimit"));
  now.default_power_limit_w = milliwatts(nvml.read<unsigned>(device, "nvmlDeviceGetPowerManagementDefaultLimit"));
  now.ecc = current_mode(nvml, device, "nvmlDeviceGetEccMode");
  now.mig = current_mode(nvml, device, "nvmlDeviceGetMigMode");
  now.persistence = as_bool(nvml.read<unsigned>(device, "nvmlDeviceGetPersistenceMode"));
  now.uncorrected_errors = uncorrected_errors(nvml, device);
  const auto utilization = nvml.read<NvmlUtilization>(device, "nvmlDeviceGetUtilizationRates");
  if (utilization) now.busy_percent = static_cast<int>(utilization->gpu);
  now.processes = processes(nvml, device);
  return now;
}

}  // namespace ft::cuda
