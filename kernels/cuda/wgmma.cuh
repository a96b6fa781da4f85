// Warpgroup products of sm_90a (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"): both operands in
// shared memory, 64 x 128 sums in the registers of 128 threads. Only code compiled for sm_90a has them: kWarpgroups.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ft::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kWarpgroups = true;
#else
inline constexpr bool kWarpgroups = false;
#endif

// Of a tile whose rows are 128 bytes, with 16-byte chunk c of row r stored at c ^ (r % 8), in groups of 8 rows on 1024
// bytes: k-major, 128-byte swizzle. Steps of 16 k are 32 bytes of address.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kLeading = uint64_t{1} << 16;  // not used with a swizzle
  return kSwizzle128 | kGroupStride | kLeading | (address & 0x3ffffu) >> 4;
}

// What this thread wrote to shared memory is seen by products that are issued after a barrier.
__device__ __forceinline__ void publish_to_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void begin_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void commit_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

// sums (64 x 128) = a (64 x 16) b (128 x 16)^T + (keep ? sums : 0). Warp w of the group has rows 16 w ..: sums[n] as in
// multiply_add (mma.cuh) of columns 8 n ...
__device__ __forceinline__ void multiply_group([[maybe_unused]] float (&sums)[16][4], [[maybe_unused]] uint64_t a,
                                               [[maybe_unused]] uint64_t b, [[maybe_unused]] bool keep) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FT_SUMS(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
  asm volatile(
      "{\n .reg .pred keep;\n setp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, keep, 1, 1, 0, 0;\n}"
      : FT_SUMS(0), FT_SUMS(1), FT_SUMS(2), FT_SUMS(3), FT_SUMS(4), FT_SUMS(5), FT_SUMS(6), FT_SUMS(7), FT_SUMS(8),
        FT_SUMS(9), FT_SUMS(10), FT_SUMS(11), FT_SUMS(12), FT_SUMS(13), FT_SUMS(14), FT_SUMS(15)
      : "l"(a), "l"(b), "r"(keep ? 1 : 0));
#undef FT_SUMS
#endif
}

}  // namespace ft::cuda
