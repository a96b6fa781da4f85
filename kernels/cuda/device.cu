#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/nvml.h"

namespace ft::cuda {
namespace {

constexpr int kEagerLoading = 1;  // CU_MODULE_EAGER_LOADING

__global__ void loaded_kernel() {}

// A kernel that is loaded at its first launch may synchronize the device, and then waits for the very kernel that waits
// for the CPU. The driver reads this variable when it starts, so it is set before this library's first call.
void ask_for_eager_loading() {
  static const int set = setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  FT_CHECK(set == 0);
}

void check_eager_loading() {
  using LoadingMode = int (*)(int* mode);
  const auto loading_mode = reinterpret_cast<LoadingMode>(driver_function("cuModuleGetLoadingMode"));
  int mode = kEagerLoading;
  if (loading_mode == nullptr || loading_mode(&mode) != 0 || mode == kEagerLoading) return;
  throw Error(ErrorKind::kFailed, {.what = "CUDA loads kernels at their first launch, which can stop a running step",
                                   .value = "CUDA_MODULE_LOADING",
                                   .allowed = "EAGER",
                                   .action = "set it before anything in this process calls CUDA"});
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += digits;
  }
  return text;
}

cudaDeviceProp properties_of(int index) {
  std::string reason;
  const int count = device_count(&reason);
  if (count == 0) {
    throw Error(ErrorKind::kFailed, {.what = "no CUDA device can be used",
                                     .value = reason,
                                     .action = "install the NVIDIA driver, or use --device host"});
  }
  if (index < 0 || index >= count) {
    throw Error(ErrorKind::kFailed, {.what = "no such CUDA device",
                                     .value = std::to_string(index),
                                     .allowed = "0 to " + std::to_string(count - 1),
                                     .action = "CUDA_VISIBLE_DEVICES may hide devices"});
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cannot read the properties of the CUDA device");
  return properties;
}

}  // namespace

// All objects of this library are compiled for the same machines, so one kernel speaks for the others.
bool programmatic_launch() {
  static const bool supported = [] {
    constexpr int kSinceVirtualArchitecture = 90;
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, loaded_kernel), "cannot read the attributes of a kernel");
    return attributes.ptxVersion >= kSinceVirtualArchitecture;
  }();
  return supported;
}

void throw_cuda(cudaError_t code, std::string what, std::string action) {
  cudaGetLastError();
  if (action.empty()) {
    action = code == cudaErrorMemoryAllocation ? "free device memory, or ask for less"
                                               : "look at the driver's log (dmesg), and start the program again";
  }
  throw Error(ErrorKind::kFailed, {.what = std::move(what),
                                   .value = std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ")",
                                   .action = std::move(action)});
}

void* driver_function(const char* name) {
  constexpr unsigned kSinceVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &function, kSinceVersion, cudaEnableDefault, &found);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

int device_count(std::string* reason) {
  ask_for_eager_loading();
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  int driver = 0;
  const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  if (reason != nullptr) {
    *reason = !has_driver           ? "there is no NVIDIA driver"
              : code == cudaSuccess ? "the driver offers no device"
                                    : cudaGetErrorString(code);
  }
  return 0;
}

void use_device(int index) {
  const cudaDeviceProp properties = properties_of(index);
  // Waits poll and yield between polls: as quick as spinning while a core is free, and on a crowded host the waiting
  // thread gives way instead of taking a scheduler tick from the CPU experts (8 ms was measured for one such thread).
  // Steps are not waited for this way at all: the host polls CpuMailbox::finished.
  check(cudaInitDevice(index, cudaDeviceScheduleYield | cudaDeviceMapHost, cudaInitDeviceFlagsAreValid),
        "cannot start the CUDA device", "see whether another program has it in exclusive mode (nvidia-smi -q)");
  check(cudaSetDevice(index), "cannot use the CUDA device");
  if (properties.unifiedAddressing == 0 || properties.canMapHostMemory == 0) {
    throw Error(ErrorKind::kFailed, {.what = "the CUDA device cannot read host memory in place",
                                     .value = properties.name,
                                     .action = "use --device host"});
  }
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, loaded_kernel);
  if (code != cudaSuccess) {
    const std::string capability = std::to_string(properties.major * 10 + properties.minor);
    throw_cuda(code, "this build has no kernels for the device's compute capability " + capability,
               "configure with -Dsm=" + capability + " and build again");
  }
  check_eager_loading();
}

DeviceFacts device_facts(int index) {
  const cudaDeviceProp properties = properties_of(index);
  DeviceFacts facts;
  facts.name = properties.name;
  facts.uuid = uuid_text(properties.uuid);
  facts.compute_capability = properties.major * 10 + properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  facts.l2_bytes = properties.l2CacheSize;
  int current = 0;
  check(cudaGetDevice(&current), "cannot tell which CUDA device is in use");
  if (current != index) check(cudaSetDevice(index), "cannot use the CUDA device");
  size_t free_bytes = 0, total_bytes = 0;
  const cudaError_t code = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (current != index) check(cudaSetDevice(current), "cannot use the CUDA device");
  check(code, "cannot read the CUDA device's free memory");
  facts.free_bytes = static_cast<int64_t>(free_bytes);
  const NvmlFacts nvml = nvml_facts(facts.uuid);
  facts.driver = nvml.driver;
  facts.link_generation_max = nvml.link_generation_max;
  facts.link_width_max = nvml.link_width_max;
  return facts;
}

std::string device_uuid(int index) { return uuid_text(properties_of(index).uuid); }

LinkState link_state(int index) {
  const NvmlFacts nvml = nvml_facts(device_uuid(index));
  return {nvml.link_generation, nvml.link_width};
}

// Non-blocking: work on the default stream, if some library starts any, does not order ours.
Stream::Stream() { check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cannot create a CUDA stream"); }

Stream::~Stream() { cudaStreamDestroy(handle_); }

void Stream::synchronize() { check(cudaStreamSynchronize(handle_), "work on the CUDA device failed"); }

bool Stream::idle() const {
  const cudaError_t code = cudaStreamQuery(handle_);
  if (code == cudaErrorNotReady) return false;
  check(code, "work on the CUDA device failed");
  return true;
}

Event::Event(bool timed) {
  check(cudaEventCreateWithFlags(&handle_, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cannot create a CUDA event");
}

Event::~Event() { cudaEventDestroy(handle_); }

void Event::record(StreamHandle stream) { check(cudaEventRecord(handle_, stream), "cannot record a CUDA event"); }

void Event::make_wait(StreamHandle stream) const {
  check(cudaStreamWaitEvent(stream, handle_, 0), "cannot make a CUDA stream wait for an event");
}

void Event::synchronize() { check(cudaEventSynchronize(handle_), "work on the CUDA device failed"); }

double Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_), "cannot read the time between CUDA events",
        "both events must be timed and have passed");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace ft::cuda
