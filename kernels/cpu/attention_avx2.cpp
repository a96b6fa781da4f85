#include "kernels/cpu/vec_avx2.h"
// The vocabulary comes first.
#include "kernels/cpu/pairs_fma.inc.h"

namespace ft::FT_ISA_NAMESPACE {
constexpr int kAccumulators = 4;  // 16 registers of 8 lanes
}

#include "kernels/cpu/attention.inc.h"
