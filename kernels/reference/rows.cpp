// Reference of the row operations: kernels/ops/rows.h.
#include "kernels/ops/rows.h"

#include "kernels/reference/scalar_math.h"

namespace ft::reference {
namespace {

// y may be x.
void norm_row(const float* x, float* y, const float* w, int64_t cols, float eps) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < cols; ++i) lanes[i % kLanes] = fma(x[i], x[i], lanes[i % kLanes]);
  const float mean = div(tree_sum(lanes), static_cast<float>(cols));
  const float r = div(1.0f, sqrt(add(mean, eps)));
  for (int64_t i = 0; i < cols; ++i) y[i] = mul(mul(x[i], r), w[i]);
}

}  // namespace

void rmsnorm(const RmsnormArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    norm_row(args.x + t * args.x_stride, args.y + t * args.y_stride, args.w, args.cols, args.eps);
  }
}

void head_norm_rope(const HeadNormRopeArgs& args) {
  for (int64_t h = 0; h < args.heads; ++h) {
    float* x = args.x + h * args.head_dim;
    if (args.w != nullptr) norm_row(x, x, args.w, args.head_dim, args.eps);
    for (int64_t j = 0; j < args.rotary_half; ++j) {
      const float a = x[j];
      const float b = x[j + args.rotary_half];
      x[j] = fma(a, args.cos[j], -mul(b, args.sin[j]));
      x[j + args.rotary_half] = fma(b, args.cos[j], mul(a, args.sin[j]));
    }
  }
}

void glu(const GluArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.y[i] = glu(args.glu, args.gate[i], args.up[i]);
}

void add(const AddArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.x[i] = mul(add(args.x[i], args.y[i]), args.scale);
}

void softcap(const SoftcapArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const float e = exp(mul(-2.0f, std::fabs(div(args.x[i], args.cap))));
    const float size = div(sub(1.0f, e), add(1.0f, e));
    args.x[i] = mul(args.cap, std::copysign(size, args.x[i]));
  }
}

void gate(const GateArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const float g = flush(args.gate[i]);
    args.x[i] = mul(args.x[i], div(args.kind == GateKind::kSilu ? g : 1.0f, add(1.0f, exp(-g))));
  }
}

void merge(const MergeArgs& args) {
  for (int64_t i = 0; i < args.cols; ++i) {
    float out = 0.0f;
    for (int64_t s = 0; s < args.slots; ++s) out = fma(args.weight[s], args.y[s][i], out);
    args.out[i] = out;
  }
}

}  // namespace ft::reference
