// Launchers of prefill: products on tensor cores and attention over many query rows at once.
//
// The arithmetic is not decode's (no canonical lanes), but it is a function of a row alone: one tile shape and one
// order of k for every number of rows, so a token's result has the same bits in a chunk of one token and of thousands,
// alone and in a batch, whatever memory its experts are read from. Weights are read from the packed layout that decode
// uses.
//
// A product: codes decode to bf16 (with their scale where that is exact: nvfp4 and mxfp4), mma.sync m16n8k16 bf16 with
// fp32 sums in order of k tiles; fp8_block scales its fp32 sum of each 128 k and adds those in order,
// fp8_channel a row's whole sum. The matrix' global last. Pointers are device pointers; launches are asynchronous and
// throw Error(kFailed) when refused.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"

namespace ft::cuda {

// y = W x [+ bias], or y = y + (W x [+ bias]) with `add`. With `groups` W's rows are as many products: rows of group g
// have columns [g * cols, (g + 1) * cols) of x, a row of groups * cols; the same bits as products of their own.
// More than one REQUIRES prefill_groups_take(w.layout, groups).
struct PrefillLinearArgs {
  PackedMatrix w;
  const uint32_t* x = nullptr;  // (tokens) packed rows of groups * w.layout.cols
  int64_t tokens = 0;
  const float* bias = nullptr;  // (rows) or null
  float* y = nullptr;           // (tokens, y_stride)
  int64_t y_stride = 0;
  bool add = false;
  int groups = 1;
};
// Whether groups begin with tiles of rows, and their columns with whole blocks of a packed row.
bool prefill_groups_take(const PackedLayout& layout, int groups);
void prefill_linear(const PrefillLinearArgs& args, StreamHandle stream);

// Pairs (token * top_k + slot) of one expert that one tile computes.
inline constexpr int kPrefillTileTokens = 128;
struct PrefillTile {
  int32_t item = 0;   // which expert: index into the layer's list
  int32_t begin = 0;  // into PrefillLists::order
  int32_t count = 0;  // 1 .. kPrefillTileTokens
};
constexpr int64_t max_prefill_tiles(int64_t pairs, int64_t experts) { return pairs / kPrefillTileTokens + experts; }

// Pairs by expert, in device memory. Items are all experts of the layer in an order that the caller gives.
struct PrefillLists {
  int32_t* counts = nullptr;      // (experts): pairs of each expert
  int32_t* order = nullptr;       // (pairs): in order of items, then of pairs
  PrefillTile* tiles = nullptr;   // (max_prefill_tiles)
  int32_t* tile_begin = nullptr;  // (experts + 1): item i's tiles are [tile_begin[i], tile_begin[i + 1])
};
struct PrefillGroupArgs {
  const int32_t* ids = nullptr;  // (pairs): below experts, or -1: no expert
  int64_t pairs = 0;
  const int32_t* expert_of_item = nullptr;  // (experts): a permutation
  int experts = 0;
  PrefillLists lists;
};
void prefill_group(const PrefillGroupArgs& args, StreamHandle stream);

// Experts of one layer: items [item_begin, item_end) of the list.
struct PrefillExpertArgs {
  ExpertLayout layout;
  const std::byte* const* blobs = nullptr;  // (experts) by item; only of items that have pairs are they read
  PrefillLists lists;
  int item_begin = 0, item_end = 0;
  int64_t pairs = 0;  // of the whole layer: bounds the tiles
  int top_k = 0;
  const uint32_t* x = nullptr;    // (tokens) packed rows of hidden: row pair / top_k
  uint32_t* activated = nullptr;  // (pairs) packed rows of intermediate; padding zeroed once by the caller
  float* out = nullptr;           // (pairs, out_stride) rows of hidden
  int64_t out_stride = 0;
};
// The layout's gated unit of gate x and up x, with their biases, rounded to bf16. Differs from decode's in the order of
// sums and in exp and division, which are the device's approximate ones (2 units in the last place of fp32, before
// rounding to bf16).
void prefill_gate_up(const PrefillExpertArgs& args, StreamHandle stream);
void prefill_down(const PrefillExpertArgs& args, StreamHandle stream);

// to = add(to, merged), or without `add` to = merged: merge (`shared` last) and add of kernels/ops/rows.h, the same
// bits. ids < 0: no expert.
struct PrefillMergeArgs {
  const int32_t* ids = nullptr;    // (tokens, top_k)
  const float* weights = nullptr;  // (tokens, top_k)
  int64_t tokens = 0;
  int top_k = 0;
  const float* rows = nullptr;  // (tokens * top_k, rows_stride)
  int64_t rows_stride = 0;
  int64_t cols = 0;
  float* to = nullptr;  // (tokens, to_stride)
  int64_t to_stride = 0;
  bool add = true;
  SharedRows shared;
};
void prefill_merge(const PrefillMergeArgs& args, StreamHandle stream);

// Consecutive tokens of one sequence, at most kPrefillQueryRows.
inline constexpr int kPrefillQueryRows = 128;
struct PrefillQueries {
  int64_t position = 0;  // of the first token
  int32_t token = 0;     // its row
  int32_t count = 0;
  int32_t sequence = 0;
  int32_t reserved = 0;
};
// Attention of all tokens, prepared as AttentionArgs says, with keys and values in the cache. Scores and weighted sums
// on tensor cores (weights rounded to bf16), running maximum and sum per row over chunks of 64 positions (32 beyond 256
// dimensions) that start at multiples of their size. REQUIRES scale > 0, a KV cache on 16 bytes.
//
// head_dim: multiples of 8 up to 512, as far as the device's shared memory goes: 128 everywhere, 256 takes 192 KiB, 512
// 224 KiB.
bool prefill_attention_takes(int64_t head_dim);
struct PrefillAttentionArgs {
  const float* q = nullptr;  // (tokens, q_stride): as AttentionArgs::q
  int64_t q_stride = 0;
  const PrefillQueries* tiles = nullptr;
  int tile_count = 0;
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;
  int64_t window = 0;  // 0: all
  KvView kv;
  float* out = nullptr;  // (tokens, out_stride)
  int64_t out_stride = 0;
  bool gated = false;            // as AttentionArgs
  const float* sinks = nullptr;  // (heads), or none
};
void prefill_attention(const PrefillAttentionArgs& args, StreamHandle stream);

}  // namespace ft::cuda
