// A library with the soname and the functions of NVML, as a program on a machine with one GPU would find it.
#include "tests/device/fake_nvml.h"

#include <cstring>

namespace {

constexpr int kDone = 0, kNotFound = 6, kTooSmall = 7, kNotSupported = 3;

// The real library has state too; this one's is what the test sets.
FakeNvml fake;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

int give(unsigned value, unsigned* out) {
  if (!fake.supported) return kNotSupported;
  *out = value;
  return kDone;
}

}  // namespace

extern "C" {

FakeNvml* fake_nvml() { return &fake; }

int nvmlInit_v2() { return kDone; }
int nvmlShutdown() { return kDone; }
int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  std::strncpy(version, "580.159.04", bytes);
  return kDone;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-fake") != 0) return kNotFound;
  *device = &fake;
  return kDone;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* value) { return give(4, value); }
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* value) { return give(8, value); }
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* value) { return give(5, value); }
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* value) { return give(16, value); }

int nvmlDeviceGetPciInfo_v3(void*, FakePci* pci) {
  *pci = {};
  pci->domain = 0;
  pci->bus = 0x65;
  pci->device = 1;
  std::strcpy(pci->bus_id, "00000000:65:01.0");
  return kDone;
}
int nvmlDeviceGetTemperature(void*, unsigned sensor, unsigned* value) { return give(sensor == 0 ? 61 : 0, value); }
int nvmlDeviceGetTemperatureThreshold(void*, unsigned kind, unsigned* value) { return give(kind == 1 ? 89 : 0, value); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* value) {
  if (!fake.supported) return kNotSupported;
  *value = fake.throttle_reasons;
  return kDone;
}
int nvmlDeviceGetViolationStatus(void*, unsigned policy, unsigned long long* times) {
  if (!fake.supported) return kNotSupported;
  times[0] = 123456;  // reference time, us
  times[1] = policy == 0 ? fake.power_limited_ns : policy == 1 ? fake.thermal_limited_ns : 0;
  return kDone;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* value) { return give(350000, value); }
int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* value) { return give(700000, value); }
int nvmlDeviceGetEccMode(void*, unsigned* current, unsigned* pending) {
  *pending = 0;
  return give(1, current);
}
int nvmlDeviceGetMigMode(void*, unsigned* current, unsigned* pending) {
  *pending = 1;
  return give(0, current);
}
int nvmlDeviceGetPersistenceMode(void*, unsigned* value) { return give(1, value); }
int nvmlDeviceGetTotalEccErrors(void*, unsigned type, unsigned counter, unsigned long long* value) {
  if (!fake.supported) return kNotSupported;
  *value = type == 1 && counter == 0 ? 3 : 99;
  return kDone;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* percent) {
  if (!fake.supported) return kNotSupported;
  percent[0] = 17;
  percent[1] = 4;
  return kDone;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, FakeProcess* processes) {
  if (!fake.supported) return kNotSupported;
  const unsigned room = *count;
  *count = fake.processes;
  if (fake.processes > room) return kTooSmall;
  for (unsigned i = 0; i < fake.processes; ++i) {
    processes[i] = {100 + i, i == 0 ? 5'000'000'000ULL : ~0ULL, 0, 0};
  }
  return kDone;
}

}  // extern "C"
