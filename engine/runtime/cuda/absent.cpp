// The CUDA device in a build without CUDA.
#include "engine/runtime/cuda/cuda_backend.h"
#include "engine/runtime/cuda/device_weights.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::kFailed, {.what = "this build has no CUDA device",
                                   .action = "build with the CUDA toolkit installed, or tune with --device host"});
}

}  // namespace

std::shared_ptr<const DeviceWeights> upload_weights(
    const ModelWeights&, const ProgressFn&,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): CUDA keeps it
    std::shared_ptr<const cuda::RegisteredMemory>) {
  refuse();
}
BankTimes bank_times(const ModelWeights&, const DeviceWeights&) { refuse(); }
std::unique_ptr<ServeBackend> make_cuda_backend(const CudaBackendParts&) { refuse(); }

}  // namespace ft
