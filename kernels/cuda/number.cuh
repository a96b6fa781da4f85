// Words that host and device share while a kernel runs, and the device's clock. PTX ISA 8.x, "Memory consistency
// model".
#pragma once

#include <cstdint>

namespace ft::cuda {

// Everything that this thread, and its block before the last barrier, wrote is visible to who acquires the word.
__device__ inline void store_release_system(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ inline uint32_t load_acquire_system(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline uint32_t load_relaxed_system(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ inline uint64_t nanoseconds_now() {
  uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

// Hand-over numbers count up and skip 0, which means "none".
__host__ __device__ constexpr uint32_t next_number(uint32_t number) { return number + 1 == 0 ? 1 : number + 1; }

// `seen` is `wanted` or a later number. They are never 2^31 apart.
__host__ __device__ constexpr bool reached(uint32_t seen, uint32_t wanted) {
  return static_cast<int32_t>(seen - wanted) >= 0;
}

}  // namespace ft::cuda
