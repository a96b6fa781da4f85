// A loaded model's weights where a CUDA device reads them: dense ones copied to its memory, expert banks registered in
// host memory and read in place over the link. Made once, shared by the engines of a process.
//
// Thread rule: immutable after construction. A build without CUDA has no instances: upload_weights throws.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/model/weights.h"
#include "kernels/cuda/device.h"

namespace ft {

class DeviceWeights;

// Copies and registers; several seconds for tens of GB. Throws Error(kFailed): no device, not enough memory, pinning
// refused. `weights` must outlive the result. `registered`: of LoadOptions::bank_memory, from its first byte, when the
// caller registered it once for all the models that it will hold; null: the banks are registered here.
std::shared_ptr<const DeviceWeights> upload_weights(const ModelWeights& weights, const ProgressFn& progress = {},
                                                    std::shared_ptr<const cuda::RegisteredMemory> registered = {});

// What it took until the device could read the expert banks.
struct BankTimes {
  int64_t bytes = 0;
  double fill_seconds = 0;      // from the allocation until they were filled: touched and packed or made
  double register_seconds = 0;  // pinned and mapped
};
BankTimes bank_times(const ModelWeights& weights, const DeviceWeights& on_device);

}  // namespace ft
