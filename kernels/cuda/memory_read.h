// A plain read: the ceiling of whatever only reads weights, as `mem_read` (kernels/ops/memory.h) is on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device.h"

namespace ft::cuda {

// Reads [begin, begin + bytes) once, of device memory or of host memory that the device reads in place, and xors all
// 32-bit words into *sink (device memory), so that nothing is optimised away. REQUIRES 16-byte aligned begin, bytes a
// multiple of 16.
void read_memory(const std::byte* begin, int64_t bytes, uint32_t* sink, StreamHandle stream);

}  // namespace ft::cuda
