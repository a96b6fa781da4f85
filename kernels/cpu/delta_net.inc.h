// Bodies of the gated delta net (kernels/ops/delta_net.h). Include after a vector vocabulary and kStateBlocks: how many
// blocks of 16 columns of a state are worked on together.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/for_lanes.inc.h"
#include "kernels/cpu/log1p.inc.h"
#include "kernels/ops/delta_net.h"

namespace ft::FT_ISA_NAMESPACE {

// 0 - x has the other sign than -x for a zero only, and exp gives 1 for both.
static inline F32x16 one_plus_exp_of_minus(F32x16 x) { return add(broadcast(1.0f), exp(sub(zero(), x))); }

// The n <= 16 channels from c on, over all tokens: their inputs stay in registers or in the nearest cache. Tokens as
// many apart as the dilation are a convolution of their own; a phase is the first of them.
static inline void convolve(const CausalConvArgs& args, int64_t c, int n) {
  const int64_t before = args.taps - 1, dilation = args.dilation;
  F32x16 old[(kMaxConvTaps - 1) * kMaxConvDilation], w[kMaxConvTaps];
  for (int64_t i = 0; i < before * dilation; ++i) old[i] = load_n(args.history + i * args.history_stride + c, n);
  for (int64_t j = 0; j < args.taps; ++j) w[j] = load_n(args.w + j * args.w_stride + c, n);
  for (int64_t phase = 0; phase < dilation; ++phase) {
    F32x16 inputs[kMaxConvTaps];
    for (int64_t j = 0; j < before; ++j) inputs[j] = old[phase + j * dilation];
    int64_t t = phase;
    for (; t < args.tokens; t += dilation) {
      float* x = args.x + t * args.x_stride + c;
      inputs[before] = load_n(x, n);
      F32x16 y = zero();
      for (int64_t j = 0; j < args.taps; ++j) y = fma(w[j], inputs[j], y);
      store_n(x, div(y, one_plus_exp_of_minus(y)), n);
      for (int64_t j = 0; j < before; ++j) inputs[j] = inputs[j + 1];
    }
    // t is the phase's first token that is not here.
    float* history = args.history + (t - args.tokens) * args.history_stride + c;
    for (int64_t j = 0; j < before; ++j) store_n(history + j * dilation * args.history_stride, inputs[j], n);
  }
}

FT_KERNEL_BODY void causal_conv_body(const CausalConvArgs& args) {
  for_lanes(
      args.channels, [&](int64_t c) { convolve(args, c, 16); }, [&](int64_t c, int n) { convolve(args, c, n); });
}

FT_KERNEL_BODY void l2_norm_body(const L2NormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    float* x = args.x + row * args.x_stride;
    F32x16 squares = zero();
    const auto square = [&](F32x16 v) { squares = fma(v, v, squares); };
    for_lanes(
        args.cols, [&](int64_t i) { square(load(x + i)); }, [&](int64_t i, int n) { square(load_n(x + i, n)); });
    const F32x16 r = broadcast(1.0f / __builtin_sqrtf(tree_sum(squares) + kDeltaNormEps));
    const F32x16 scale = broadcast(args.scale);
    for_lanes(
        args.cols, [&](int64_t i) { store(x + i, mul(mul(load(x + i), r), scale)); },
        [&](int64_t i, int n) { store_n(x + i, mul(mul(load_n(x + i, n), r), scale), n); });
  }
}

static inline void gate_heads(const DeltaGatesArgs& args, int64_t h, int n) {
  store_n(args.write + h, div(broadcast(1.0f), one_plus_exp_of_minus(load_n(args.write + h, n))), n);
  const F32x16 a = add(load_n(args.decay + h, n), load_n(args.bias + h, n));
  const F32x16 minus_size = bits_to_float(or_words(float_to_bits(a), broadcast_word(0x80000000u)));
  const F32x16 softplus = add(max(zero(), a), log1p(exp(minus_size)));  // max passes NaN on
  store_n(args.decay + h, exp(sub(zero(), mul(exp(load_n(args.log + h, n)), softplus))), n);
}

FT_KERNEL_BODY void delta_gates_body(const DeltaGatesArgs& args) {
  for_lanes(
      args.heads, [&](int64_t h) { gate_heads(args, h, 16); }, [&](int64_t h, int n) { gate_heads(args, h, n); });
}

constexpr int kSumParts = 4;

static inline F32x16 join(const F32x16 parts[kSumParts]) {
  return add(add(parts[0], parts[2]), add(parts[1], parts[3]));
}

// use(i, part) for all rows of a state, four at a time.
template <typename Use>
static inline void for_state_rows(int64_t key_dim, Use use) {
  int64_t i = 0;
  for (; i + kSumParts <= key_dim; i += kSumParts) {
    for (int part = 0; part < kSumParts; ++part) use(i + part, part);
  }
  for (int part = 0; i < key_dim; ++i, ++part) use(i, part);
}

// kBlocks blocks of 16 columns from column j on, over all tokens: their state stays in the first-level cache.
template <int kBlocks>
static inline void delta_columns(const DeltaRuleArgs& args, int64_t j) {
  const int64_t block_floats = args.key_dim * 16;
  float* state = args.state + j / 16 * block_floats;
  const auto columns = [&](int b) {
    const int64_t left = args.value_dim - (j + b * 16);
    return static_cast<int>(left < 16 ? left : 16);
  };
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float *q = args.q + t * args.x_stride, *k = args.k + t * args.x_stride;
    const F32x16 decay = broadcast(args.decay[t * args.gate_stride]);
    F32x16 sums[kBlocks][kSumParts], d[kBlocks];
    const auto clear = [&] {
      for (int b = 0; b < kBlocks; ++b) {
        for (int part = 0; part < kSumParts; ++part) sums[b][part] = zero();
      }
    };
    clear();
    for_state_rows(args.key_dim, [&](int64_t i, int part) {
      const F32x16 key = broadcast(k[i]);
      for (int b = 0; b < kBlocks; ++b) {
        const F32x16 s = mul(load(state + b * block_floats + i * 16), decay);
        sums[b][part] = fma(s, key, sums[b][part]);
      }
    });
    const F32x16 write = broadcast(args.write[t * args.gate_stride]);
    for (int b = 0; b < kBlocks; ++b) {
      const F32x16 value = load_n(args.v + t * args.x_stride + j + b * 16, columns(b));
      d[b] = mul(write, sub(value, join(sums[b])));
    }
    clear();
    for_state_rows(args.key_dim, [&](int64_t i, int part) {
      const F32x16 key = broadcast(k[i]), query = broadcast(q[i]);
      for (int b = 0; b < kBlocks; ++b) {
        float* row = state + b * block_floats + i * 16;
        const F32x16 s = fma(key, d[b], mul(load(row), decay));
        store(row, s);
        sums[b][part] = fma(s, query, sums[b][part]);
      }
    });
    for (int b = 0; b < kBlocks; ++b) {
      store_n(args.out + t * args.out_stride + j + b * 16, join(sums[b]), columns(b));
    }
  }
}

FT_KERNEL_BODY void delta_rule_body(const DeltaRuleArgs& args) {
  int64_t j = 0;
  for (; j + (kStateBlocks - 1) * 16 < args.value_dim; j += kStateBlocks * 16) delta_columns<kStateBlocks>(args, j);
  for (; j < args.value_dim; j += 16) delta_columns<1>(args, j);
}

void causal_conv(const CausalConvArgs& args) {
  const FlushScope flush;
  causal_conv_body(args);
}
void l2_norm(const L2NormArgs& args) {
  const FlushScope flush;
  l2_norm_body(args);
}
void delta_gates(const DeltaGatesArgs& args) {
  const FlushScope flush;
  delta_gates_body(args);
}
void delta_rule(const DeltaRuleArgs& args) {
  const FlushScope flush;
  delta_rule_body(args);
}

}  // namespace ft::FT_ISA_NAMESPACE
