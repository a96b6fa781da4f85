// Row operations of a transformer layer, on fp32 rows. All sums use 16 lanes: lane l sums the elements i with
// i mod 16 == l in increasing i by fma or add, then the fixed tree (8, 4, 2, 1). Elements past the row count as +0.
// All flush denormals. Same bits on every ISA.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"

namespace ft {

// y[i] = (x[i] * r) * w[i], r = 1 / sqrt(sum(x^2) / cols + eps): IEEE division and square root. y may be x.
struct RmsnormArgs {
  const float* x = nullptr;  // (tokens, cols), x_stride floats apart
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t tokens = 0;
  int64_t cols = 0;
  const float* w = nullptr;  // (cols)
  float eps = 0;
};
using RmsnormFn = void (*)(const RmsnormArgs&);

// Per head: rmsnorm over head_dim with weight w (null: none), then half-split rotation of the first 2*rotary_half
// dimensions: (a, b) = (x[j], x[j + half]) -> (fma(a, cos, -(b * sin)), fma(b, cos, a * sin)). In place.
struct HeadNormRopeArgs {
  float* x = nullptr;  // (heads, head_dim)
  int64_t heads = 0;
  int64_t head_dim = 0;
  const float* w = nullptr;  // (head_dim) or null
  float eps = 0;
  const float* cos = nullptr;  // (rotary_half) of this token's position
  const float* sin = nullptr;
  int64_t rotary_half = 0;
};
using HeadNormRopeFn = void (*)(const HeadNormRopeArgs&);

// y = silu(gate) * up, elementwise: (g / (1 + exp(-g))) * u. y may be gate.
struct SiluMulArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* y = nullptr;
  int64_t count = 0;
};
using SiluMulFn = void (*)(const SiluMulArgs&);

// x += y, elementwise.
struct AddArgs {
  float* x = nullptr;
  const float* y = nullptr;
  int64_t count = 0;
};
using AddFn = void (*)(const AddArgs&);

// out[i] = fma(weight[s], y[s][i], out[i]) for s = 0 .. slots-1 in order, from out = 0. Expert outputs in top-k order.
struct MergeArgs {
  const float* const* y = nullptr;  // (slots) rows of cols
  const float* weight = nullptr;    // (slots)
  int64_t slots = 0;
  int64_t cols = 0;
  float* out = nullptr;
};
using MergeFn = void (*)(const MergeArgs&);

// Softmax over all experts in fp32, the k largest (ties to the lower index), largest first; weights optionally divided
// by their sum (added in order). exp is kernels/ops/exp.h, the maximum is subtracted.
struct RouterTopKArgs {
  const float* logits = nullptr;  // (experts)
  int64_t experts = 0;
  int64_t k = 0;
  bool renormalize = false;
  float* scratch = nullptr;  // (experts)
  int32_t* ids = nullptr;    // (k)
  float* weights = nullptr;  // (k)
};
using RouterTopKFn = void (*)(const RouterTopKArgs&);

}  // namespace ft
