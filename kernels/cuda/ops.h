// Launchers of the CUDA kernels: the operations of kernels/ops on device memory, with the bits of the CPU kernels.
//
// Contracts (shapes, units, order of arithmetic) are those of kernels/ops/*.h; what is said here is what differs. Every
// kernel is compiled with -ftz=true -prec-div=true -prec-sqrt=true -fmad=false, so that each fp32 operation rounds once
// and flushes denormals (DESIGN section 3); sums follow the canonical lanes and trees, so a result is the same bits as
// the reference kernel's, whatever the batch.
//
// All pointers are device pointers (device memory, or pinned memory's device address where the text says so). Counts
// that a replay may change are read from device memory; the others are fixed when a graph is captured. Launches are
// asynchronous, allocate nothing and throw Error(kFailed) when the launch itself is refused. Rows are `stride` elements
// apart; packed rows are activation_words(cols) words apart.
#pragma once

#include <cstdint>

#include "kernels/base/bf16.h"
#include "kernels/cuda/arrival.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/victims.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/formats/format.h"

namespace ft::cuda {

struct EmbedArgs {
  const bf16* table = nullptr;  // (rows, width)
  int64_t width = 0;
  const int32_t* ids = nullptr;  // (tokens)
  int64_t tokens = 0;
  float* out = nullptr;  // (tokens, out_stride)
  int64_t out_stride = 0;
  float scale = 1;  // multiplies
  int copies = 1;   // of a row, one after another
};
void embed(const EmbedArgs& args, StreamHandle stream);

// rmsnorm of kernels/ops/rows.h; y and words may each be null: fp32 result, and the same result packed.
struct RmsnormPackArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* w = nullptr;  // (cols)
  float eps = 0;
  int64_t tokens = 0, cols = 0;
  float* y = nullptr;  // may be x
  int64_t y_stride = 0;
  uint32_t* words = nullptr;
};
void rmsnorm_pack(const RmsnormPackArgs& args, StreamHandle stream);

struct PackArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t tokens = 0, cols = 0;
  uint32_t* words = nullptr;
};
void pack_activations(const PackArgs& args, StreamHandle stream);

// Products of one input with up to four matrices of the same cols, one launch for each format among them. With x it is
// first packed into `scratch`, normalised when there is norm_w, by rmsnorm_pack or pack_activations: a launch of its
// own, beside which the weights are already on their way.
struct MatvecInput {                // words, or x
  const uint32_t* words = nullptr;  // (tokens) packed rows of cols
  const float* x = nullptr;         // (tokens) fp32 rows, x_stride apart
  int64_t x_stride = 0;
  const float* norm_w = nullptr;  // (cols), with x: rmsnorm (kernels/ops/rows.h) before packing; null: none
  float norm_eps = 0;
  uint32_t* scratch = nullptr;  // (tokens) packed rows, REQUIRED with x: overwritten
};
struct MatvecOutput {
  PackedMatrix w;               // data on the device
  const float* bias = nullptr;  // (rows) or null: product + bias, one more rounding (as kernels/ops/rows.h add)
  float* y = nullptr;           // (tokens, y_stride); not input.x
  int64_t y_stride = 0;
  bool add = false;  // y = add(y, product [+ bias]), one more rounding
};
inline constexpr int kMaxMatvecOutputs = 4;
struct MatvecArgs {
  MatvecInput input;
  int64_t tokens = 0;
  MatvecOutput outputs[kMaxMatvecOutputs];
  int output_count = 0;
};
void matvec(const MatvecArgs& args, StreamHandle stream);

// Norms, rotates and rounds the query heads in place, norms and rotates the key heads, appends keys and values to the
// cache. Position and sequence of a token are read from device memory.
struct KvView {
  bf16* data = nullptr;   // this layer: [sequence][row][keys then values][kv head][head_dim]
  int64_t positions = 0;  // rows of one sequence
  int64_t ring = 0;       // position t is at row t mod ring, a multiple of kAttentionSplit; 0: at row t
};
struct AttentionPrepareArgs {
  float* q = nullptr;  // (tokens, q_stride): head by head head_dim, or with `gated` twice that: the head's gates follow
  int64_t q_stride = 0;
  const float* k = nullptr;  // (tokens, kv_stride): kv_heads * head_dim
  const float* v = nullptr;
  int64_t kv_stride = 0;
  int64_t tokens = 0;
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  bool gated = false;
  bool v_norm = false;            // values are normed over a head, without a weight
  bool value_is_key = false;      // values are k before its norm; v is not read
  const float* q_norm = nullptr;  // (head_dim) or null
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float* cos = nullptr;  // (positions, rotary_half)
  const float* sin = nullptr;
  int64_t rotary_half = 0;
  const int32_t* sequence = nullptr;  // (tokens)
  const int64_t* position = nullptr;  // (tokens)
  KvView kv;
};
void attention_prepare(const AttentionPrepareArgs& args, StreamHandle stream);

// kernels/ops/attention.h for all tokens and heads; token t sees positions [max(0, position - window + 1), position].
struct AttentionArgs {
  const float* q = nullptr;  // (tokens, q_stride), prepared
  int64_t q_stride = 0;
  int64_t tokens = 0;
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;
  int64_t window = 0;  // 0: all
  const int32_t* sequence = nullptr;
  const int64_t* position = nullptr;
  KvView kv;
  float* out = nullptr;  // (tokens, out_stride)
  int64_t out_stride = 0;
  bool gated = false;            // q as AttentionPrepareArgs has it; out is multiplied by sigmoid(gates)
  const float* sinks = nullptr;  // (heads), or none
};
void attention(const AttentionArgs& args, StreamHandle stream);

// attention_prepare and attention of a decode step, with the context spread over the whole device. One launch for heads
// of 64, 128, 256 or 512 dimensions and a cache on 16-byte boundaries, else the two above; the same bits. How the
// context is spread follows the positions in device memory, so one captured launch serves every context.
// Sequences, positions, norms, rotations, and the cache's rows before each position are read before the kernel before
// this one in the stream has ended: what wrote them must have ended when that one started (step.h begin_step).
// REQUIRES tokens <= kMaxDecodeTokens, all of different sequences. prepare.q may be changed, and is not `out`.
inline constexpr int kMaxDecodeTokens = 64;
struct AttentionDecodeArgs {
  AttentionPrepareArgs prepare;
  float scale = 0;
  int64_t window = 0;    // 0: all
  float* out = nullptr;  // (tokens, out_stride)
  int64_t out_stride = 0;
  std::byte* scratch =
      nullptr;  // attention_decode_scratch_bytes(), zeroed once, 256-byte boundary; one launch at a time
  const float* sinks = nullptr;  // (heads), or none
};
// For up to `tokens` tokens and kv.positions up to `positions`: a launch with fewer may use the same scratch.
int64_t attention_decode_scratch_bytes(int64_t tokens, int heads, int kv_heads, int64_t head_dim, int64_t positions);
void attention_decode(const AttentionDecodeArgs& args, StreamHandle stream);

// kernels/ops/glu.h; y and words may each be null: fp32 result, and the same result packed.
struct GluArgs {
  Glu glu;
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t gate_stride = 0, up_stride = 0;
  int64_t tokens = 0, cols = 0;
  float* y = nullptr;  // may be gate or up
  int64_t y_stride = 0;
  uint32_t* words = nullptr;
};
void glu(const GluArgs& args, StreamHandle stream);

// to = (to + x) * scale, or with norm_w (to + rmsnorm(x)) * scale: rmsnorm and add of kernels/ops/rows.h.
struct AddArgs {
  const float* x = nullptr;  // (tokens, x_stride); not `to`
  int64_t x_stride = 0;
  const float* norm_w = nullptr;  // (cols) or null
  float norm_eps = 0;
  float* to = nullptr;  // (tokens, to_stride)
  int64_t to_stride = 0;
  int64_t tokens = 0, cols = 0;
  const float* scale = nullptr;  // [1], or null: 1
};
void add(const AddArgs& args, StreamHandle stream);

// kernels/ops/rows.h, in place.
struct SoftcapArgs {
  float* x = nullptr;  // (count)
  int64_t count = 0;
  float cap = 0;
};
void softcap(const SoftcapArgs& args, StreamHandle stream);

// Rows `rows[i]` of x to row i of y, i < count: the tokens whose logits are wanted.
struct TakeRowsArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* rows = nullptr;  // (count)
  int64_t count = 0, cols = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};
void take_rows(const TakeRowsArgs& args, StreamHandle stream);

// router_top_k of kernels/ops/rows.h for all tokens. `forced` (device pointer to a flag and ids, or null): when *forced
// is not 0 the ids are replaced by forced_ids (tokens, k), the weights stay the router's; ids that were taken are also
// written to `record` when it is not null (pinned memory: read by the host after the step).
struct RouterArgs {
  const float* logits = nullptr;  // (tokens, logits_stride)
  int64_t logits_stride = 0;
  int64_t tokens = 0;
  int64_t experts = 0;
  int k = 0;
  bool renormalize = false;
  const int32_t* forced = nullptr;
  const int32_t* forced_ids = nullptr;
  int32_t* ids = nullptr;               // (tokens, k)
  float* weights = nullptr;             // (tokens, k)
  int32_t* record = nullptr;            // (tokens, k)
  const float* expert_scale = nullptr;  // (experts) or null
  // router_scores of kernels/ops/compressed.h instead, which leaves renormalize and expert_scale alone.
  bool by_score = false;
  float scale = 1;
  const float* choice_bias = nullptr;  // (experts) or null
  const int32_t* given = nullptr;      // (vocab, k): of each token id, below experts; or null
  const int32_t* token_ids = nullptr;  // (tokens) REQUIRED with `given`
};
void router_top_k(const RouterArgs& args, StreamHandle stream);

// Experts of one layer. An item is one expert's weights and the pairs (token * top_k + slot) that go through it. With
// an arrival its blob is on its way: blocks wait for the part that they read, pairs or not.
struct ExpertItem {
  const std::byte* blob = nullptr;  // layout.bytes of device memory
  int32_t pair_begin = 0;           // into ExpertArgs::pairs
  int32_t pair_count = 0;
  int32_t arrival = -1;  // its slot's place among ExpertArgs::arrivals' counters; -1: its bytes are there
  int32_t reserved = 0;
};
// Of a blob's down bias; 0: none.
inline int64_t down_bias_offset(const ExpertLayout& layout) {
  if (layout.bias_offset == 0) return 0;
  return layout.bias_offset + 2 * layout.intermediate * static_cast<int64_t>(sizeof(float));
}
struct ExpertArgs {
  ExpertLayout layout;
  const ExpertItem* items = nullptr;  // [*item_begin, *item_end)
  const int32_t* item_begin = nullptr;
  const int32_t* item_end = nullptr;
  int max_items = 0;           // fixed bound of the range's size: the grid
  int64_t max_item_pairs = 0;  // fixed bound of a pair_count, the step's tokens; 0: not known, 1: one token's kernel
  const int32_t* pairs = nullptr;  // in order of experts
  int top_k = 0;
  const uint32_t* x = nullptr;    // (tokens) packed rows of hidden: row pair / top_k
  uint32_t* activated = nullptr;  // (pairs) packed rows of intermediate; padding zeroed once by the caller
  float* out = nullptr;           // (pairs, out_stride) rows of hidden
  int64_t out_stride = 0;
  Arrivals arrivals;  // counters REQUIRED when an item may have an arrival
  Fetch fetch;
  VictimSearch search;  // made beside gate_up
};
// Items in order: hits first, so that they are computed while the link works. `fetch` is done in this launch: its
// blocks come before those of all items, so they are resident whoever waits for them.
void expert_gate_up(const ExpertArgs& args, StreamHandle stream);
// REQUIRES that the launch right before it on the stream is expert_gate_up with the same items: it reads them before it
// waits for that launch.
void expert_down(const ExpertArgs& args, StreamHandle stream);

// expert_down, then merge (kernels/ops/rows.h) and to = add(to, merged), or without `add` to = merged. Every pair with
// an id goes through one of the items. `out` of the ExpertArgs is REQUIRED: rows of pairs pass through it where blocks
// do not merge their own.
struct ExpertMerge {
  const int32_t* ids = nullptr;    // (tokens, top_k); ids < 0 only trail
  const float* weights = nullptr;  // (tokens, top_k)
  int64_t tokens = 0;
  float* to = nullptr;  // (tokens, to_stride)
  int64_t to_stride = 0;
  bool add = true;
};
void expert_down_merge(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream);

// The output of an expert that every token uses: merged last, by a weight of 1 or by the sigmoid of `gate`.
struct SharedRows {
  const float* rows = nullptr;  // (tokens, stride); null: there is none
  int64_t stride = 0;
  const float* gate = nullptr;  // (tokens) or null
};

// merge of kernels/ops/rows.h: pairs of a token in slot order, `shared` last; out = merged, or with `add` out =
// add(out, merged). Pair p's row is host_rows' when from_host[p] is not 0 (pinned memory, read past the caches), else
// rows'. ids[p] < 0: no expert; such pairs only trail.
struct MergeArgs {
  const int32_t* ids = nullptr;  // (tokens, top_k)
  const float* weights = nullptr;
  int64_t tokens = 0;
  int top_k = 0;
  const float* rows = nullptr;  // (tokens * top_k, rows_stride)
  int64_t rows_stride = 0;
  const float* host_rows = nullptr;
  int64_t host_stride = 0;
  const uint8_t* from_host = nullptr;  // (tokens * top_k)
  int64_t cols = 0;
  float* out = nullptr;  // (tokens, out_stride)
  int64_t out_stride = 0;
  bool add = false;
  SharedRows shared;
  bool after_join = false;  // another stream was joined just before
};
void merge(const MergeArgs& args, StreamHandle stream);

}  // namespace ft::cuda
