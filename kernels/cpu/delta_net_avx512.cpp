#include "kernels/cpu/vec_avx512.h"
namespace ft::FT_ISA_NAMESPACE {
constexpr int kStateBlocks = 2;  // 8 sums hide an fma's latency; the state of two blocks stays in the first-level cache
}
// The vocabulary and kStateBlocks come first.
#include "kernels/cpu/delta_net.inc.h"
