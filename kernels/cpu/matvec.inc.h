// Body of matvec (kernels/ops/matvec.h) for every format. Include after a vector vocabulary and pairs_*.inc.h.
#pragma once

#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/tile_dot.inc.h"
#include "kernels/ops/matvec.h"

namespace ft::FT_ISA_NAMESPACE {

template <class Format>
FT_KERNEL_BODY void matvec_body(const MatvecArgs& args) {
  const PackedLayout& layout = args.w->layout;
  const float global = args.w->global;
  const float* const bias = args.w->bias;
  const CodeStream stream(layout, args.w->data, args.tile_begin, args.tile_end, args.next);
  with_rows<Format>(layout, args.x, args.tokens, [&](auto rows_from) {
    for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
      const int64_t row = tile * kRowsPerTile;
      const int64_t rows = layout.rows - row < kRowsPerTile ? layout.rows - row : kRowsPerTile;
      for_token_groups(args.tokens, [&](int64_t first, auto group) {
        constexpr int kTokens = decltype(group)::kCount;
        float sums[kTokens * kRowsPerTile];
        tile_dot<Format, kTokens>(layout, args.w->data, stream, tile, rows_from(first), sums);
        for (int t = 0; t < kTokens; ++t) {
          float* const y = args.y[first + t] + row;
          for (int64_t r = 0; r < rows; ++r) y[r] = sums[t * kRowsPerTile + r] * global;
          if (bias == nullptr) continue;
          for (int64_t r = 0; r < rows; ++r) y[r] += bias[row + r];
        }
      });
    }
  });
}

#define FT_FORMAT(id, name)                    \
  void matvec_##name(const MatvecArgs& args);  \
  void matvec_##name(const MatvecArgs& args) { \
    const FlushScope flush;                    \
    matvec_body<Decode<FormatId::id>>(args);   \
  }
#include "kernels/formats/formats.def"
#undef FT_FORMAT

}  // namespace ft::FT_ISA_NAMESPACE
