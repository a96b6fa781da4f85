// How every merge of a token's experts ends (kernels/ops/rows.h merge, then add).
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"

namespace ft::cuda {

__device__ __forceinline__ float shared_weight(const SharedRows& shared, int64_t token) {
  return shared.gate == nullptr ? 1.0f : f32::sigmoid(shared.gate[token]);
}

// The expert that every token uses comes last.
__device__ __forceinline__ float merge_shared(const SharedRows& shared, int64_t token, int64_t column, float merged) {
  if (shared.rows == nullptr) return merged;
  return f32::fma(shared_weight(shared, token), shared.rows[token * shared.stride + column], merged);
}

}  // namespace ft::cuda
