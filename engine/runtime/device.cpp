#include "engine/runtime/device.h"

#include <algorithm>
#include <cstdio>

#include "kernels/base/error.h"
#include "kernels/base/size_text.h"

namespace ft {

DeviceChoice choose_device(std::string_view asked, int devices, const std::string& why_none) {
  if (asked == device_name(Device::kHost)) return {Device::kHost, "asked for"};
  if (devices > 0) {
    const bool several = devices > 1;
    return {Device::kCuda, several ? "the first of " + std::to_string(devices) + " GPUs" : "there is a GPU"};
  }
  if (asked == device_name(Device::kCuda)) {
    throw Error(ErrorKind::kUsage, {.what = "no CUDA device can be used (" + why_none + ")",
                                    .value = std::string(asked),
                                    .allowed = "auto or host",
                                    .action = "use --device host",
                                    .path = "--device"});
  }
  return {Device::kHost, "no CUDA device can be used: " + why_none};
}

DeviceChoice choose_device(std::string_view asked) {
  if (asked == device_name(Device::kHost)) return choose_device(asked, 0, {});
  std::string why_none;
  const int devices = cuda::device_count(&why_none);
  return choose_device(asked, devices, why_none);
}

std::optional<cuda::DeviceFacts> start_device(Device device) {
  if (device != Device::kCuda) return std::nullopt;
  cuda::use_device(0);
  return cuda::device_facts(0);
}

int64_t offered_device_bytes(const cuda::DeviceFacts& gpu) {
  return std::max<int64_t>(0, gpu.free_bytes - kDeviceReserveBytes);
}

std::string bank_times_text(const BankTimes& times) {
  const double seconds = times.fill_seconds + times.register_seconds;
  const double rate = seconds > 0 ? static_cast<double>(times.bytes) / seconds : 0;
  char text[128];
  std::snprintf(text, sizeof text, " ready in %.2f s: %s (filled in %.2f s, registered in %.2f s)", seconds,
                rate_text(rate).c_str(), times.fill_seconds, times.register_seconds);
  return size_text(times.bytes) + text;
}

std::string link_text(int generation, int width) {
  if (generation <= 0 || width <= 0) return {};
  return "PCIe " + std::to_string(generation) + " x" + std::to_string(width);
}

}  // namespace ft
