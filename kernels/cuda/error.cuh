// What a CUDA call answered, as ft::Error. For the .cu files of this folder.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/base/error.h"

namespace ft::cuda {

// "WHAT: CUDA's own words (code name); ACTION". Clears the thread's last error, so that it is reported once.
[[noreturn]] void throw_cuda(cudaError_t code, std::string what, std::string action = {});

inline void check(cudaError_t code, const char* what, const char* action = "") {
  if (code != cudaSuccess) throw_cuda(code, what, action);
}

// After <<<>>>: the launch itself was refused (a grid or a shared memory size out of range, no code for the device).
inline void require_launched(const char* kernel) {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess) throw_cuda(code, std::string("cannot launch the kernel ") + kernel);
}

// A function of the driver by name, as of CUDA 12.0; null when this driver has none. Keeps us off -lcuda, which is not
// there on a machine without a driver.
void* driver_function(const char* name);

}  // namespace ft::cuda
