#include "kernels/cpu/vec_avx2.h"
namespace ft::FT_ISA_NAMESPACE {
constexpr int kStateBlocks = 1;  // 4 sums of two registers each, out of 16 registers
}
// The vocabulary and kStateBlocks come first.
#include "kernels/cpu/delta_net.inc.h"
