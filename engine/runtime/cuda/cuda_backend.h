// The CUDA device as a serving backend: one graph per batch size for a decode step, launches in order for prefill.
//
// Decode: inputs are copied in, the whole step runs on the device, logits are copied out; the calling thread serves the
// CPU's experts as the device posts them and makes no call that could synchronize until the step has ended. In no-wait
// mode (for sanitizers and profilers) the same launches go one by one, and the thread serves between them.
// Prefill: the slot table is neither asked nor changed; experts that are in slots are read there, the others are
// streamed through staging buffers by the copy engine. Its arithmetic is that of kernels/cuda/prefill.h for every token
// of a prompt, and depends on the token's position only.
// Thread rule: one thread calls.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/engine_config.h"
#include "engine/runtime/backend_parts.h"
#include "engine/runtime/cuda/device_weights.h"
#include "kernels/registry.h"

namespace ft {

struct CudaBackendParts {
  BackendParts backend;
  const KernelTable& kernels;  // of the CPU arm
  const EngineConfig& config;
  std::shared_ptr<const DeviceWeights> weights;
  int max_distinct = 0;  // experts of one layer at the largest decode batch
};
// Throws Error(kFailed) when the device's memory does not suffice or the build has no CUDA.
std::unique_ptr<ServeBackend> make_cuda_backend(const CudaBackendParts& parts);

}  // namespace ft
