// Launchers of attention to a window and to compressed entries (kernels/ops/compressed.h), the bits of the host device:
// which rows a token attends to, and when entries close, follows its position (engine/runtime/compressed_attention.h).
//
// A step calls compressed_prepare, compressed_close, then for groups of its tokens compressed_choose,
// compressed_gather, attention (ops.h) and compressed_turn_back, and compressed_keep at last. Of prompts' tokens
// compressed_attend takes the place of the three in the middle, with prefill's arithmetic (prefill.h): gathers nothing.
// Positions are read on the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/delta_net.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops/compressed.h"

namespace ft::cuda {

// One layer and where it keeps its sequences. Of a sequence: `ring_rows` rows (position p at row p mod ring_rows), then
// `entries` entries of head_dim, then as many of index_dim; and open tokens in fp32, values and logits of
// halves * head_dim, then those of halves * index_dim (position p at p mod open_ring).
struct CompressedLayerView {
  int head_dim = 0, window = 0;
  int ratio = 0;  // 0: no entries
  bool overlap = false;
  int index_dim = 0, index_heads = 0, index_top_k = 0;
  bool blocks = false;  // index entries of blocks of an ordinary attention's tokens (blocks.h): head_dim is 0
  int ring_rows = 0, entries = 0, open_ring = 0;
  bf16* rows = nullptr;  // of sequence 0
  int64_t sequence_elements = 0;
  float* open = nullptr;
  int64_t sequence_floats = 0;

  constexpr int halves() const { return overlap ? 2 : 1; }
  constexpr int open_rows() const { return ratio * halves(); }
  constexpr int open_row_floats() const { return blocks ? index_dim : 2 * halves() * (head_dim + index_dim); }
  // Rows that a token attends to when its sequence has `positions`.
  constexpr int attended(int64_t positions) const {
    const auto p = static_cast<int>(positions), all = ratio > 0 ? p / ratio : 0;
    if (blocks) return index_top_k < all ? index_top_k * ratio + ratio - 1 : p;
    return (window < p ? window : p) + (index_dim > 0 && index_top_k < all ? index_top_k : all);
  }
};

struct CompressedArgs {
  CompressedLayerView layer;
  int64_t tokens = 0;
  // Of the step: runs in device memory, or null: every token is a run of its own.
  const SequenceRun* runs = nullptr;
  int run_count = 0;
  const int32_t* sequence = nullptr;
  const int64_t* position = nullptr;
  int64_t max_positions = 0;  // of a sequence, while these launches are used: bounds the grids
  int max_run_tokens = 1;
  int heads = 0;
  float norm_eps = 0;
  const float* cos = nullptr;  // (positions, half)
  const float* sin = nullptr;
  int half = 0;
  bool on_grids = false;     // rows, entries and index vectors as kernels/ops/cache_grid.h rounds them
  float hadamard_scale = 0;  // of index_dim
  float* q = nullptr;        // (tokens, q_stride)
  int64_t q_stride = 0;
  float* key = nullptr;  // (tokens, key_stride)
  int64_t key_stride = 0;
  bf16* fresh = nullptr;  // (tokens, head_dim): the rows of this step
  // Where there are entries: (tokens, halves * head_dim) and (tokens, halves * index_dim), a row's own stride each.
  struct Rows {
    float* data = nullptr;
    int64_t stride = 0;
  };
  Rows entry_value, entry_logit, index_value, index_logit;
  Rows index_q, index_weight;         // (tokens, index_heads * index_dim), (tokens, index_heads)
  const float* entry_bias = nullptr;  // (ratio, halves * head_dim)
  const float* entry_norm = nullptr;  // (head_dim)
  const float* index_bias = nullptr;  // (ratio, halves * index_dim)
  const float* index_norm = nullptr;  // (index_dim)
  float* out = nullptr;               // (tokens, out_stride)
  int64_t out_stride = 0;
};
void compressed_prepare(const CompressedArgs& args, StreamHandle stream);
void compressed_close(const CompressedArgs& args, StreamHandle stream);
void compressed_keep(const CompressedArgs& args, StreamHandle stream);

// Tokens [first, first + count).
struct CompressedGroup {
  int64_t first = 0, count = 0;
  float* scores = nullptr;      // (count, layer.entries)
  int32_t* chosen = nullptr;    // (count, index_top_k)
  bf16* gathered = nullptr;     // (count, gathered_rows) rows: key and value, of blocks all key heads and all values
  int64_t gathered_rows = 0;    // layer.attended(max_positions) or more
  int32_t* sequence = nullptr;  // (count), for attention over what was gathered
  int64_t* position = nullptr;
};
// Scores of the entries and the best of them, where a token has more than it may attend to.
void compressed_choose(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream);
void compressed_gather(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream);
void compressed_turn_back(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream);

// Attention of a group's tokens on tensor cores, with rows from where they lie, turned back. Of the group: first, count
// and chosen. A token's bits follow from its queries and rows alone. REQUIRES scale > 0.
struct CompressedAttendArgs {
  float scale = 0;
  const float* sinks = nullptr;  // (heads), or none
};
// Heads of a multiple of 8 dimensions up to 512, as far as the device's shared memory goes (210 KiB for 512), rows on
// 16 bytes.
bool compressed_attend_takes(const CompressedArgs& args);
void compressed_attend(const CompressedArgs& args, const CompressedGroup& group, const CompressedAttendArgs& attend,
                       StreamHandle stream);

}  // namespace ft::cuda
