#include <cuda_runtime.h>
#include "kernels/cuda/device.h"
namespace ft::cuda {
int device_count(std::string* reason) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  cudaGetLastError();
  if (reason != nullptr) *reason = cudaGetErrorString(code);
  return 0;
}
}
