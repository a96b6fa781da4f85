// Reference of the gated delta net: kernels/ops/delta_net.h.
#include "kernels/ops/delta_net.h"

#include <bit>

#include "kernels/reference/scalar_math.h"

namespace ft::reference {
namespace {

constexpr int64_t kColumns = 16;  // of a block of the state
constexpr int kParts = 4;

float join(const float parts[kParts]) { return add(add(parts[0], parts[2]), add(parts[1], parts[3])); }

float sigmoid(float x) { return div(1.0f, add(1.0f, exp(-x))); }

}  // namespace

void causal_conv(const CausalConvArgs& args) {
  const int64_t before = (args.taps - 1) * args.dilation;
  for (int64_t c = 0; c < args.channels; ++c) {
    float inputs[(kMaxConvTaps - 1) * kMaxConvDilation + 1] = {};  // of the token and those before it, oldest first
    for (int64_t i = 0; i < before; ++i) inputs[i] = args.history[i * args.history_stride + c];
    for (int64_t t = 0; t < args.tokens; ++t) {
      float& x = args.x[t * args.x_stride + c];
      inputs[before] = x;
      float y = 0.0f;
      for (int64_t j = 0; j < args.taps; ++j) y = fma(args.w[j * args.w_stride + c], inputs[j * args.dilation], y);
      x = div(y, add(1.0f, exp(-y)));
      for (int64_t i = 0; i < before; ++i) inputs[i] = inputs[i + 1];
    }
    for (int64_t i = 0; i < before; ++i) args.history[i * args.history_stride + c] = inputs[i];
  }
}

void l2_norm(const L2NormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    float* x = args.x + row * args.x_stride;
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < args.cols; ++i) lanes[i % kLanes] = fma(x[i], x[i], lanes[i % kLanes]);
    const float r = div(1.0f, sqrt(add(tree_sum(lanes), kDeltaNormEps)));
    for (int64_t i = 0; i < args.cols; ++i) x[i] = mul(mul(x[i], r), args.scale);
  }
}

void delta_gates(const DeltaGatesArgs& args) {
  for (int64_t h = 0; h < args.heads; ++h) {
    args.write[h] = sigmoid(args.write[h]);
    const float a = add(args.decay[h], args.bias[h]);
    const float softplus = add(max(0.0f, a), log1p(exp(-std::fabs(a))));
    args.decay[h] = exp(-mul(exp(args.log[h]), softplus));
  }
}

void delta_rule(const DeltaRuleArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float *q = args.q + t * args.x_stride, *k = args.k + t * args.x_stride, *v = args.v + t * args.x_stride;
    const float write = args.write[t * args.gate_stride], decay = args.decay[t * args.gate_stride];
    for (int64_t j = 0; j < args.value_dim; ++j) {
      float* column = args.state + j / kColumns * args.key_dim * kColumns + j % kColumns;
      float parts[kParts] = {};
      for (int64_t i = 0; i < args.key_dim; ++i) {
        parts[i % kParts] = fma(mul(column[i * kColumns], decay), k[i], parts[i % kParts]);
      }
      const float d = mul(write, sub(v[j], join(parts)));
      float read[kParts] = {};
      for (int64_t i = 0; i < args.key_dim; ++i) {
        float& s = column[i * kColumns];
        s = fma(k[i], d, mul(s, decay));
        read[i % kParts] = fma(s, q[i], read[i % kParts]);
      }
      args.out[t * args.out_stride + j] = join(read);
    }
  }
}

}  // namespace ft::reference
