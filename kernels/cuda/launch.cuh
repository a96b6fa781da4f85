// What the launchers share: sizes of grids, the switch over formats, and launches that overlap their predecessor.
//
// Programmatic dependent launch (CUDA programming guide of that name; PTX griddepcontrol): a kernel launched by
// launch() may start while the kernel before it in the stream still runs, which takes a dependent node from 0.75 us
// down to what its first loads cost. Rules for both sides:
// - Every thread of a kernel that is launched so calls wait_for_previous() before it reads or writes memory that
// another
//   kernel of the step touches, and some block of every kernel does before it ends: if none did, its successor could
//   run before its predecessor has ended. What no kernel of the step writes may be read before: weights, and the step's
//   inputs and what earlier steps left, since begin_step, a step's first kernel, lets nothing start before it has
//   ended.
// - let_next_start() only lets blocks of the successor become resident; what they may read is decided by their own
//   wait, which is for the end of this whole grid and for its memory to be visible. Call it early.
// - A launch that follows a join of streams has several predecessors: launch_after_all(), which keeps full edges.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/error.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Blocks in y and z of a grid.
inline constexpr int64_t kMaxGridY = 65535;

// Whether the code that runs here has griddepcontrol: compiled for sm_90 or newer (PTX of an older one has not).
bool programmatic_launch();

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class... Parameters, class... Args>
void launch_with(bool overlap, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                 StreamHandle stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap && programmatic_launch() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), "cannot launch a kernel");
}

// May overlap the end of the kernel before it in the stream; also while a graph is captured. Throws what refused it.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, StreamHandle stream,
            Args&&... args) {
  launch_with(true, kernel, grid, block, shared_bytes, stream, std::forward<Args>(args)...);
}

// Starts when everything before it has ended. For the first launch after another stream was joined.
template <class... Parameters, class... Args>
void launch_after_all(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, StreamHandle stream,
                      Args&&... args) {
  launch_with(false, kernel, grid, block, shared_bytes, stream, std::forward<Args>(args)...);
}

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
