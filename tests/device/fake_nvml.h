// What the fake NVML answers, and structs as NVIDIA's "NVML API reference" lays them out.
#pragma once

struct FakeNvml {
  bool supported = true;  // false: every question is answered with "not supported"
  unsigned long long throttle_reasons = 0x1, power_limited_ns = 0, thermal_limited_ns = 0;
  unsigned processes = 0;
};

struct FakePci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct FakeProcess {
  unsigned pid;
  unsigned long long memory_bytes;
  unsigned gpu_instance, compute_instance;
};

extern "C" FakeNvml* fake_nvml();
