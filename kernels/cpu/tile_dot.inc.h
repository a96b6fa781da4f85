// The canonical dot products (kernels/ops/matvec.h) of one row tile with kTokens packed activation rows: what matvec
// and gate_up are made of. Include after a vector vocabulary and pairs_*.inc.h.
//
// Tried: two tiles at a time for one token (two streams, activations widened once for eight rows): no faster once
// activations are prepared, 12.6 cycles for 128 nvfp4 weights in L2 either way.
#pragma once

#include <algorithm>

#include "kernels/cpu/decode.inc.h"
#include "kernels/cpu/tree_rows.inc.h"
#include "kernels/formats/format.h"

namespace ft::FT_ISA_NAMESPACE {

constexpr int kTokenGroup = 4;  // tokens that share one decoding of a tile
constexpr int kCacheLine = 64;

// Two distances: into L2 and, nearer, into L1. Measured with 16 threads on 16 cores of a Sapphire-Rapids-class VM
// (experts as the engine computes them, bench_experts; share of a plain read; medians of 15; nvfp4 2560x640 at a read
// of 150 GB/s and 4096x2048 at 107, 1 / 4 / 10 experts at once):
//   L2 4 KiB and L1 1 KiB    0.62 / 0.72 / 0.80   0.86 / 0.88 / 0.88
//   L2 8 KiB and L1 2 KiB    0.57 / 0.70 / 0.79   0.85 / 0.85 / 0.88
//   L2 16 KiB and L1 2 KiB   0.57 / 0.70 / 0.81   0.84 / 0.84 / 0.89
//   L2 6 KiB alone           0.58 / 0.74 / 0.78   0.84 / 0.85 / 0.89
//   L1 2 KiB alone           0.60 / 0.68 / 0.78   0.87 / 0.88 / 0.89
//   none                     0.47 / 0.50 / 0.54   0.70 / 0.69 / 0.72
constexpr int kFarBytes = 4096;
constexpr int kNearBytes = 1024;
// A range of tiles' codes, read from its begin to its end and then what lies at `next`. Prefetches do not run over the
// end: there begin another thread's codes, and at 16 threads a part of a 2.7 MB expert's matrix is only 58 KB.
struct Ahead {
  const std::byte *far, *near;
  // Line by line between the products. In a loop of its own before a block g++ 12 removes it: a loop of nothing but
  // prefetches has no effect that it knows of.
  inline void prefetch_line(int line) const {
    prefetch_far(far + line * kCacheLine);
    prefetch(near + line * kCacheLine);
  }
};
class CodeStream {
 public:
  CodeStream(const PackedLayout& layout, const std::byte* matrix, int64_t tile_begin, int64_t tile_end,
             const std::byte* next)
      : end_(matrix + layout.codes_offset + tile_end * layout.code_bytes_per_tile), next_(next) {
    const std::byte* begin = matrix + layout.codes_offset + tile_begin * layout.code_bytes_per_tile;
    const int64_t bytes = std::min<int64_t>(end_ - begin, kNearBytes);
    for (int64_t line = 0; line < bytes; line += kCacheLine) prefetch(begin + line);
  }
  // For the codes at p.
  inline Ahead ahead(const std::byte* p) const { return {ahead(p, kFarBytes), ahead(p, kNearBytes)}; }

 private:
  inline const std::byte* ahead(const std::byte* p, int distance) const {
    if (end_ - p > distance) return p + distance;
    return next_ != nullptr ? next_ + (distance - (end_ - p)) : p;
  }
  const std::byte *end_, *next_;
};

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

// Vectors of a packed row as a part of Format's blocks counts them.
template <class Part>
static inline int64_t pairs_index(const Part& part, int pair) {
  return (part.block * Part::kHalves + Part::kHalf) * kVectorsPerBlock + pair;
}

// Where the activations of a token group come from: packed rows, made into Pairs at each use,
struct PackedRows {
  const uint32_t* const* x;
  template <class Part>
  inline Pairs pairs(int token, const Part& part, int pair) const {
    return part.activations(x[token], pair);
  }
};
// or rows made into Pairs once for a call.
struct PreparedRows {
  const uint32_t* rows;
  int64_t row_words;
  template <class Part>
  inline Pairs pairs(int token, const Part& part, int pair) const {
    return load_pairs(rows + token * row_words + pairs_index(part, pair) * kPairsWords);
  }
};

// Sums of kRows vectors of code words: a tile's four rows, or fewer where one vector holds several of them. A vector is
// a cache line: each has one line prefetched.
template <class Format, int kTokens, int q, int kRows, class Words, class Rows, class Part>
static inline void add_pair(const typename Format::Tables& tables, const Words (&words)[kRows], const Ahead& ahead,
                            int first_line, const Rows& x, const Part& part, int first_pair,
                            F32x16 (&p)[kRows][kTokens]) {
  Pairs xs[kTokens];
  for (int t = 0; t < kTokens; ++t) xs[t] = x.pairs(t, part, first_pair + q);
  for (int r = 0; r < kRows; ++r) {
    if (r % Format::kPairs == q) ahead.prefetch_line(first_line + r);
    const Pairs w = Format::template pair<q>(tables, words[r]);
    for (int t = 0; t < kTokens; ++t) p[r][t] = dot_pairs(w, xs[t], p[r][t]);
  }
}

template <class Format, int kTokens, int kRows, class Rows, class Part>
static inline void add_part(const typename Format::Tables& tables, const uint32_t* codes, const Ahead& ahead,
                            const Rows& x, const Part& part, F32x16 (&p)[kRows][kTokens]) {
  constexpr int kWords = Format::kWords / Part::kHalves;
  for (int h = 0; h < kWords; ++h) {
    const int first_line = (Part::kHalf * kWords + h) * kRows;
    CodeWords<Part::kShort> words[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int index = first_line + r;
      words[r] = {codes + index * (Part::kShort ? part.lanes : kLanes), part.lanes};
    }
    const int pair = h * Format::kPairs;
    add_pair<Format, kTokens, 0>(tables, words, ahead, first_line, x, part, pair, p);
    if constexpr (Format::kPairs > 1) add_pair<Format, kTokens, 1>(tables, words, ahead, first_line, x, part, pair, p);
    if constexpr (Format::kPairs > 2) {
      add_pair<Format, kTokens, 2>(tables, words, ahead, first_line, x, part, pair, p);
      add_pair<Format, kTokens, 3>(tables, words, ahead, first_line, x, part, pair, p);
    }
  }
}

// kShort: the last block with fewer than 16 lanes.
template <class Format, int kTokens, bool kShort, class Rows>
static inline void add_block(const typename Format::Tables& tables, const uint32_t* codes, const Ahead& ahead,
                             const std::byte* scales, int lanes, const Rows& x, int64_t block,
                             F32x16 (&acc)[kRowsPerTile][kTokens]) {
  F32x16 p[kRowsPerTile][kTokens];
  for (auto& row : p) {
    for (F32x16& sum : row) sum = zero();
  }
  constexpr int kHalves = Format::kWords * Format::kPairs / kVectorsPerBlock;
  static_assert(kHalves == 1 || kHalves == 2);
  add_part<Format, kTokens>(tables, codes, ahead, x, LanePart<kHalves, 0, kShort>{block, lanes}, p);
  if constexpr (kHalves == 2)
    add_part<Format, kTokens>(tables, codes, ahead, x, LanePart<2, 1, kShort>{block, lanes}, p);
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

// A last block of 8 or 4 lanes: the words of kMerged = 2 or 4 rows follow each other and fill a vector, so that they
// take no more time than they have bytes. Their activations are repeated for each row (repeat_lanes). At K = 640 it is
// half of NVFP4's last of three blocks, three quarters of MXFP4's second of two.
template <class Format, int kTokens, int kMerged>
static inline void add_merged_block(const typename Format::Tables& tables, const uint32_t* codes, const Ahead& ahead,
                                    const std::byte* scales, const PreparedRows& x, int64_t block,
                                    F32x16 (&acc)[kRowsPerTile][kTokens]) {
  constexpr int kLanesOfRow = kLanes / kMerged;
  F32x16 p[kRowsPerTile / kMerged][kTokens];
  for (auto& row : p) {
    for (F32x16& sum : row) sum = zero();
  }
  constexpr int kHalves = Format::kWords * Format::kPairs / kVectorsPerBlock;
  add_part<Format, kTokens>(tables, codes, ahead, x, LanePart<kHalves, 0, false>{block, kLanes}, p);
  if constexpr (kHalves == 2)
    add_part<Format, kTokens>(tables, codes, ahead, x, LanePart<2, 1, false>{block, kLanes}, p);
  F32x16 scale[kRowsPerTile];
  Format::scales(tables, scales, kLanesOfRow, scale);
  const auto add_row = [&]<int r>() {
    for (int t = 0; t < kTokens; ++t) {
      acc[r][t] = fma(lanes_from<r % kMerged * kLanesOfRow, kLanesOfRow>(p[r / kMerged][t]), scale[r], acc[r][t]);
    }
  };
  add_row.template operator()<0>();
  add_row.template operator()<1>();
  add_row.template operator()<2>();
  add_row.template operator()<3>();
}
static inline bool is_merged(int64_t lanes) { return lanes == kLanes / 2 || lanes == kLanes / 4; }

template <class Format, int kTokens>
static inline void add_last_block(const typename Format::Tables& tables, const uint32_t* codes, const Ahead& ahead,
                                  const std::byte* scales, int lanes, const PreparedRows& x, int64_t block,
                                  F32x16 (&acc)[kRowsPerTile][kTokens]) {
  if (lanes == kLanes / 2) return add_merged_block<Format, kTokens, 2>(tables, codes, ahead, scales, x, block, acc);
  if (lanes == kLanes / 4) return add_merged_block<Format, kTokens, 4>(tables, codes, ahead, scales, x, block, acc);
  add_block<Format, kTokens, true>(tables, codes, ahead, scales, lanes, x, block, acc);
}
template <class Format, int kTokens>
static inline void add_last_block(const typename Format::Tables& tables, const uint32_t* codes, const Ahead& ahead,
                                  const std::byte* scales, int lanes, const PackedRows& x, int64_t block,
                                  F32x16 (&acc)[kRowsPerTile][kTokens]) {
  add_block<Format, kTokens, true>(tables, codes, ahead, scales, lanes, x, block, acc);
}

// Dot products of the four rows of `tile` with tokens 0 .. kTokens-1 of x, without the matrix's global. sums: 4 per
// token.
template <class Format, int kTokens, class Rows>
static inline void tile_dot(const PackedLayout& layout, const std::byte* matrix, const CodeStream& stream, int64_t tile,
                            const Rows& x, float* sums) {
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
    if constexpr (Format::kScaleBytesPerBlock >= kCacheLine) prefetch(scales + kFarScaleBytes);
    add_block<Format, kTokens, false>(tables, reinterpret_cast<const uint32_t*>(codes), stream.ahead(codes), scales,
                                      kLanes, x, block, acc);
    codes += kCodeBytes;
    scales += Format::kScaleBytesPerBlock;
  }
  if (whole < layout.blocks) {
    add_last_block<Format, kTokens>(tables, reinterpret_cast<const uint32_t*>(codes), stream.ahead(codes), scales,
                                    static_cast<int>(layout.last_lanes), x, whole, acc);
  }
  for (int t = 0; t < kTokens; ++t) {
    _mm_storeu_ps(sums + t * kRowsPerTile, tree_sum_rows(acc[0][t], acc[1][t], acc[2][t], acc[3][t]));
  }
}

// The first `lanes` lanes of `vectors` vectors into all others.
static inline void repeat_lanes(uint32_t* words, int64_t vectors, int lanes) {
  for (int64_t v = 0; v < vectors; ++v) {
    for (int lane = lanes; lane < kLanes; ++lane) words[v * kLanes + lane] = words[v * kLanes + lane - lanes];
  }
}

// Activations of a call, prepared when they fit: then f gets PreparedRows, else PackedRows.
constexpr int64_t kPreparedWords = 16384;
template <class Format, class F>
static inline void with_rows(const PackedLayout& layout, const uint32_t* const* x, int64_t tokens, F f) {
  constexpr int kHalves = Format::kWords * Format::kPairs / kVectorsPerBlock;
  const int64_t row_words = layout.blocks * kHalves * kVectorsPerBlock * kPairsWords;
  if (tokens * row_words > kPreparedWords) return f([x](int64_t first) { return PackedRows{x + first}; });
  alignas(kCacheLine) uint32_t words[kPreparedWords];
  const auto prepare = [](const auto& part, const uint32_t* row, uint32_t* to) {
    for (int pair = 0; pair < kVectorsPerBlock; ++pair) {
      store_pairs(to + pairs_index(part, pair) * kPairsWords, part.activations(row, pair));
    }
  };
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t block = 0; block < layout.blocks; ++block) {
      const int lanes = block + 1 == layout.blocks ? static_cast<int>(layout.last_lanes) : kLanes;
      prepare(LanePart<kHalves, 0, true>{block, lanes}, x[t], words + t * row_words);
      if constexpr (kHalves == 2) prepare(LanePart<2, 1, true>{block, lanes}, x[t], words + t * row_words);
    }
    constexpr int64_t kVectors = kHalves * kVectorsPerBlock * kPairsWords / kLanes;  // of a block
    if (is_merged(layout.last_lanes)) {
      repeat_lanes(words + (t + 1) * row_words - kVectors * kLanes, kVectors, static_cast<int>(layout.last_lanes));
    }
  }
  const uint32_t* rows = words;
  f([rows, row_words](int64_t first) { return PreparedRows{rows + first * row_words, row_words}; });
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
