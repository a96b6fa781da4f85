// Bodies of the row operations (kernels/ops/rows.h). Include after a vector vocabulary.
#pragma once

#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/for_lanes.inc.h"
#include "kernels/cpu/glu.inc.h"
#include "kernels/ops/rows.h"

namespace ft::FT_ISA_NAMESPACE {

static inline void norm_row(const float* x, float* y, const float* w, int64_t cols, float eps) {
  F32x16 squares = zero();
  const auto square = [&](F32x16 v) { squares = fma(v, v, squares); };
  for_lanes(
      cols, [&](int64_t i) { square(load(x + i)); }, [&](int64_t i, int n) { square(load_n(x + i, n)); });
  const float mean = tree_sum(squares) / static_cast<float>(cols);
  const F32x16 r = broadcast(1.0f / __builtin_sqrtf(mean + eps));
  for_lanes(
      cols, [&](int64_t i) { store(y + i, mul(mul(load(x + i), r), load(w + i))); },
      [&](int64_t i, int n) { store_n(y + i, mul(mul(load_n(x + i, n), r), load_n(w + i, n)), n); });
}

FT_KERNEL_BODY void rmsnorm_body(const RmsnormArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    norm_row(args.x + t * args.x_stride, args.y + t * args.y_stride, args.w, args.cols, args.eps);
  }
}

static inline void rotate(float* low, float* high, const float* cos, const float* sin, int64_t half) {
  const F32x16 minus_one = broadcast(-1.0f);  // negates zeros too, as 0 - x would not
  const auto new_low = [&](F32x16 a, F32x16 b, F32x16 c, F32x16 s) { return fma(a, c, mul(minus_one, mul(b, s))); };
  const auto new_high = [](F32x16 a, F32x16 b, F32x16 c, F32x16 s) { return fma(b, c, mul(a, s)); };
  for_lanes(
      half,
      [&](int64_t j) {
        const F32x16 a = load(low + j), b = load(high + j), c = load(cos + j), s = load(sin + j);
        store(low + j, new_low(a, b, c, s));
        store(high + j, new_high(a, b, c, s));
      },
      [&](int64_t j, int n) {
        const F32x16 a = load_n(low + j, n), b = load_n(high + j, n), c = load_n(cos + j, n), s = load_n(sin + j, n);
        store_n(low + j, new_low(a, b, c, s), n);
        store_n(high + j, new_high(a, b, c, s), n);
      });
}

FT_KERNEL_BODY void head_norm_rope_body(const HeadNormRopeArgs& args) {
  for (int64_t h = 0; h < args.heads; ++h) {
    float* x = args.x + h * args.head_dim;
    if (args.w != nullptr) norm_row(x, x, args.w, args.head_dim, args.eps);
    rotate(x, x + args.rotary_half, args.cos, args.sin, args.rotary_half);
  }
}

FT_KERNEL_BODY void glu_body(const GluArgs& args) {
  for_lanes(
      args.count, [&](int64_t i) { store(args.y + i, glu(args.glu, load(args.gate + i), load(args.up + i))); },
      [&](int64_t i, int n) {
        store_n(args.y + i, glu(args.glu, load_n(args.gate + i, n), load_n(args.up + i, n)), n);
      });
}

FT_KERNEL_BODY void add_body(const AddArgs& args) {
  const F32x16 scale = broadcast(args.scale);
  const auto sum = [&](F32x16 x, F32x16 y) { return mul(add(x, y), scale); };
  for_lanes(
      args.count, [&](int64_t i) { store(args.x + i, sum(load(args.x + i), load(args.y + i))); },
      [&](int64_t i, int n) { store_n(args.x + i, sum(load_n(args.x + i, n), load_n(args.y + i, n)), n); });
}

FT_KERNEL_BODY void softcap_body(const SoftcapArgs& args) {
  const F32x16 cap = broadcast(args.cap), one = broadcast(1.0f);
  const U32x16 sign_bit = broadcast_word(0x80000000u);
  const auto capped = [&](F32x16 x) {
    const F32x16 minus_size = bits_to_float(or_words(float_to_bits(div(x, cap)), sign_bit));
    const F32x16 e = exp(mul(broadcast(2.0f), minus_size));
    const F32x16 size = div(sub(one, e), add(one, e));
    return mul(cap, bits_to_float(or_words(float_to_bits(size), and_words(float_to_bits(x), sign_bit))));
  };
  for_lanes(
      args.count, [&](int64_t i) { store(args.x + i, capped(load(args.x + i))); },
      [&](int64_t i, int n) { store_n(args.x + i, capped(load_n(args.x + i, n)), n); });
}

FT_KERNEL_BODY void gate_body(const GateArgs& args) {
  // 0 - g has the other sign than -g for a zero only, and exp gives 1 for both.
  const auto gated = [&](F32x16 x, F32x16 g) {
    const F32x16 one = broadcast(1.0f);
    return mul(x, div(args.kind == GateKind::kSilu ? g : one, add(one, exp(sub(zero(), g)))));
  };
  for_lanes(
      args.count, [&](int64_t i) { store(args.x + i, gated(load(args.x + i), load(args.gate + i))); },
      [&](int64_t i, int n) { store_n(args.x + i, gated(load_n(args.x + i, n), load_n(args.gate + i, n)), n); });
}

FT_KERNEL_BODY void merge_body(const MergeArgs& args) {
  const auto merged = [&](auto load_row) {
    F32x16 out = zero();
    for (int64_t s = 0; s < args.slots; ++s) out = fma(broadcast(args.weight[s]), load_row(args.y[s]), out);
    return out;
  };
  for_lanes(
      args.cols, [&](int64_t i) { store(args.out + i, merged([&](const float* y) { return load(y + i); })); },
      [&](int64_t i, int n) { store_n(args.out + i, merged([&](const float* y) { return load_n(y + i, n); }), n); });
}

void rmsnorm(const RmsnormArgs& args) {
  const FlushScope flush;
  rmsnorm_body(args);
}
void head_norm_rope(const HeadNormRopeArgs& args) {
  const FlushScope flush;
  head_norm_rope_body(args);
}
void glu(const GluArgs& args) {
  const FlushScope flush;
  glu_body(args);
}
void add(const AddArgs& args) {
  const FlushScope flush;
  add_body(args);
}
void softcap(const SoftcapArgs& args) {
  const FlushScope flush;
  softcap_body(args);
}
void gate(const GateArgs& args) {
  const FlushScope flush;
  gate_body(args);
}
void merge(const MergeArgs& args) {
  const FlushScope flush;
  merge_body(args);
}

}  // namespace ft::FT_ISA_NAMESPACE
