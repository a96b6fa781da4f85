// What launchers share: the check behind a launch, and the switch over formats.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/formats/format.h"

namespace ft::cuda {

// Throws Error(kFailed) naming the kernel when its launch was refused.
inline void check_launch(const char* kernel) {
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return;
  throw Error(ErrorKind::kFailed, {.what = std::string("cannot launch the CUDA kernel ") + kernel,
                                   .value = cudaGetErrorString(code),
                                   .action = "this is a fault of the program or the driver; see what ran before it"});
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Blocks in y and z of a grid.
inline constexpr int64_t kMaxGridY = 65535;

// Calls f.template operator()<FormatId>() for `format`.
template <class F>
void with_format(FormatId format, F&& f) {
  switch (format) {
#define FT_FORMAT(id, name)                \
  case FormatId::id:                       \
    f.template operator()<FormatId::id>(); \
    return;
#include "kernels/formats/formats.def"
#undef FT_FORMAT
  }
  FT_CHECK(false);
}

}  // namespace ft::cuda
