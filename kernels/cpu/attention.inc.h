// Body of attention (kernels/ops/attention.h). Include after a vector vocabulary, one of pairs_*.inc.h, and
// kHeadBlock: how many query heads share one walk over keys and values (a power of two).
//
// Rows are read as 32-bit words, 32 dimensions a block: the even dimensions are the low halves and the odd ones the
// high halves, which is the lane order of the contract and needs no shuffle. `out` is kept in that order until the end.
#pragma once

#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/flush.inc.h"
#include "kernels/ops/attention.h"

namespace ft::FT_ISA_NAMESPACE {

constexpr int kBlock = 32;  // dimensions
constexpr int kMaxBlocks = kMaxHeadDim / kBlock;
constexpr int kChunk = kAttentionChunk;
constexpr int kAccumulators = kHeadBlock * 2 > 8 ? kHeadBlock * 2 : 8;  // vectors of `out` held in registers

struct ChunkRange {
  int64_t start;    // position of the chunk, a multiple of kChunk
  int first, last;  // visible positions, from `start`
};

template <int kHeads>
struct HeadState {
  Pairs query[kHeads][kMaxBlocks];
  alignas(64) float out[kHeads][kMaxBlocks][2][16];  // even dimensions, odd dimensions
  alignas(64) float score[kHeads][kChunk];           // then e
  float m[kHeads], sum[kHeads], rescale[kHeads];
};

static inline U32x16 load_block(const bf16* row, int64_t dimensions_left) {
  const auto* words = reinterpret_cast<const uint32_t*>(row);
  if (dimensions_left >= kBlock) return load_words(words);
  if (dimensions_left % 2 == 0) return load_words_n(words, static_cast<int>(dimensions_left / 2));
  alignas(64) bf16 padded[kBlock] = {};
  for (int64_t d = 0; d < dimensions_left; ++d) padded[d] = row[d];
  return load_words(reinterpret_cast<const uint32_t*>(padded));
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
      store(state.out[h][b][0], zero());
      store(state.out[h][b][1], zero());
    }
    state.m[h] = -__builtin_inff();
    state.sum[h] = 0.0f;
  }
}

// score = q k * scale. The values of the chunk and the keys of the next one are on their way meanwhile.
template <int kHeads>
static inline void score_chunk(const AttentionArgs& args, ChunkRange range, HeadState<kHeads>& state) {
  for (int t = range.first; t < range.last; ++t) {
    const bf16* key = args.k + (range.start + t) * args.kv_stride;
    prefetch_row(args.v + (range.start + t) * args.kv_stride, args.head_dim);
    F32x16 lanes[kHeads];
    for (int h = 0; h < kHeads; ++h) lanes[h] = zero();
    for (int64_t d = 0, b = 0; d < args.head_dim; d += kBlock, ++b) {
      const Pairs k = make_pairs(load_block(key + d, args.head_dim - d));
      for (int h = 0; h < kHeads; ++h) lanes[h] = dot_pairs(state.query[h][b], k, lanes[h]);
    }
    for (int h = 0; h < kHeads; ++h) state.score[h][t] = tree_sum(lanes[h]) * args.scale;
  }
}

// score -> e, and the running maximum and sum. A NaN score makes its e NaN, and so the sum, whatever the maximum is.
static inline void softmax_chunk(ChunkRange range, float* score, float* m, float* sum, float* rescale) {
  for (int t = 0; t < range.first; ++t) score[t] = -__builtin_inff();
  for (int t = range.last; t < kChunk; ++t) score[t] = -__builtin_inff();
  F32x16 largest = broadcast(*m);
  for (int t = 0; t < kChunk; t += 16) largest = max(largest, load(score + t));
  const float larger = tree_max(largest);
  const F32x16 shift = broadcast(larger);
  for (int t = 0; t < kChunk; t += 16) store(score + t, exp(sub(load(score + t), shift)));
  for (int t = 0; t < range.first; ++t) score[t] = 0.0f;
  for (int t = range.last; t < kChunk; ++t) score[t] = 0.0f;
  F32x16 lanes = zero();
  for (int t = 0; t < kChunk; t += 16) lanes = add(lanes, load(score + t));
  const F32x16 c = exp(broadcast(*m - larger));
  alignas(64) float sums[16];
  store(sums, fma(broadcast(*sum), c, broadcast(tree_sum(lanes))));
  *sum = sums[0];
  store(sums, c);
  *rescale = sums[0];
  *m = larger;
}

// out = out * rescale + e v for kBlocks blocks of every head, held in registers over the chunk.
template <int kHeads, int kBlocks>
static inline void mix_blocks(const AttentionArgs& args, ChunkRange range, int b, HeadState<kHeads>& state) {
  F32x16 even[kHeads][kBlocks], odd[kHeads][kBlocks];
  for (int h = 0; h < kHeads; ++h) {
    const F32x16 c = broadcast(state.rescale[h]);
    for (int i = 0; i < kBlocks; ++i) {
      even[h][i] = mul(load(state.out[h][b + i][0]), c);
      odd[h][i] = mul(load(state.out[h][b + i][1]), c);
    }
  }
  const bf16* value = args.v + (range.start + range.first) * args.kv_stride + b * kBlock;
  const int64_t left = args.head_dim - b * kBlock;
  for (int t = range.first; t < range.last; ++t, value += args.kv_stride) {
    for (int i = 0; i < kBlocks; ++i) {
      const U32x16 words = load_block(value + i * kBlock, left - i * kBlock);
      const F32x16 v_even = bits_to_float(shift_left<16>(words));
      const F32x16 v_odd = bits_to_float(and_words(words, broadcast_word(0xffff0000u)));
      for (int h = 0; h < kHeads; ++h) {
        const F32x16 e = broadcast(state.score[h][t]);
        even[h][i] = fma(e, v_even, even[h][i]);
        odd[h][i] = fma(e, v_odd, odd[h][i]);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kBlocks; ++i) {
      store(state.out[h][b + i][0], even[h][i]);
      store(state.out[h][b + i][1], odd[h][i]);
    }
  }
}

template <int kHeads>
static inline void mix_chunk(const AttentionArgs& args, ChunkRange range, HeadState<kHeads>& state) {
  constexpr int kBlocks = kAccumulators / (2 * kHeads);
  const int blocks = static_cast<int>((args.head_dim + kBlock - 1) / kBlock);
  int b = 0;
  for (; b + kBlocks <= blocks; b += kBlocks) mix_blocks<kHeads, kBlocks>(args, range, b, state);
  for (; b < blocks; ++b) mix_blocks<kHeads, 1>(args, range, b, state);
}

template <int kHeads>
static inline void finish_heads(const AttentionArgs& args, float* out, HeadState<kHeads>& state) {
  for (int h = 0; h < kHeads; ++h) {
    const F32x16 sum = broadcast(state.sum[h]);
    for (int64_t d = 0; d < args.head_dim; d += kBlock) {
      float(&pair)[2][16] = state.out[h][d / kBlock];
      store(pair[0], div(load(pair[0]), sum));
      store(pair[1], div(load(pair[1]), sum));
      const int64_t count = args.head_dim - d < kBlock ? args.head_dim - d : kBlock;
      for (int64_t i = 0; i < count; ++i) out[h * args.head_dim + d + i] = pair[i % 2][i / 2];
    }
  }
}

template <int kHeads>
FT_KERNEL_BODY void attend(const AttentionArgs& args, const float* q, float* out) {
  HeadState<kHeads> state;
  start_heads(args, q, state);
  for (int64_t chunk = args.begin / kChunk * kChunk; chunk < args.length; chunk += kChunk) {
    const int64_t first = args.begin - chunk, last = args.length - chunk;
    const ChunkRange range{chunk, static_cast<int>(first > 0 ? first : 0),
                           static_cast<int>(last < kChunk ? last : kChunk)};
    score_chunk(args, range, state);
    for (int h = 0; h < kHeads; ++h) {
      softmax_chunk(range, state.score[h], &state.m[h], &state.sum[h], &state.rescale[h]);
    }
    mix_chunk(args, range, state);
  }
  finish_heads(args, out, state);
}

// Heads from `h` on in blocks of kHeads, the rest in blocks half as large.
template <int kHeads>
static inline void attend_blocks(const AttentionArgs& args, int64_t h) {
  for (; h + kHeads <= args.heads; h += kHeads) {
    attend<kHeads>(args, args.q + h * args.head_dim, args.out + h * args.head_dim);
  }
  if constexpr (kHeads > 1) attend_blocks<kHeads / 2>(args, h);
}

void attention(const AttentionArgs& args) {
  const FlushScope flush;
  if (args.begin < args.length) return attend_blocks<kHeadBlock>(args, 0);
  for (int64_t i = 0; i < args.heads * args.head_dim; ++i) args.out[i] = 0.0f;
}

}  // namespace ft::FT_ISA_NAMESPACE
