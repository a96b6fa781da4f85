// kernels/ops/glu.h, 16 lanes at a time. Include after a vector vocabulary; the caller has set the flush mode.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/ops/glu.h"

namespace ft::FT_ISA_NAMESPACE {

// The sign of 0 - g differs from that of -g for a zero only, and exp gives 1 for both.
static inline F32x16 glu(const Glu& how, F32x16 g, F32x16 u) {
  const auto clamp = [&] {  // the second operand is the result when it is NaN
    g = min(broadcast(how.limit), g);
    u = min(broadcast(how.limit), max(broadcast(-how.limit), u));
  };
  F32x16 minus_s;
  switch (how.kind) {
    case GluKind::kSilu:
      minus_s = sub(zero(), g);
      break;
    case GluKind::kSiluClamped:
      clamp();
      minus_s = sub(zero(), g);
      break;
    case GluKind::kGeluTanh:
      minus_s = mul(broadcast(-kGeluTwiceScale), fma(broadcast(kGeluCubic), mul(mul(g, g), g), g));
      break;
    case GluKind::kOss:
      clamp();
      minus_s = mul(broadcast(-kOssAlpha), g);
      u = add(u, broadcast(1.0f));
      break;
  }
  return mul(div(g, add(broadcast(1.0f), exp(minus_s))), u);
}

}  // namespace ft::FT_ISA_NAMESPACE
