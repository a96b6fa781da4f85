#include "kernels/cpu/vec_avx2.h"
// The vocabulary comes first.
#include "kernels/cpu/pairs_fma.inc.h"
// Then what is written in it.
#include "kernels/cpu/matvec.inc.h"
