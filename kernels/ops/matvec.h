// y = W x for a packed matrix and one or more packed activation rows. The product of every linear layer and expert.
//
// CANONICAL ORDER (the numerics contract; same bits on every ISA and on CUDA). For one row and one token:
//   acc[0..15] = 0
//   for each block b, for each lane l of 16:
//     P = 0; for p = 0 .. group/2 - 1:  P = fma(w[2p+1], x[2p+1], P);  P = fma(w[2p], x[2p], P)     (as vdpbf16ps)
//     acc[l] = fma(P, scale(b, l), acc[l])          bf16: scale is 1
//   for width 8, 4, 2, 1:  acc[i] = acc[i] + acc[i + width], i < width
//   y = acc[0] * global; where the matrix has a bias, y = y + bias[row]
// group is the format's: 16, or 32 for mxfp4. w are codes decoded exactly to bf16. Lanes that the last block lacks and
// k past cols have w = x = scale = +0 and are computed like the others (which turns an accumulated -0 into +0). Every
// fp32 operation rounds to nearest even and flushes denormal inputs and results, signs kept (FTZ and DAZ, tininess
// after rounding); every variant sets MXCSR for itself at entry and restores it, so callers need nothing. Equal bits
// means: NaN where the other has NaN, whatever its payload. The result never depends on tokens, tile range or thread.
#pragma once

#include <cstdint>

#include "kernels/formats/expert_blob.h"
#include "kernels/formats/format.h"

namespace ft {

struct MatvecArgs {
  const PackedMatrix* w = nullptr;
  const uint32_t* const* x = nullptr;  // (tokens) pointers to packed rows of w->layout.cols
  int64_t tokens = 0;                  // >= 1; weights are decoded once for several tokens
  int64_t tile_begin = 0;              // row tiles [tile_begin, tile_end)
  int64_t tile_end = 0;
  float* const* y = nullptr;  // (tokens) pointers to fp32 rows of w->layout.rows; only the range's rows are written
  // What the caller reads afterwards: prefetched in the end instead of what follows the range. Null: nothing.
  const std::byte* next = nullptr;
};
using MatvecFn = void (*)(const MatvecArgs&);

// a = the gated linear unit of gate x and up x, rounded to bf16 and written as packed activations for the down product.
//   g = the product with gate as above, u likewise; a = glu(g, u) by layout->glu (kernels/ops/glu.h); then bf16,
//   nearest even.
struct GateUpArgs {
  const ExpertLayout* layout = nullptr;
  const std::byte* blob = nullptr;
  const uint32_t* const* x = nullptr;  // (tokens) packed rows of layout->hidden
  int64_t tokens = 0;
  int64_t tile_begin = 0;  // row tiles of gate and up
  int64_t tile_end = 0;
  // (tokens) packed rows of layout->intermediate. Words without any row of the range stay as they were: the caller
  // zeroes the padding once. The absent half of a last pair is written as zero.
  uint32_t* const* a = nullptr;
  const std::byte* next = nullptr;     // as in MatvecArgs: after the range's part of gate,
  const std::byte* next_up = nullptr;  // after its part of up
};
using GateUpFn = void (*)(const GateUpArgs&);

}  // namespace ft
