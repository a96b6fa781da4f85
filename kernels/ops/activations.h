// Packed activations: what every product reads. bf16 pairs in the lane order of the packed weights.
//
//   words: [block][pair p = 0..7][lane]   uint32: k = (block * 16 + lane) * 16 + 2p in the low half, k + 1 in the high
//
// k past cols are zero, and blocks are always whole. It is the lane order of formats whose lanes own 16 k (bf16, nvfp4,
// fp8_block); mxfp4's lanes of 32 k read it too (kernels/formats/mxfp4.h).
#pragma once

#include <cstdint>

namespace ft {

// Words of one packed row of `cols` activations: 128 per block of 256 k.
constexpr int64_t activation_words(int64_t cols) { return (cols + 255) / 256 * 128; }

// Rounds x (tokens, cols) fp32 to bf16 (nearest even, denormals flushed before and after) and packs it.
// words: (tokens, activation_words(cols)), 64-byte aligned.
struct PackActivationsArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;  // floats between tokens
  int64_t tokens = 0;
  int64_t cols = 0;
  uint32_t* words = nullptr;
};
using PackActivationsFn = void (*)(const PackActivationsArgs&);

}  // namespace ft
