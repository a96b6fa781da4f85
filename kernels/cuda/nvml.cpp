#include "kernels/cuda/nvml.h"

#include "kernels/cuda/nvml_library.h"

namespace ft::cuda {
namespace {

using NvmlCall = int (*)();
using NvmlDriverVersion = int (*)(char* version, unsigned bytes);
using NvmlHandleByUuid = int (*)(const char* uuid, NvmlDevice* device);

constexpr unsigned kVersionBytes = 96;  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80

int read_number(const NvmlLibrary& nvml, NvmlDevice device, const char* name) {
  return static_cast<int>(nvml.read<unsigned>(device, name).value_or(0));
}

}  // namespace

NvmlLibrary::NvmlLibrary() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  const auto start = function<NvmlCall>("nvmlInit_v2");
  started_ = start != nullptr && start() == 0;
}

NvmlLibrary::~NvmlLibrary() {
  if (started_) {
    if (const auto stop = function<NvmlCall>("nvmlShutdown")) stop();
  }
  if (library_ != nullptr) dlclose(library_);
}

NvmlDevice NvmlLibrary::device(const std::string& uuid) const {
  const auto find = function<NvmlHandleByUuid>("nvmlDeviceGetHandleByUUID");
  NvmlDevice device = nullptr;
  if (find == nullptr || find(uuid.c_str(), &device) != 0) return nullptr;
  return device;
}

const NvmlLibrary& nvml_library() {
  static const NvmlLibrary library;
  return library;
}

NvmlFacts nvml_facts(const std::string& uuid) {
  const NvmlLibrary& nvml = nvml_library();
  NvmlFacts facts;
  if (!nvml.started()) return facts;
  char version[kVersionBytes] = {};
  const auto read_version = nvml.function<NvmlDriverVersion>("nvmlSystemGetDriverVersion");
  if (read_version != nullptr && read_version(version, sizeof version - 1) == 0) facts.driver = version;
  const NvmlDevice device = nvml.device(uuid);
  if (device == nullptr) return facts;
  facts.link_generation = read_number(nvml, device, "nvmlDeviceGetCurrPcieLinkGeneration");
  facts.link_width = read_number(nvml, device, "nvmlDeviceGetCurrPcieLinkWidth");
  facts.link_generation_max = read_number(nvml, device, "nvmlDeviceGetMaxPcieLinkGeneration");
  facts.link_width_max = read_number(nvml, device, "nvmlDeviceGetMaxPcieLinkWidth");
  return facts;
}

}  // namespace ft::cuda
