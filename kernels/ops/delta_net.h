// What a gated delta net (linear attention with a state per sequence) is made of beside its products: a causal
// convolution, the norm of queries and keys, the gates of a token, and the delta rule itself. Fp32 rows; the rules of
// kernels/ops/rows.h (16 lanes, tree, flushed denormals, NaN, threads) hold here too. Everything depends on the tokens
// before and on nothing else: a run of tokens may be cut into calls anywhere.
// Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024); transformers 5.17, models/qwen3_5_moe.
#pragma once

#include <cstdint>

namespace ft {

inline constexpr int64_t kMaxConvTaps = 8;
inline constexpr int64_t kMaxConvDilation = 16;
inline constexpr int64_t kMaxDeltaKeyDim = 512;
inline constexpr int64_t kMaxDeltaValueDim = 512;
inline constexpr float kDeltaNormEps = 1e-6f;

// Depthwise, then silu, in place: per channel, x[t] of t < 0 being the history,
//   y = +0; for j = 0 .. taps-1: y = fma(w[j], x[t - (taps-1-j) * dilation], y); x[t] = y / (1 + exp(-y))
// The history becomes the last (taps - 1) * dilation inputs, as they were given.
struct CausalConvArgs {
  float* x = nullptr;  // (tokens, channels), x_stride floats apart
  int64_t x_stride = 0;
  int64_t tokens = 0;
  int64_t channels = 0;
  int64_t taps = 0;          // 1 .. kMaxConvTaps
  const float* w = nullptr;  // (taps, channels), rows w_stride floats apart; the last tap is the token itself
  int64_t w_stride = 0;
  float* history = nullptr;  // ((taps - 1) * dilation, channels), oldest first, rows history_stride floats apart
  int64_t history_stride = 0;
  int64_t dilation = 1;  // 1 .. kMaxConvDilation: tokens from a tap to the next
};
using CausalConvFn = void (*)(const CausalConvArgs&);

// In place: x[i] = (x[i] * r) * scale, r = 1 / sqrt(s + kDeltaNormEps), s = the sum of squares as rmsnorm's.
struct L2NormArgs {
  float* x = nullptr;  // (rows, cols), x_stride floats apart
  int64_t x_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1;
};
using L2NormFn = void (*)(const L2NormArgs&);

// Per value head of a token, in place:
//   write = 1 / (1 + exp(-write))
//   a = decay + bias; decay = exp(-(exp(log) * (max(a, 0) + log1p(exp(-|a|)))))             (kernels/ops/exp.h)
struct DeltaGatesArgs {
  float* write = nullptr;       // (heads)
  float* decay = nullptr;       // (heads)
  const float* log = nullptr;   // (heads)
  const float* bias = nullptr;  // (heads)
  int64_t heads = 0;
};
using DeltaGatesFn = void (*)(const DeltaGatesArgs&);

// One value head over tokens in order. S is its state, (key_dim, value_dim); sums over i have 4 parts, part p taking
// the i with i mod 4 == p in increasing i from +0, joined as (0 + 2) + (1 + 3). Per token and column j:
//   m = sum of fma(S[i][j] * decay, k[i], part); d = write * (v[j] - m)
//   S[i][j] = fma(k[i], d, S[i][j] * decay); out[j] = sum of fma(S[i][j], q[i], part)
// In memory the state's columns stand in blocks of 16, (block, key_dim, 16). What stands in columns past value_dim has
// no meaning.
struct DeltaRuleArgs {
  const float* q = nullptr;  // (tokens, key_dim), normed; of all three rows are x_stride floats apart
  const float* k = nullptr;  // (tokens, key_dim), normed
  const float* v = nullptr;  // (tokens, value_dim)
  int64_t x_stride = 0;
  const float* write = nullptr;  // a value a token, gate_stride floats apart
  const float* decay = nullptr;
  int64_t gate_stride = 0;
  int64_t tokens = 0;
  int64_t key_dim = 0;     // up to kMaxDeltaKeyDim
  int64_t value_dim = 0;   // up to kMaxDeltaValueDim
  float* state = nullptr;  // (delta_state_floats)
  float* out = nullptr;    // (tokens, value_dim), out_stride floats apart
  int64_t out_stride = 0;
};
using DeltaRuleFn = void (*)(const DeltaRuleArgs&);

// Floats of a head's state.
constexpr int64_t delta_state_floats(int64_t key_dim, int64_t value_dim) {
  return (value_dim + 15) / 16 * 16 * key_dim;
}

// One layer, and what it keeps of a sequence: the convolution's history, then the state of each value head. Channels
// are all query heads, all key heads, all value heads. The history has room for `taps` inputs, one more than are read:
// a device that convolves in many places at once writes the newest over none that another place still reads.
struct DeltaNetShape {
  int64_t key_heads = 0, value_heads = 0;  // a key head serves value_heads / key_heads value heads that stand together
  int64_t key_dim = 0, value_dim = 0;
  int64_t taps = 0;

  constexpr int64_t key_width() const { return key_heads * key_dim; }
  constexpr int64_t value_width() const { return value_heads * value_dim; }
  constexpr int64_t channels() const { return 2 * key_width() + value_width(); }
  constexpr int64_t history_floats() const { return (taps * channels() + 15) / 16 * 16; }
  constexpr int64_t layer_floats() const {
    return history_floats() + value_heads * delta_state_floats(key_dim, value_dim);
  }
};

}  // namespace ft
