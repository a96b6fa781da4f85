// What a model is made of, in numbers: shared by the memory plan, the probes, the cost model and the profile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/formats/expert_blob.h"
#include "kernels/formats/format.h"
#include "kernels/ops/attention.h"

namespace ft {

struct ExpertGeometry {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int experts = 0;  // per MoE layer
  int top_k = 0;
  ExpertForm form = {};
};

// What a layer with attention caches per token: keys and values.
struct KvLayer {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // positions that a query of the layer sees, itself included; 0: all

  int64_t elements() const { return 2 * kv_heads * head_dim; }
  bool operator==(const KvLayer&) const = default;
};

// The tokens at its end that a sequence may forget (Engine::rewind_sequence) although caches of windows forget, too.
inline constexpr int64_t kRewindPositions = 64;

// What a layer with compressed attention caches per sequence: the last `window` rows (key and value at once), and an
// entry for every `ratio` tokens, with an index entry where there is an indexer. The tokens of windows that are not
// closed are kept in fp32 whatever the numerics: a value and a logit for each channel of what becomes an entry. Rows
// and open tokens are rings, with room for what a sequence may forget again.
struct CompressedLayer {
  int64_t head_dim = 0;
  int64_t window = 0;
  int64_t ratio = 0;      // 0: no entries
  bool overlap = false;   // an entry is made of two windows: tokens have channels for their own and for the next
  int64_t index_dim = 0;  // 0: no indexer
  int64_t index_heads = 0;
  int64_t index_top_k = 0;  // entries that a token attends to at most, with an indexer
  // Index entries are means of their tokens' index rows, and stand for blocks of tokens of an ordinary attention, which
  // caches these tokens: there are no rows, entries or logits then (head_dim 0).
  bool blocks = false;

  int64_t halves() const { return overlap ? 2 : 1; }
  int64_t visible_rows(int64_t positions) const { return window < positions ? window : positions; }
  int64_t ring_rows(int64_t positions) const {
    return window + kRewindPositions < positions ? window + kRewindPositions : positions;
  }
  int64_t entries(int64_t positions) const { return ratio > 0 ? positions / ratio : 0; }
  int64_t open_rows() const { return ratio * halves(); }  // tokens that an entry is made of
  int64_t open_ring() const { return ratio > 0 ? open_rows() + kRewindPositions : 0; }
  int64_t open_row_floats() const { return blocks ? index_dim : 2 * halves() * (head_dim + index_dim); }
  // Of one sequence of that many positions.
  int64_t elements(int64_t positions) const {
    return ring_rows(positions) * head_dim + entries(positions) * (head_dim + index_dim);
  }
  int64_t open_floats() const { return open_ring() * open_row_floats(); }
  // Rows that one token attends to: of blocks, the chosen ones and what follows the last whole one.
  int64_t attended(int64_t positions) const {
    const int64_t all = entries(positions);
    if (blocks) return index_top_k < all ? index_top_k * ratio + ratio - 1 : positions;
    return visible_rows(positions) + (index_dim > 0 && index_top_k < all ? index_top_k : all);
  }
  bool operator==(const CompressedLayer&) const = default;
};

// Positions of one sequence in a layer's cache. Of a layer with a window it is a ring that holds
// what the first of a step's tokens still sees when the last one has been appended; whole splits of attention, so that
// a split never lies across the end of the ring.
constexpr int64_t kv_positions(const KvLayer& layer, int64_t max_context, int64_t step_tokens) {
  if (layer.window == 0) return max_context;
  const int64_t beside = step_tokens > kRewindPositions ? step_tokens : kRewindPositions;
  const int64_t splits = (layer.window + beside + kAttentionSplit - 1) / kAttentionSplit;
  return splits * kAttentionSplit < max_context ? splits * kAttentionSplit : max_context;
}

struct ModelGeometry {
  std::string family;  // "qwen3_moe"
  int layers = 0;
  std::vector<int> moe_layers;  // model layer index of each MoE layer, ascending; "MoE layer" indexes below count these
  ExpertGeometry expert;
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;                // of the checkpoint
  std::vector<KvLayer> kv;                  // per layer with a KV cache
  std::vector<CompressedLayer> compressed;  // per layer with compressed attention
  int64_t state_floats = 0;                 // recurrent state of one sequence, all layers, fp32 whatever the numerics
  int output_groups = 0;                    // parts of grouped products, and the columns of one
  int64_t output_group_width = 0;
  int64_t widest_heads = 0;  // query heads x head_dim, of the widest layer
  int rope_tables = 1;       // of cos and sin, none wider than max_head_dim()
  int64_t slot_floats = 0;   // activations of one token: the widths of all slots of the family

  int64_t kv_elements_per_token() const {
    int64_t sum = 0;
    for (const KvLayer& layer : kv) sum += layer.elements();
    return sum;
  }
  int64_t kv_bytes_per_token() const { return kv_elements_per_token() * 2; }
  int64_t max_head_dim() const {
    int64_t widest = 0;
    for (const KvLayer& layer : kv) widest = layer.head_dim > widest ? layer.head_dim : widest;
    for (const CompressedLayer& layer : compressed) widest = layer.head_dim > widest ? layer.head_dim : widest;
    return widest;
  }
  int64_t total_experts() const { return static_cast<int64_t>(moe_layers.size()) * expert.experts; }
};

// Filled in once the weights are known (or chosen, for synthetic ones).
struct ModelFormats {
  std::vector<FormatId> expert_format;  // per MoE layer
  std::string dense;                    // summary for people: "bf16" or "bf16+fp8_block"
  std::string experts;                  // likewise
  int64_t dense_bytes = 0;              // packed weights outside the experts, the embedding table included
  int64_t dense_bytes_per_token = 0;    // of them, read to decode one token (one embedding row, not the table)
  int64_t row_table_bytes = 0;          // tables whose rows are read from the checkpoint, in none of the above
  int64_t row_bytes_per_token = 0;      // of them, read for one token
  int64_t expert_bytes_max = 0;         // largest blob: bytes of a slot
  int64_t expert_bytes_total = 0;       // all banks
};

}  // namespace ft
