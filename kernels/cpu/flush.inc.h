// Flush-to-zero and denormals-are-zero for the scope of one kernel, in the namespace of the ISA (see vec_avx512.h for
// why it cannot be kernels/host/flush_denormals.h). The arithmetic must stand in a function of its own that the
// compiler may not inline (FT_KERNEL_BODY): it knows of no dependence between MXCSR and arithmetic and could move one
// over the other.
#pragma once

#include <xmmintrin.h>

#define FT_KERNEL_BODY [[gnu::noinline]] static

namespace ft::FT_ISA_NAMESPACE {

class FlushScope {
 public:
  FlushScope() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushScope() { _mm_setcsr(saved_); }
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;

 private:
  unsigned saved_;
};

}  // namespace ft::FT_ISA_NAMESPACE
