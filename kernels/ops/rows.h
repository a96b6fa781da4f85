// Row operations of a transformer layer, on fp32 rows. All sums use 16 lanes from +0: lane l sums the elements i with
// i mod 16 == l in increasing i, then the fixed tree adds lane i + width to lane i for widths 8, 4, 2, 1. Elements past
// the row count as +0.
//
// Every fp32 operation flushes denormal inputs and results (kernels/reference/scalar_math.h says where exactly), and
// each kernel sets that mode itself. Same bits on every ISA; NaN matches NaN, its sign and payload are not promised.
// Pointers need no more than their type's alignment. Counts may be 0. Rows may be the same where the text says so, and
// must not overlap otherwise. No allocation, no shared state: any thread may call.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"
#include "kernels/ops/glu.h"

namespace ft {

// y[i] = (x[i] * r) * w[i], r = 1 / sqrt(s / cols + eps), s = the sum of squares by fma(x, x, lane). IEEE division and
// square root. y may be x.
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

// Per head: rmsnorm over head_dim with weight w (null: no norm at all), then half-split rotation of the first
// 2*rotary_half dimensions, j < rotary_half: (a, b) = (x[j], x[j + rotary_half]) ->
// (fma(a, cos[j], -(b * sin[j])), fma(b, cos[j], a * sin[j])). In place. REQUIRES 2 * rotary_half <= head_dim.
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

// x = (x + y) * scale, elementwise. y may be x.
struct AddArgs {
  float* x = nullptr;
  const float* y = nullptr;
  int64_t count = 0;
  float scale = 1;
};
using AddFn = void (*)(const AddArgs&);

// x[i] = x[i] * act(gate[i]): sigmoid is 1 / (1 + exp(-g)), silu g / (1 + exp(-g)), with kernels/ops/exp.h and a
// correctly rounded division.
enum class GateKind : uint8_t { kSilu, kSigmoid };
struct GateArgs {
  float* x = nullptr;
  const float* gate = nullptr;
  int64_t count = 0;
  GateKind kind = GateKind::kSilu;
};
using GateFn = void (*)(const GateArgs&);

// out[i] = fma(weight[s], y[s][i], out[i]) for s = 0 .. slots-1 in order, from out = +0. Expert outputs in top-k order.
struct MergeArgs {
  const float* const* y = nullptr;  // (slots) rows of cols
  const float* weight = nullptr;    // (slots)
  int64_t slots = 0;
  int64_t cols = 0;
  float* out = nullptr;  // (cols)
};
using MergeFn = void (*)(const MergeArgs&);

inline constexpr int64_t kMaxTopK = 64;
inline constexpr int64_t kMaxRoutedExperts = 4096;

// p[i] = exp(logits[i] - max) / sum, the sum over lanes as above; ids are the k largest p, largest first, ties to the
// lower index; weights[s] = p[ids[s]], divided by their sum (added in order from +0) when `renormalize`, and at last
// multiplied by expert_scale[ids[s]] where there is one.
// A NaN or +inf logit, or no logit above -inf, makes every p NaN: then ids are 0 .. k-1 and every weight is NaN.
// REQUIRES 0 <= k <= min(experts, kMaxTopK), experts <= kMaxRoutedExperts.
struct RouterTopKArgs {
  const float* logits = nullptr;  // (experts)
  int64_t experts = 0;
  int64_t k = 0;
  bool renormalize = false;
  float* scratch = nullptr;             // (experts); p on return
  int32_t* ids = nullptr;               // (k)
  float* weights = nullptr;             // (k)
  const float* expert_scale = nullptr;  // (experts) or null
};
using RouterTopKFn = void (*)(const RouterTopKArgs&);

// Logits that stay within -cap and cap: x = cap * tanh(x / cap), in place, where
//   t = x / cap; e = exp(-2 |t|); tanh = (1 - e) / (1 + e) with the sign of x
// with kernels/ops/exp.h and correctly rounded divisions: off by less than 2^-21 * cap. REQUIRES cap > 0.
struct SoftcapArgs {
  float* x = nullptr;
  int64_t count = 0;
  float cap = 0;
};
using SoftcapFn = void (*)(const SoftcapArgs&);

}  // namespace ft
