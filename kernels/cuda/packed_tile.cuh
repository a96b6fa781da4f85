// Shape of a packed matrix (kernels/formats/format.h) and one row tile of it, as the device kernels read them.
#pragma once

#include <cstddef>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/error.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

struct TileShape {
  int blocks = 0;
  int last_lanes = 0;
  int64_t rows = 0;
  int64_t row_tiles = 0;
  int64_t code_bytes_per_tile = 0;
  int64_t scale_bytes_per_tile = 0;
  int64_t scales_offset = 0;

  __device__ __forceinline__ int lanes_of(int block) const { return block + 1 < blocks ? kLanes : last_lanes; }
};
inline TileShape tile_shape(const PackedLayout& layout) {
  return {static_cast<int>(layout.blocks), static_cast<int>(layout.last_lanes), layout.rows,         layout.row_tiles,
          layout.code_bytes_per_tile,      layout.scale_bytes_per_tile,         layout.scales_offset};
}

// `matrix` may be null: then the pointers are offsets.
struct Tile {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
};
__device__ __forceinline__ Tile tile_of(const TileShape& shape, const std::byte* matrix, int64_t tile) {
  return {matrix + tile * shape.code_bytes_per_tile, matrix + shape.scales_offset + tile * shape.scale_bytes_per_tile};
}

// 48 KiB need no asking. The largest carveout for shared memory: what these kernels have under way is there, and L1
// needs no more than the activations.
template <class Kernel>
void allow_shared(Kernel kernel, int64_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "cannot ask for a kernel's share of shared memory");
  if (bytes <= 48 << 10) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cannot give a product kernel its shared memory");
}

}  // namespace ft::cuda
