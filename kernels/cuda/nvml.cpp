#include "kernels/cuda/nvml.h"

#include <dlfcn.h>

namespace ft::cuda {
namespace {

// Prototypes as in NVIDIA's "NVML API reference"; 0 is success. The header is not part of every toolkit, and linking
// against the library would make a driver a condition for starting.
using NvmlDevice = struct NvmlDeviceState*;
using NvmlCall = int (*)();
using NvmlDriverVersion = int (*)(char* version, unsigned bytes);
using NvmlHandleByUuid = int (*)(const char* uuid, NvmlDevice* device);
using NvmlNumber = int (*)(NvmlDevice device, unsigned* value);

constexpr unsigned kVersionBytes = 96;  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80

// Opened once and kept: starting NVML takes milliseconds, and the link is read while copies run.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const auto start = function<NvmlCall>("nvmlInit_v2");
    started_ = start != nullptr && start() == 0;
  }
  ~Nvml() {
    if (started_) {
      if (const auto stop = function<NvmlCall>("nvmlShutdown")) stop();
    }
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool started() const { return started_; }
  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

 private:
  void* library_ = nullptr;
  bool started_ = false;
};

int read_number(const Nvml& nvml, NvmlDevice device, const char* name) {
  const auto read = nvml.function<NvmlNumber>(name);
  unsigned value = 0;
  return read != nullptr && read(device, &value) == 0 ? static_cast<int>(value) : 0;
}

}  // namespace

NvmlFacts nvml_facts(const std::string& uuid) {
  static const Nvml nvml;
  NvmlFacts facts;
  if (!nvml.started()) return facts;
  char version[kVersionBytes] = {};
  const auto read_version = nvml.function<NvmlDriverVersion>("nvmlSystemGetDriverVersion");
  if (read_version != nullptr && read_version(version, sizeof version - 1) == 0) facts.driver = version;
  const auto find = nvml.function<NvmlHandleByUuid>("nvmlDeviceGetHandleByUUID");
  NvmlDevice device = nullptr;
  if (find == nullptr || find(uuid.c_str(), &device) != 0) return facts;
  facts.link_generation = read_number(nvml, device, "nvmlDeviceGetCurrPcieLinkGeneration");
  facts.link_width = read_number(nvml, device, "nvmlDeviceGetCurrPcieLinkWidth");
  facts.link_generation_max = read_number(nvml, device, "nvmlDeviceGetMaxPcieLinkGeneration");
  facts.link_width_max = read_number(nvml, device, "nvmlDeviceGetMaxPcieLinkWidth");
  return facts;
}

}  // namespace ft::cuda
