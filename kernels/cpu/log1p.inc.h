// log(1 + u) of kernels/ops/exp.h, 16 lanes at a time. Include after a vector vocabulary; the caller has set the flush
// mode.
#pragma once

#include "kernels/ops/exp.h"

namespace ft::FT_ISA_NAMESPACE {

static inline F32x16 log1p(F32x16 u) {
  const F32x16 s = div(u, add(broadcast(2.0f), u)), z = mul(s, s);
  F32x16 p = broadcast(kLog1pCoefficients[0]);
  for (int i = 1; i < 8; ++i) p = fma(p, z, broadcast(kLog1pCoefficients[i]));
  return mul(mul(broadcast(2.0f), s), p);
}

}  // namespace ft::FT_ISA_NAMESPACE
