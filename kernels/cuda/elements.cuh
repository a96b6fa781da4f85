// Launches with a thread for each element of some rows.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace ft::cuda {

// `cols` elements of `tokens` rows, in blocks of kThreads; blockIdx.y is the row.
template <int kThreads>
dim3 elements_grid(int64_t cols, int64_t tokens) {
  FT_CHECK(tokens <= kMaxGridY);
  return {static_cast<unsigned>(ceil_div(cols, kThreads)), static_cast<unsigned>(tokens)};
}
template <int kThreads>
__device__ __forceinline__ int64_t element() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

}  // namespace ft::cuda
