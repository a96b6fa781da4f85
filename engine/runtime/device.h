// Which device serves and what it offers: asked once, before anything is loaded.
//
// Thread rule: main thread, before engines are made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine_config.h"
#include "engine/runtime/cuda/device_weights.h"
#include "kernels/cuda/device.h"

namespace ft {

// Left free on a GPU beside what the memory plan counts: the graphs of all batch sizes (for 64 of them over 100 layers
// some 100 000 nodes of about 1 KB), the streams' stacks, rounding of every allocation to 2 MiB, and what the driver
// takes when kernels start. The context itself is there when free memory is asked for.
inline constexpr int64_t kDeviceReserveBytes = int64_t{1} << 30;

struct DeviceChoice {
  Device device = Device::kHost;
  std::string reason;  // for people, of "auto": why this one
};
// asked: "auto" (cuda when there is a device, else host), "cuda" or "host". `devices` and `why_none` are
// cuda::device_count's. Pure. Throws Error(kUsage) with that reason when cuda is asked for and there is none.
DeviceChoice choose_device(std::string_view asked, int devices, const std::string& why_none);
DeviceChoice choose_device(std::string_view asked);  // asks the driver, unless the host is asked for

// On cuda: the process uses device 0 from here on, and these are its facts as they are now. Throws Error(kFailed). On
// the host: nothing.
std::optional<cuda::DeviceFacts> start_device(Device device);

// What is left of a device's free memory for the memory plan; 0 when it is less than the reserve.
int64_t offered_device_bytes(const cuda::DeviceFacts& gpu);

// "51.5 GB ready in 4.10 s: 12.6 GB/s (filled in 2.90 s, registered in 1.20 s)".
std::string bank_times_text(const BankTimes& times);

std::string link_text(int generation, int width);  // "PCIe 5 x16"; empty when not known

}  // namespace ft
