// Body of attention (kernels/ops/attention.h). Include after a vector vocabulary, one of pairs_*.inc.h, and
// kAccumulators: how many vectors of running sums fit in registers (a power of two, at least 4).
//
// Up to kHeadBlock query heads share one walk over keys and values; a split of both (32 KiB at head_dim 128) stays in
// the first-level cache while the heads take turns on it. Rows are read as 32-bit words, 32 dimensions a block: the
// even dimensions are the low halves and the odd ones the high halves, which is the lane order of the contract and
// needs no shuffle. `out` is kept in that order until the end. Measured: tests/kernels/bench_attention.cpp.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/flush.inc.h"
#include "kernels/cpu/tree_rows.inc.h"
#include "kernels/ops/attention.h"

namespace ft::FT_ISA_NAMESPACE {

constexpr int kBlock = 32;  // dimensions
constexpr int kMaxBlocks = kMaxHeadDim / kBlock;
constexpr int kSplit = kAttentionSplit;
constexpr int kTreeLevels = __builtin_ctz(kAttentionGroup);
// Running results at a time: one a level of a group's tree, the groups joined so far, and the split at work.
constexpr int kParts = kTreeLevels + 2;
constexpr int kHeadBlock = 8;
constexpr int kKeyTile = 4;  // keys scored together: tree_sum_rows takes four

constexpr int smaller(int a, int b) { return a < b ? a : b; }

struct SplitRange {
  int64_t start;    // row of the split's first position, a multiple of kSplit
  int first, last;  // visible positions, from the first one
};

// What some positions give (a split, or splits joined), for all heads.
template <int kHeads>
struct Part {
  float m[kHeads], sum[kHeads];
  // [head][block]: 16 even dimensions, 16 odd ones. Blocks of heads follow each other, so that small heads stay close.
  alignas(64) float out[kHeads * kMaxBlocks][2][16];
};

template <int kHeads>
struct HeadState {
  Pairs query[kHeads][kMaxBlocks];
  alignas(64) float score[kHeads][kSplit];  // then e
  Part<kHeads> parts[kParts];
};

static inline U32x16 load_whole(const bf16* row) { return load_words(reinterpret_cast<const uint32_t*>(row)); }

// The first `dimensions` (below 32) of a block, the others +0. No call in here, nor anything that the compiler makes
// one of: it would push every accumulator of the loops around it out of its register.
static inline U32x16 load_part(const bf16* row, int dimensions) {
  const U32x16 pairs = load_words_n(reinterpret_cast<const uint32_t*>(row), dimensions / 2);
  if (dimensions % 2 == 0) return pairs;
  alignas(64) uint32_t last[16] = {};
  last[dimensions / 2] = row[dimensions - 1].bits;
  return or_words(pairs, load_words(last));
}

// Calls whole(b, d) for each whole block, then part(b, d, dimensions) for the rest.
template <typename Whole, typename Part>
static inline void for_blocks(int64_t head_dim, Whole whole, Part part) {
  int64_t d = 0;
  int b = 0;
  for (; d + kBlock <= head_dim; d += kBlock, ++b) whole(b, d);
  if (d < head_dim) part(b, d, static_cast<int>(head_dim - d));
}

static inline void prefetch_row(const bf16* row, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; d += kBlock) prefetch(row + d);
}

template <int kHeads>
static inline void start_heads(const AttentionArgs& args, const float* q, HeadState<kHeads>& state) {
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t d = 0, b = 0; d < args.head_dim; d += kBlock, ++b) {
      alignas(64) uint16_t upper[kBlock] = {};
      const int64_t count = args.head_dim - d < kBlock ? args.head_dim - d : kBlock;
      for (int64_t i = 0; i < count; ++i) {
        upper[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, q[h * args.head_dim + d + i]) >> 16);
      }
      state.query[h][b] = make_pairs(load_words(reinterpret_cast<const uint32_t*>(upper)));
    }
  }
}

// score = q k * scale for four keys from `t` on and heads h0 .. h0 + kTile - 1: each key is expanded once for all heads
// and each query loaded once for four keys.
template <int kTile, int kHeads>
static inline void score_keys(const AttentionArgs& args, const bf16* key, int t, int h0, HeadState<kHeads>& state) {
  F32x16 lanes[kTile][kKeyTile];
  for (int h = 0; h < kTile; ++h) {
    for (int i = 0; i < kKeyTile; ++i) lanes[h][i] = zero();
  }
  const auto add_block = [&](int b, int i, U32x16 words) {
    const Pairs k = make_pairs(words);
    for (int h = 0; h < kTile; ++h) lanes[h][i] = dot_pairs(state.query[h0 + h][b], k, lanes[h][i]);
  };
  for_blocks(
      args.head_dim,
      [&](int b, int64_t d) {
        for (int i = 0; i < kKeyTile; ++i) add_block(b, i, load_whole(key + i * args.kv_stride + d));
      },
      [&](int b, int64_t d, int n) {
        for (int i = 0; i < kKeyTile; ++i) add_block(b, i, load_part(key + i * args.kv_stride + d, n));
      });
  const __m128 scale = _mm_set1_ps(args.scale);
  for (int h = 0; h < kTile; ++h) {
    const __m128 dots = tree_sum_rows(lanes[h][0], lanes[h][1], lanes[h][2], lanes[h][3]);
    _mm_storeu_ps(state.score[h0 + h] + t, _mm_mul_ps(dots, scale));
  }
}

template <int kHeads>
static inline void score_key(const AttentionArgs& args, const bf16* key, int t, HeadState<kHeads>& state) {
  for (int h = 0; h < kHeads; ++h) {
    F32x16 lanes = zero();
    const auto add_block = [&](int b, U32x16 words) { lanes = dot_pairs(state.query[h][b], make_pairs(words), lanes); };
    for_blocks(
        args.head_dim, [&](int b, int64_t d) { add_block(b, load_whole(key + d)); },
        [&](int b, int64_t d, int n) { add_block(b, load_part(key + d, n)); });
    state.score[h][t] = tree_sum(lanes) * args.scale;
  }
}

// The values of the split are on their way meanwhile.
template <int kHeads>
static inline void score_split(const AttentionArgs& args, SplitRange range, HeadState<kHeads>& state) {
  constexpr int kTile = smaller(kHeads, kAccumulators / kKeyTile);
  int t = range.first;
  for (; t + kKeyTile <= range.last; t += kKeyTile) {
    const int64_t row = (range.start + t) * args.kv_stride;
    for (int i = 0; i < kKeyTile; ++i) prefetch_row(args.v + row + i * args.kv_stride, args.head_dim);
    for (int h = 0; h < kHeads; h += kTile) score_keys<kTile>(args, args.k + row, t, h, state);
  }
  for (; t < range.last; ++t) score_key(args, args.k + (range.start + t) * args.kv_stride, t, state);
}

// score -> e, maximum and sum. A NaN score makes its e NaN, and so the sum, whatever the maximum is.
static inline void softmax_split(SplitRange range, float* score, float* m, float* sum) {
  for (int t = 0; t < range.first; ++t) score[t] = -__builtin_inff();
  for (int t = range.last; t < kSplit; ++t) score[t] = -__builtin_inff();
  F32x16 largest = load(score);
  for (int t = 16; t < kSplit; t += 16) largest = max(largest, load(score + t));
  *m = tree_max(largest);
  const F32x16 shift = broadcast(*m);
  for (int t = 0; t < kSplit; t += 16) store(score + t, exp(sub(load(score + t), shift)));
  for (int t = 0; t < range.first; ++t) score[t] = 0.0f;
  for (int t = range.last; t < kSplit; ++t) score[t] = 0.0f;
  F32x16 lanes = zero();
  for (int t = 0; t < kSplit; t += 16) lanes = add(lanes, load(score + t));
  *sum = tree_sum(lanes);
}

// out = e v for kTile heads from h0 on and kBlocks blocks from b on, held in registers over the split. load_values is
// load_whole or load_part.
template <int kTile, int kBlocks, int kHeads, typename LoadValues>
static inline void mix_blocks(const AttentionArgs& args, SplitRange range, int h0, int b, int blocks,
                              const HeadState<kHeads>& state, Part<kHeads>& part, LoadValues load_values) {
  F32x16 even[kTile][kBlocks], odd[kTile][kBlocks];
  for (int h = 0; h < kTile; ++h) {
    for (int i = 0; i < kBlocks; ++i) even[h][i] = odd[h][i] = zero();
  }
  const bf16* value = args.v + (range.start + range.first) * args.kv_stride + b * kBlock;
  for (int t = range.first; t < range.last; ++t, value += args.kv_stride) {
    for (int i = 0; i < kBlocks; ++i) {
      const U32x16 words = load_values(value + i * kBlock);
      const F32x16 v_even = bits_to_float(shift_left<16>(words));
      const F32x16 v_odd = bits_to_float(and_words(words, broadcast_word(0xffff0000u)));
      for (int h = 0; h < kTile; ++h) {
        const F32x16 e = broadcast(state.score[h0 + h][t]);
        even[h][i] = fma(e, v_even, even[h][i]);
        odd[h][i] = fma(e, v_odd, odd[h][i]);
      }
    }
  }
  for (int h = 0; h < kTile; ++h) {
    for (int i = 0; i < kBlocks; ++i) {
      store(part.out[(h0 + h) * blocks + b + i][0], even[h][i]);
      store(part.out[(h0 + h) * blocks + b + i][1], odd[h][i]);
    }
  }
}

template <int kHeads>
static inline void mix_split(const AttentionArgs& args, SplitRange range, const HeadState<kHeads>& state,
                             Part<kHeads>& part) {
  constexpr int kTile = smaller(kHeads, kAccumulators / 2);
  constexpr int kBlocks = smaller(4, kAccumulators / (2 * kTile));
  const int whole = static_cast<int>(args.head_dim / kBlock);
  const int rest = static_cast<int>(args.head_dim % kBlock);
  const int all = whole + (rest > 0 ? 1 : 0);
  for (int h = 0; h < kHeads; h += kTile) {
    int b = 0;
    for (; b + kBlocks <= whole; b += kBlocks) {
      mix_blocks<kTile, kBlocks>(args, range, h, b, all, state, part, load_whole);
    }
    for (; b < whole; ++b) mix_blocks<kTile, 1>(args, range, h, b, all, state, part, load_whole);
    if (rest == 0) continue;
    mix_blocks<kTile, 1>(args, range, h, b, all, state, part, [rest](const bf16* row) { return load_part(row, rest); });
  }
}

// b = join(a, b) of the contract.
template <int kHeads>
static inline void join(const Part<kHeads>& a, Part<kHeads>& b, int blocks) {
  for (int h = 0; h < kHeads; ++h) {
    const float m = a.m[h] > b.m[h] ? a.m[h] : b.m[h];
    const F32x16 wa = exp(broadcast(a.m[h] - m));
    const F32x16 wb = exp(broadcast(b.m[h] - m));
    const auto joined = [&](F32x16 x, F32x16 y) { return fma(y, wb, mul(x, wa)); };
    b.m[h] = m;
    store_n(&b.sum[h], joined(broadcast(a.sum[h]), broadcast(b.sum[h])), 1);
    for (int i = h * blocks; i < (h + 1) * blocks; ++i) {
      for (int odd = 0; odd < 2; ++odd) store(b.out[i][odd], joined(load(a.out[i][odd]), load(b.out[i][odd])));
    }
  }
}

// Parts that wait for their right neighbour: of 2^level splits each, and at kTreeLevels the groups joined so far.
template <int kHeads>
class Waiting {
 public:
  explicit Waiting(Part<kHeads>* parts) : next_(parts) {
    for (int i = 0; i < kParts - 1; ++i) spare_[i] = parts + 1 + i;
  }
  Part<kHeads>* next() { return next_; }  // where the next split goes

  // Takes in what stands at next(), split number `split`.
  void take(int64_t split, int blocks) {
    int level = 0;
    for (; level < kTreeLevels && (split >> level) % 2 == 1; ++level) join_left(level, blocks);
    if (level == kTreeLevels) join_left(level, blocks);
    left_[level] = next_;
    next_ = spare_[--spares_];
  }

  // All parts joined. At least one split was taken.
  Part<kHeads>* finish(int blocks) {
    Part<kHeads>* result = nullptr;
    for (int level = 0; level <= kTreeLevels; ++level) {
      if (left_[level] == nullptr) continue;
      if (result != nullptr) join(*left_[level], *result, blocks);
      if (result == nullptr) result = left_[level];
    }
    return result;
  }

 private:
  void join_left(int level, int blocks) {
    if (left_[level] == nullptr) return;  // nothing visible there
    join(*left_[level], *next_, blocks);
    spare_[spares_++] = left_[level];
    left_[level] = nullptr;
  }

  Part<kHeads>* next_;
  Part<kHeads>* left_[kTreeLevels + 1] = {};
  Part<kHeads>* spare_[kParts];
  int spares_ = kParts - 1;
};

// a = join(a, sink) of the contract, `out` in the same order of operations although the sink's is zero.
template <int kHeads>
static inline void join_sinks(const float* sinks, Part<kHeads>& a, int blocks) {
  for (int h = 0; h < kHeads; ++h) {
    const float m = a.m[h] > sinks[h] ? a.m[h] : sinks[h];
    const F32x16 wa = exp(broadcast(a.m[h] - m));
    const F32x16 wb = exp(broadcast(sinks[h] - m));
    store_n(&a.sum[h], fma(broadcast(1.0f), wb, mul(broadcast(a.sum[h]), wa)), 1);
    for (int i = h * blocks; i < (h + 1) * blocks; ++i) {
      for (int odd = 0; odd < 2; ++odd) store(a.out[i][odd], fma(zero(), wb, mul(load(a.out[i][odd]), wa)));
    }
  }
}

template <int kHeads>
static inline void finish_heads(const AttentionArgs& args, float* out, Part<kHeads>& part, int blocks) {
  for (int h = 0; h < kHeads; ++h) {
    const F32x16 sum = broadcast(part.sum[h]);
    for (int64_t d = 0; d < args.head_dim; d += kBlock) {
      float(&pair)[2][16] = part.out[h * blocks + d / kBlock];
      store(pair[0], div(load(pair[0]), sum));
      store(pair[1], div(load(pair[1]), sum));
      const int64_t count = args.head_dim - d < kBlock ? args.head_dim - d : kBlock;
      for (int64_t i = 0; i < count; ++i) out[h * args.head_dim + d + i] = pair[i % 2][i / 2];
    }
  }
}

template <int kHeads>
FT_KERNEL_BODY void attend(const AttentionArgs& args, int64_t first_head) {
  const float* q = args.q + first_head * args.head_dim;
  HeadState<kHeads> state;
  start_heads(args, q, state);
  const int blocks = static_cast<int>((args.head_dim + kBlock - 1) / kBlock);
  Waiting<kHeads> waiting(state.parts);
  for (int64_t split = args.begin / kSplit; split * kSplit < args.length; ++split) {
    const int64_t start = split * kSplit;
    const int64_t first = args.begin - start, last = args.length - start;
    const SplitRange range{args.ring > 0 ? start % args.ring : start, static_cast<int>(first > 0 ? first : 0),
                           static_cast<int>(last < kSplit ? last : kSplit)};
    Part<kHeads>& part = *waiting.next();
    score_split(args, range, state);
    for (int h = 0; h < kHeads; ++h) softmax_split(range, state.score[h], &part.m[h], &part.sum[h]);
    mix_split(args, range, state, part);
    waiting.take(split, blocks);
  }
  Part<kHeads>& all = *waiting.finish(blocks);
  if (args.sinks != nullptr) join_sinks(args.sinks + first_head, all, blocks);
  finish_heads(args, args.out + first_head * args.head_dim, all, blocks);
}

// Heads from `h` on in blocks of kHeads, the rest in blocks half as large.
template <int kHeads>
static inline void attend_blocks(const AttentionArgs& args, int64_t h) {
  for (; h + kHeads <= args.heads; h += kHeads) {
    attend<kHeads>(args, h);
  }
  if constexpr (kHeads > 1) attend_blocks<kHeads / 2>(args, h);
}

void attention(const AttentionArgs& args) {
  const FlushScope flush;
  if (args.begin < args.length) return attend_blocks<kHeadBlock>(args, 0);
  for (int64_t i = 0; i < args.heads * args.head_dim; ++i) args.out[i] = 0.0f;
}

}  // namespace ft::FT_ISA_NAMESPACE
