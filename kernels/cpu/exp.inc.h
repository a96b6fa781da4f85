// The exponential of kernels/ops/exp.h, 16 lanes at a time. Include after a vector vocabulary; the caller has
// set the flush mode.
#pragma once

#include "kernels/ops/exp.h"

namespace ft::FT_ISA_NAMESPACE {

static inline F32x16 exp(F32x16 x) {
  x = max(broadcast(kExpLow), x);  // the second operand when it is NaN: NaN passes both clamps
  x = min(broadcast(kExpHigh), x);
  const F32x16 n = round_nearest(mul(x, broadcast(kLog2E)));
  F32x16 r = fma(n, broadcast(-kLn2High), x);
  r = fma(n, broadcast(-kLn2Low), r);
  F32x16 p = broadcast(kExpCoefficients[0]);
  for (int i = 1; i < 8; ++i) p = fma(p, r, broadcast(kExpCoefficients[i]));
  const U32x16 power = shift_left<23>(add_words(to_int(n), broadcast_word(127)));
  return mul(p, bits_to_float(power));
}

}  // namespace ft::FT_ISA_NAMESPACE
