#include "kernels/cpu/vec_avx512.h"
// The vocabulary comes first.
#include "kernels/cpu/pairs_dpbf16.inc.h"

namespace ft::FT_ISA_NAMESPACE {
constexpr int kHeadBlock = 8;
}

#include "kernels/cpu/attention.inc.h"
