// What embed and a step's first launch write of a row.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"

namespace ft::cuda {

__device__ __forceinline__ void write_embedded(const EmbedArgs& args, int64_t token, int64_t i, bf16 value) {
  const float scaled = f32::mul(low_bf16(value.bits), args.scale);
  float* out = args.out + token * args.out_stride + i;
  for (int copy = 0; copy < args.copies; ++copy) out[copy * args.width] = scaled;
}

}  // namespace ft::cuda
