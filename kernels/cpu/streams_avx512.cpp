#include "kernels/cpu/vec_avx512.h"
// The vocabulary comes first.
#include "kernels/cpu/streams.inc.h"
