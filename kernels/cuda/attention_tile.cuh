// What the attention kernels on tensor cores share: rows in shared memory and the base of their exponentials.
#pragma once

#include "kernels/cuda/mma.cuh"

namespace ft::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

// 16 bytes of a row of kDim elements: chunks of a row change places with the row, so that eight rows' chunks, which
// load_matrices reads together, are in eight places of the banks.
template <int kDim>
__device__ __forceinline__ uint32_t row_chunk(uint32_t buffer, int row, int chunk) {
  return buffer + static_cast<uint32_t>(row * (kDim * 2) + ((chunk ^ (row & 7)) << 4));
}

}  // namespace ft::cuda
