// Of device.h what programs ask before they choose a device, in a build without CUDA.
#include "kernels/base/error.h"
#include "kernels/cuda/conditions.h"
#include "kernels/cuda/device.h"

namespace ft::cuda {
namespace {

constexpr const char* kReason =
    "this build has no CUDA: when it was configured, nvcc was not found or -Dcuda=disabled was given";

[[noreturn]] void refuse() {
  throw Error(ErrorKind::kFailed, {.what = "no CUDA device can be used",
                                   .value = kReason,
                                   .action = "install the CUDA toolkit and build again, or use --device host"});
}

}  // namespace

int device_count(std::string* reason) {
  if (reason != nullptr) *reason = kReason;
  return 0;
}
void use_device(int) { refuse(); }
DeviceFacts device_facts(int) { refuse(); }
std::string device_uuid(int) { refuse(); }
void under_link_load(const std::function<void()>&) { refuse(); }
LinkState link_state(int) { return {}; }

}  // namespace ft::cuda
