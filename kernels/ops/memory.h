// Memory kernels for the ceilings: STREAM's four (McCalpin, https://www.cs.virginia.edu/stream/ref.html) and a plain
// read. Each works on one thread's part; the caller splits (on multiples of 8 doubles) and times. Triad rounds twice,
// as STREAM does: no fma. Writers may go round the caches; their stores are visible to other threads when they return.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ft {

struct StreamArgs {
  double* a = nullptr;  // (count), 64-byte aligned
  double* b = nullptr;
  double* c = nullptr;
  int64_t count = 0;
  double scalar = 3.0;
};
using StreamFn = void (*)(const StreamArgs&);  // copy c=a; scale b=s*c; add c=a+b; triad a=b+s*c

struct MemReadArgs {
  const std::byte* data = nullptr;  // 64-byte aligned
  int64_t bytes = 0;                // multiple of 64
  uint64_t checksum = 0;            // out: xor of all 64-bit words, so that nothing is optimised away
};
using MemReadFn = void (*)(MemReadArgs&);

}  // namespace ft
