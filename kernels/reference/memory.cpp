// Reference of the memory kernels: kernels/ops/memory.h.
#include "kernels/ops/memory.h"

#include <cstring>

namespace ft::reference {

void stream_copy(const StreamArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.c[i] = args.a[i];
}

void stream_scale(const StreamArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.b[i] = args.scalar * args.c[i];
}

void stream_add(const StreamArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.c[i] = args.a[i] + args.b[i];
}

void stream_triad(const StreamArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.a[i] = args.b[i] + args.scalar * args.c[i];
}

void mem_read(MemReadArgs& args) {
  uint64_t checksum = 0;
  for (int64_t i = 0; i < args.bytes; i += static_cast<int64_t>(sizeof checksum)) {
    uint64_t word = 0;
    std::memcpy(&word, args.data + i, sizeof word);
    checksum ^= word;
  }
  args.checksum = checksum;
}

}  // namespace ft::reference
