#include "kernels/cpu/vec_avx512.h"
// The vocabulary comes first.
#include "kernels/cpu/pairs_dpbf16.inc.h"

namespace ft::FT_ISA_NAMESPACE {
constexpr int kAccumulators = 16;  // 32 registers
}

#include "kernels/cpu/attention.inc.h"
