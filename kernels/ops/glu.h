// The gated linear unit between an MLP's first two products and its last: y = act(g) * value(u), elementwise.
//
// Every kind has the shape (g / (1 + exp(-s(g)))) * v(u), with kernels/ops/exp.h and a correctly rounded division:
//   kSilu         s = g                                             v = u          SwiGLU: Qwen, Mixtral
//   kSiluClamped  g = min(g, limit); s = g                          v = clamp(u, -limit, limit)       DeepSeek-V4
//   kGeluTanh     s = 1.5957691216 * fma(0.044715, (g * g) * g, g)  v = u          Gemma
//   kOss          g = min(g, limit); s = 1.702 * g                  v = clamp(u, -limit, limit) + 1   gpt-oss
// gelu in its tanh form is 0.5 g (1 + tanh(z)) = g / (1 + exp(-2 z)), z = 0.7978845608 (g + 0.044715 g^3).
// -s is computed as (-constant) * (...) where there is a constant. min and clamp pass NaN on. The gate has no lower
// clamp. Sources: Hugging Face transformers 5.17, models/{gpt_oss, gemma4, deepseek_v4}.
#pragma once

#include <cstdint>

namespace ft {

enum class GluKind : uint8_t { kSilu, kSiluClamped, kGeluTanh, kOss };

struct Glu {
  GluKind kind = GluKind::kSilu;
  float limit = 0;  // of the clamped kinds

  bool operator==(const Glu&) const = default;
};

inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kGeluTwiceScale = 1.5957691216f;  // 2 sqrt(2 / pi)
inline constexpr float kOssAlpha = 1.702f;

struct GluArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* y = nullptr;  // may be gate or up
  int64_t count = 0;
  Glu glu;
};
using GluFn = void (*)(const GluArgs&);

}  // namespace ft
