// Body of gate_up (kernels/ops/matvec.h) for every format. Include after a vector vocabulary and pairs_*.inc.h.
#pragma once

#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/glu.inc.h"
#include "kernels/cpu/tile_dot.inc.h"
#include "kernels/ops/matvec.h"

namespace ft::FT_ISA_NAMESPACE {

// Index of the packed activation word that holds k and k + 1, k even (kernels/ops/activations.h).
static inline int64_t activation_index(int64_t k) { return k / 256 * 128 + k % 16 / 2 * kLanes + k % 256 / 16; }

// For tests of `ft-tune compare` (the Meson option planted_gate_up_slowdown): so many per cent of the tiles are
// computed twice, with the same result.
#ifndef FT_PLANTED_GATE_UP_SLOWDOWN
#define FT_PLANTED_GATE_UP_SLOWDOWN 0
#endif
#if FT_PLANTED_GATE_UP_SLOWDOWN > 0
static inline bool is_planted(int64_t tile) {
  constexpr int64_t kPercent = FT_PLANTED_GATE_UP_SLOWDOWN;
  return (tile + 1) * kPercent / 100 > tile * kPercent / 100;
}
#endif

// The sums of one tile's rows for up to 16 / kRowsPerTile tokens, scaled, with their rows' bias.
static inline F32x16 finish_rows(const PackedMatrix& matrix, const float* sums, int64_t row, int64_t rows) {
  const F32x16 y = mul(load(sums), broadcast(matrix.global));
  if (matrix.bias == nullptr) return y;
  alignas(64) float bias[16] = {};
  for (int64_t i = 0; i < 16; ++i) bias[i] = i % kRowsPerTile < rows ? matrix.bias[row + i % kRowsPerTile] : 0.0f;
  return add(y, load(bias));
}

template <class Format>
FT_KERNEL_BODY void gate_up_body(const GateUpArgs& args, const PackedMatrix& gate, const PackedMatrix& up) {
  const PackedLayout& layout = gate.layout;
  const CodeStream gate_stream(layout, gate.data, args.tile_begin, args.tile_end, args.next);
  const CodeStream up_stream(layout, up.data, args.tile_begin, args.tile_end, args.next_up);
  with_rows<Format>(layout, args.x, args.tokens, [&](auto rows_from) {
    for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
      const int64_t row = tile * kRowsPerTile;
      const int64_t rows = layout.rows - row < kRowsPerTile ? layout.rows - row : kRowsPerTile;
      for_token_groups(args.tokens, [&](int64_t first, auto group) {
        constexpr int kTokens = decltype(group)::kCount;
        static_assert(kTokens * kRowsPerTile <= 16);
        alignas(64) float gates[16] = {};
        alignas(64) float ups[16] = {};
        tile_dot<Format, kTokens>(layout, gate.data, gate_stream, tile, rows_from(first), gates);
        tile_dot<Format, kTokens>(layout, up.data, up_stream, tile, rows_from(first), ups);
#if FT_PLANTED_GATE_UP_SLOWDOWN > 0
        if (is_planted(tile)) {
          asm volatile("" : : "r"(gates), "r"(ups) : "memory");  // the first results are wanted too
          tile_dot<Format, kTokens>(layout, gate.data, gate_stream, tile, rows_from(first), gates);
          tile_dot<Format, kTokens>(layout, up.data, up_stream, tile, rows_from(first), ups);
        }
#endif
        const F32x16 g = finish_rows(gate, gates, row, rows);
        const F32x16 u = finish_rows(up, ups, row, rows);
        alignas(32) uint16_t a[16];
        _mm256_store_si256(reinterpret_cast<__m256i*>(a), round_bf16(glu(args.layout->glu, g, u)));
        for (int t = 0; t < kTokens; ++t) {
          for (int64_t r = 0; r < rows; r += 2) {
            const uint32_t odd = r + 1 < rows ? a[t * kRowsPerTile + r + 1] : 0u;
            args.a[first + t][activation_index(row + r)] = a[t * kRowsPerTile + r] | odd << 16;
          }
        }
      });
    }
  });
}

#define FT_FORMAT(id, name)                                         \
  void gate_up_##name(const GateUpArgs& args);                      \
  void gate_up_##name(const GateUpArgs& args) {                     \
    const PackedMatrix gate = expert_gate(*args.layout, args.blob); \
    const PackedMatrix up = expert_up(*args.layout, args.blob);     \
    const FlushScope flush;                                         \
    gate_up_body<Decode<FormatId::id>>(args, gate, up);             \
  }
#include "kernels/formats/formats.def"
#undef FT_FORMAT

}  // namespace ft::FT_ISA_NAMESPACE
