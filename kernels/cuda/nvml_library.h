// NVML, loaded when it is there. Prototypes as in NVIDIA's "NVML API reference"; 0 is success. The header is not part
// of every toolkit, and linking against the library would make a driver a condition for starting.
//
// Thread rule: any thread.
#pragma once

#include <dlfcn.h>

#include <optional>
#include <string>

namespace ft::cuda {

using NvmlDevice = struct NvmlDeviceState*;

// Opened once and kept: starting NVML takes milliseconds, and the link is read while copies run.
class NvmlLibrary {
 public:
  NvmlLibrary();
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool started() const { return started_; }
  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }
  // null: no such device.
  NvmlDevice device(const std::string& uuid) const;

  // What a function of (device, Value*) or (device, selector, Value*) writes; none when it is missing or fails.
  template <class Value>
  std::optional<Value> read(NvmlDevice device, const char* name) const {
    const auto call = function<int (*)(NvmlDevice, Value*)>(name);
    Value value{};
    if (call == nullptr || call(device, &value) != 0) return std::nullopt;
    return value;
  }
  template <class Value>
  std::optional<Value> read(NvmlDevice device, const char* name, unsigned selector) const {
    const auto call = function<int (*)(NvmlDevice, unsigned, Value*)>(name);
    Value value{};
    if (call == nullptr || call(device, selector, &value) != 0) return std::nullopt;
    return value;
  }

 private:
  void* library_ = nullptr;
  bool started_ = false;
};

const NvmlLibrary& nvml_library();

}  // namespace ft::cuda
