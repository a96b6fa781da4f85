#include "tests/bench/step_trace.h"

#include <cupti.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"

namespace ft::bench {
namespace {

constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
                                  "/usr/local/cuda/lib64/libcupti.so"};
constexpr size_t kBufferBytes = 8 << 20;
constexpr size_t kBufferAlignment = 8;  // as CUPTI asks

struct Library {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

  bool open() {
    void* library = nullptr;
    for (const char* name : kNames) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return false;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return find(register_callbacks, "cuptiActivityRegisterCallbacks") && find(enable, "cuptiActivityEnable") &&
           find(disable, "cuptiActivityDisable") && find(flush, "cuptiActivityFlushAll") &&
           find(next_record, "cuptiActivityGetNextRecord") && find(result_string, "cuptiGetResultString");
  }
};

// CUPTI's callbacks get no argument of ours, so what they fill is static.
struct Recorder {
  Library library;
  std::mutex mutex;
  std::vector<KernelSpan> kernels;
};
Recorder& recorder() {
  static Recorder instance;
  return instance;
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  Recorder& to = recorder();
  const std::lock_guard lock(to.mutex);
  CUpti_Activity* record = nullptr;
  while (to.library.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    to.kernels.push_back({kernel->name == nullptr ? "" : kernel->name, kernel->start, kernel->end});
  }
  std::free(buffer);
}

}  // namespace

StepTrace::StepTrace() {
  Library& library = recorder().library;
  if (!library.open()) {
    why_not_ = "CUPTI's library (libcupti.so.13) is not there";
    return;
  }
  for (const CUptiResult result :
       {library.register_callbacks(give_buffer, take_buffer), library.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)}) {
    if (result == CUPTI_SUCCESS) continue;
    const char* text = nullptr;
    library.result_string(result, &text);
    why_not_ = std::string("CUPTI refuses: ") + (text == nullptr ? "unknown error" : text);
    return;
  }
}

StepTrace::~StepTrace() {
  if (!why_not_.empty()) return;
  recorder().library.flush(0);
  recorder().library.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  recorder().kernels.clear();
}

void StepTrace::restart() { kernels(); }

std::vector<KernelSpan> StepTrace::kernels() {
  FT_CHECK(why_not_.empty());
  Recorder& from = recorder();
  from.library.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(from.mutex);
  return std::exchange(from.kernels, {});
}

}  // namespace ft::bench
