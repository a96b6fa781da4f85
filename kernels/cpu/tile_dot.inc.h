// The canonical dot products (kernels/ops/matvec.h) of one row tile with kTokens packed activation rows: what matvec
// and gate_up are made of. Include after a vector vocabulary and pairs_*.inc.h.
//
// Tried: two tiles at a time for one token (two streams, activations widened once for eight rows; in matvec
// neighbouring tiles, in gate_up gate and up), fma variant, one run, H 2560 I 640 / H 4096 I 2048, share of a plain
// read for one tile and for two: nvfp4 0.66 / 0.73 and 0.59 / 0.69, fp8_block 0.66 / 0.63 and 0.64 / 0.58, bf16 0.89 /
// 0.93 and 0.93 / 0.94. The compiler then spills registers in the nvfp4 loop.
#pragma once

#include "kernels/cpu/decode.inc.h"
#include "kernels/cpu/tree_rows.inc.h"
#include "kernels/formats/format.h"

namespace ft::FT_ISA_NAMESPACE {

constexpr int kTokenGroup = 4;  // tokens that share one decoding of a tile
constexpr int kCacheLine = 64;

// Two distances: 8 KiB ahead into L2, 2 KiB ahead into L1. Measured as a share of a plain read of the same memory (two
// threads of a shared Sapphire Rapids VM, about 15 GB/s each; CPU time inside kernels; expert H 4096 I 2048, median of
// 9; the vdpbf16ps variants; nvfp4 / bf16). Two runs, to be compared within a run only; about 0.05 of noise:
//   run 1: none 0.47 / 0.68; L1 only, 1 KiB 0.53 / 0.78, 2 KiB 0.61 / 0.75, 4 KiB 0.62 / 0.79; L2 only, 4 KiB 0.60 /
//          0.83, 8 KiB 0.64 / 0.84; L2 8 KiB and L1 1 KiB 0.65 / 0.90
//   run 2: L2 8 KiB and L1 0.5 KiB 0.67 / 0.90, 1 KiB 0.66 / 0.88, 2 KiB 0.68 / 0.97; L2 16 KiB and L1 1 KiB 0.68 /
//   0.93
// Why both help was not measured; an L1 prefetch holds a fill buffer for the whole trip to memory, one from L2 does
// not.
constexpr int kFarBytes = 8192;
constexpr int kNearBytes = 2048;
static inline void prefetch_codes(const std::byte* p, int bytes) {
  for (int line = 0; line < bytes; line += kCacheLine) {
    prefetch_far(p + kFarBytes + line);
    prefetch(p + kNearBytes + line);
  }
}

constexpr int kVectorsPerBlock = 8;  // of packed activations, one for each pair of 16 k

// 16 k of each lane of a block: all that a lane owns, or the first or the second half.
template <int kHalvesOfLane, int kHalfOfLane, bool kShortBlock>
struct LanePart {
  static constexpr int kHalves = kHalvesOfLane;
  static constexpr int kHalf = kHalfOfLane;
  static constexpr bool kShort = kShortBlock;  // the last block, of `lanes` lanes
  int64_t block;
  int lanes;

  // Pair `pair` of the part. With two halves a lane, lanes 8 .. 15 are in the activations' next block, which is not
  // there when these lanes are all absent.
  inline Pairs activations(const uint32_t* x, int pair) const {
    const uint32_t* first = x + (block * kHalves * kVectorsPerBlock + pair) * kLanes;
    if constexpr (kHalves == 1) return make_pairs(load_words(first));
    const U32x16 lower = load_words(first);
    const U32x16 upper =
        kShort && lanes <= kLanes / 2 ? broadcast_word(0) : load_words(first + kVectorsPerBlock * kLanes);
    return make_pairs(kHalf == 0 ? even_lanes(lower, upper) : odd_lanes(lower, upper));
  }
};

template <class Format, int kTokens, int q, class Part>
static inline void add_pair(const typename Format::Tables& tables, const U32x16 (&v)[kRowsPerTile],
                            const uint32_t* const* x, const Part& part, int first_pair,
                            F32x16 (&p)[kRowsPerTile][kTokens]) {
  Pairs xs[kTokens];
  for (int t = 0; t < kTokens; ++t) xs[t] = part.activations(x[t], first_pair + q);
  for (int r = 0; r < kRowsPerTile; ++r) {
    const Pairs w = Format::template pair<q>(tables, v[r]);
    for (int t = 0; t < kTokens; ++t) p[r][t] = dot_pairs(w, xs[t], p[r][t]);
  }
}

template <class Format, int kTokens, class Part>
static inline void add_part(const typename Format::Tables& tables, const uint32_t* codes, const uint32_t* const* x,
                            const Part& part, F32x16 (&p)[kRowsPerTile][kTokens]) {
  constexpr int kWords = Format::kWords / Part::kHalves;
  for (int h = 0; h < kWords; ++h) {
    U32x16 v[kRowsPerTile];
    for (int r = 0; r < kRowsPerTile; ++r) {
      const int index = (Part::kHalf * kWords + h) * kRowsPerTile + r;
      v[r] = Part::kShort ? load_words_n(codes + index * part.lanes, part.lanes) : load_words(codes + index * kLanes);
    }
    const int pair = h * Format::kPairs;
    add_pair<Format, kTokens, 0>(tables, v, x, part, pair, p);
    if constexpr (Format::kPairs > 1) add_pair<Format, kTokens, 1>(tables, v, x, part, pair, p);
    if constexpr (Format::kPairs > 2) {
      add_pair<Format, kTokens, 2>(tables, v, x, part, pair, p);
      add_pair<Format, kTokens, 3>(tables, v, x, part, pair, p);
    }
  }
}

// kShort: the last block with fewer than 16 lanes.
template <class Format, int kTokens, bool kShort>
static inline void add_block(const typename Format::Tables& tables, const uint32_t* codes, const std::byte* scales,
                             int lanes, const uint32_t* const* x, int64_t block, F32x16 (&acc)[kRowsPerTile][kTokens]) {
  F32x16 p[kRowsPerTile][kTokens];
  for (auto& row : p) {
    for (F32x16& sum : row) sum = zero();
  }
  constexpr int kHalves = Format::kWords * Format::kPairs / kVectorsPerBlock;
  static_assert(kHalves == 1 || kHalves == 2);
  add_part<Format, kTokens>(tables, codes, x, LanePart<kHalves, 0, kShort>{block, lanes}, p);
  if constexpr (kHalves == 2) add_part<Format, kTokens>(tables, codes, x, LanePart<2, 1, kShort>{block, lanes}, p);
  F32x16 scale[kRowsPerTile];
  if constexpr (kShort) {
    Format::scales(tables, scales, lanes, scale);
  } else {
    Format::scales(tables, scales, scale);
  }
  for (int r = 0; r < kRowsPerTile; ++r) {
    for (int t = 0; t < kTokens; ++t) acc[r][t] = fma(p[r][t], scale[r], acc[r][t]);
  }
}

// Dot products of the four rows of `tile` with x[0 .. kTokens-1], without the matrix's global. sums: 4 per token.
template <class Format, int kTokens>
static inline void tile_dot(const PackedLayout& layout, const std::byte* matrix, int64_t tile, const uint32_t* const* x,
                            float* sums) {
  constexpr int kCodeBytes = Format::kWords * kRowsPerTile * kLanes * 4;
  constexpr int kFarScaleBytes = kFarBytes / kCodeBytes * Format::kScaleBytesPerBlock;  // of the same block
  const typename Format::Tables tables{};
  const std::byte* codes = matrix + layout.codes_offset + tile * layout.code_bytes_per_tile;
  const std::byte* scales = matrix + layout.scales_offset + tile * layout.scale_bytes_per_tile;
  F32x16 acc[kRowsPerTile][kTokens];
  for (auto& row : acc) {
    for (F32x16& sum : row) sum = zero();
  }
  const int64_t whole = layout.blocks - (layout.last_lanes < kLanes ? 1 : 0);
  for (int64_t block = 0; block < whole; ++block) {
    prefetch_codes(codes, kCodeBytes);
    if constexpr (Format::kScaleBytesPerBlock >= kCacheLine) prefetch(scales + kFarScaleBytes);
    add_block<Format, kTokens, false>(tables, reinterpret_cast<const uint32_t*>(codes), scales, kLanes, x, block, acc);
    codes += kCodeBytes;
    scales += Format::kScaleBytesPerBlock;
  }
  if (whole < layout.blocks) {
    const int lanes = static_cast<int>(layout.last_lanes);
    prefetch_codes(codes, kCodeBytes);
    add_block<Format, kTokens, true>(tables, reinterpret_cast<const uint32_t*>(codes), scales, lanes, x, whole, acc);
  }
  for (int t = 0; t < kTokens; ++t) {
    _mm_storeu_ps(sums + t * kRowsPerTile, tree_sum_rows(acc[0][t], acc[1][t], acc[2][t], acc[3][t]));
  }
}

template <int kTokens>
struct TokenGroup {
  static constexpr int kCount = kTokens;
};
// Calls f(first token, TokenGroup) for groups of 4, 2 and 1 tokens.
template <class F>
static inline void for_token_groups(int64_t tokens, F f) {
  int64_t t = 0;
  for (; t + kTokenGroup <= tokens; t += kTokenGroup) f(t, TokenGroup<kTokenGroup>{});
  if (t + 2 <= tokens) {
    f(t, TokenGroup<2>{});
    t += 2;
  }
  if (t < tokens) f(t, TokenGroup<1>{});
}

}  // namespace ft::FT_ISA_NAMESPACE
