#include "kernels/cpu/vec_avx2.h"
// The vocabulary comes first.
#include "kernels/cpu/compressed.inc.h"
