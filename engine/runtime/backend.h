// The operations a model family is written in. One implementation per device and numerics: host serve mode, host
// reference mode, CUDA (where the calls of a decode step record a graph).
//
// The operations are as large as what a device does in one launch: a norm belongs to the products that read it, the
// addition to the residual stream to the product that ends there.
//
// Activations are fp32 rows in buffers that the backend owns, named by Slot; a family moves no memory itself. Every
// operation works on all tokens of the current step. In serve mode products round their input to bf16; the residual
// stream stays fp32. In reference mode nothing is rounded.
// Thread rule: one thread calls; the implementation may use its pool. No allocation in any call.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "engine/model/weights.h"
#include "engine/runtime/step.h"
#include "kernels/ops/delta_net.h"
#include "kernels/ops/glu.h"
#include "kernels/ops/rows.h"

namespace ft {

class NgramHash;

// Activation buffers, (tokens, width of the slot). The family says how wide each is: Family::width. An operation works
// on as many columns as its weights have, or as it says; rows of a slot are as far apart as the slot is wide.
enum class Slot : uint8_t {
  kResidual,
  kQuery,
  kKey,
  kValue,
  kAttention,
  kGate,
  kUp,
  kBlock,       // a block's output where something is done to it before it joins the residual stream
  kRouted,      // the routed experts' output, likewise
  kDeltaMixed,  // of a gated delta net: queries, keys and values before the convolution
  kDeltaGate,
  kDeltaWrite,
  kDeltaDecay,
  kBlockInput,     // what a block reads where that is not the residual stream
  kStreamLogits,   // of mixed residual streams: products of a site, then the sum of squares
  kStreamFactors,  // read, write and mix of the site at work; of gated streams what it writes with
  kStreamNormed,   // of gated streams: each normed by itself
  kStreamGate,
  kStreamLow,   // their low-rank bottleneck
  kNgram,       // rows of an n-gram table, side by side
  kNgramKey,    // of n-grams, for every stream
  kNgramValue,  // for all of them
  kLowQuery,    // of compressed attention: queries before they are expanded
  kLowOutput,   // outputs of the heads' groups
  kEntryValue,  // what entries are made of
  kEntryLogit,
  kIndexQuery,  // of its indexer
  kIndexWeight,
  kIndexValue,
  kIndexLogit,
};
inline constexpr int kSlotCount = 30;

// rmsnorm of kernels/ops/rows.h. Families whose checkpoints hold offsets from 1 load their weights with 1 added.
struct Norm {
  VectorId weight;  // index -1: none
  float eps = 0;
};

struct EmbedSpec {
  TableId table;
  Slot to{};
  float scale = 1;  // rounded to bf16 in serve mode, where transformers' bf16 runs do so
  int copies = 1;   // of the row, one after another
};

// to = (to + norm(from)) * scale
struct AddSpec {
  Slot from{};
  Norm norm;
  Slot to{};
  VectorId scale;  // one value; index -1: 1
};

struct GluSpec {
  Glu glu;
  Slot gate{}, up{}, to{};
  int64_t width = 0;
};

// Which blocks of tokens a query attends to: those whose index entries fit best, and the tokens after the last whole
// block. Reads kIndexQuery: index_heads queries and then the token's index row, whose mean over a block's tokens,
// normed and rotated at the first one's position, is the block's entry. With no more than index_top_k whole blocks all
// tokens are attended to. ModelGeometry::compressed has the shape.
struct BlockIndexSpec {
  int layer = -1;                   // index among layers with compressed attention; -1: there is none
  VectorId query_norm, entry_norm;  // (index_dim)
};

// Grouped-query attention over the sequence's cached keys and values.
struct AttentionSpec {
  int kv_layer = 0;  // index among layers that have a KV cache
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  // kQuery holds, head by head, head_dim query values and then head_dim gate values; the sigmoid of these multiplies
  // the head's output.
  bool gated = false;
  float scale = 0;
  int64_t window = 0;         // visible positions back from the query, itself included; 0: all
  VectorId q_norm, k_norm;    // over a head; index -1: none
  bool v_norm = false;        // values are normed over a head, without a weight
  bool value_is_key = false;  // values are kKey before its norm and rotation; kValue is not read
  float norm_eps = 0;
  int rope = 0;    // which of the family's rotation tables
  VectorId sinks;  // (heads) a logit a head in the softmax's denominator; index -1: none
  BlockIndexSpec index;
};

// Gated delta net (linear attention with a state per sequence). Reads kDeltaMixed (all query heads, all key heads, all
// value heads), kDeltaGate (value heads), kDeltaWrite and kDeltaDecay (a value per value head); result in kAttention.
// kernels/ops/delta_net.h has the arithmetic.
struct DeltaNetSpec {
  int state_layer = 0;  // index among layers that have a recurrent state: all of one shape
  DeltaNetShape shape;
  VectorId conv;        // (taps, channels)
  VectorId decay_log;   // (value_heads): A_log
  VectorId decay_bias;  // (value_heads): dt_bias
  Norm norm;            // over a value head, before the gate
  GateKind gate = GateKind::kSilu;
};

enum class StreamsKind : uint8_t {
  kMixed,  // one weight a stream; writing mixes the old streams
  kGated,  // streams are normed; a gate for each value of each, by a low-rank product; writing leaves the old ones
};

// A site of residual streams (kernels/ops/streams.h): kResidual holds all streams of a token. Of gated ones, with n the
// streams, each normed by itself, side by side: gate = sigmoid(up . silu(down . n / streams)), read is the mean over
// streams of gate * n, and stream s is written to by 2 * sigmoid((write . n)[s] / streams).
struct StreamsSpec {
  StreamsKind kind = StreamsKind::kMixed;
  int streams = 0;
  bool writes = true;  // a site without a block behind it only reads
  float norm_eps = 0;
  // kMixed
  int rounds = 0;
  float eps = 0;
  VectorId fn;     // (stream_logit_count(streams), streams * hidden); of a site that only reads (streams, ...)
  VectorId scale;  // (3) or (1)
  VectorId base;   // (stream_logit_count(streams)) or (streams)
  // kGated
  VectorId norm;      // (streams * hidden)
  MatrixId down, up;  // (rank, streams * hidden), (streams * hidden, rank)
  MatrixId write;     // (streams, streams * hidden); not of a site that only reads
};

// What a table holds for the n-grams that end at each token, heads side by side, to kNgram. The last tokens are
// remembered in the recurrent state from state_begin on: ngram_state_floats.
struct NgramEmbedSpec {
  RowTableId table;
  const NgramHash* hash = nullptr;
  int64_t state_begin = 0;
};
constexpr int64_t ngram_state_floats(int64_t ngram_size) { return (ngram_size - 1 + 15) / 16 * 16; }

// What n-grams add to the streams. Reads kNgramKey (streams * hidden) and kNgramValue (hidden); norms are over each
// stream by itself. gate[s] = stream_gates(normed key[s] . normed stream[s]); u = gate * value for each stream; the
// streams get u + the causal convolution of normed u over time. The recurrent state has its history from state_begin
// on: history_floats.
struct NgramAddSpec {
  int streams = 0;
  VectorId key_norm, query_norm, conv_norm;  // (streams * hidden)
  float norm_eps = 0;
  VectorId conv;  // (taps, streams * hidden)
  int64_t taps = 0, dilation = 0;
  int64_t state_begin = 0;

  static constexpr int64_t history_floats(int64_t taps, int64_t dilation, int64_t channels) {
    return ((taps - 1) * dilation * channels + 15) / 16 * 16;
  }
};

// Attention to a window and to compressed entries (kernels/ops/compressed.h), one key that is the value too. Reads
// kQuery (heads), kKey (the row that is cached, normed), and, for a layer with entries, kEntryValue and kEntryLogit,
// with an indexer kIndexQuery, kIndexWeight, kIndexValue and kIndexLogit; result in kAttention, turned back by the
// query's position. Entries count from the token on that closes their window. ModelGeometry::compressed has the shape.
struct CompressedAttentionSpec {
  int layer = 0;  // index among layers with compressed attention
  int heads = 0;
  float scale = 0;
  float norm_eps = 0;
  int rope = 0;         // which of the family's rotation tables: of queries, keys, entries and index alike
  VectorId sinks;       // (heads)
  VectorId entry_bias;  // (ratio, halves * head_dim): by position in the window
  VectorId entry_norm;  // (head_dim)
  VectorId index_bias;  // (ratio, halves * index_dim)
  VectorId index_norm;  // (index_dim)
};

enum class RouterKind : uint8_t {
  kSoftmax,       // scores are the softmax over all experts
  kSqrtSoftplus,  // router_scores of kernels/ops/compressed.h
};

// Chosen are the k largest scores, ties to the lower index.
struct RouterSpec {
  Norm norm = {};        // of the rows that the layer reads, before the router
  MatrixId weight = {};  // (experts, hidden); index -1: no router
  VectorId bias = {};    // (experts) added to the logits; index -1: none
  bool renormalize = false;
  RouterKind kind = RouterKind::kSoftmax;
  // Of kSqrtSoftplus, which always renormalizes and leaves bias and expert_scale alone:
  VectorId choice_bias = {};   // (experts) added to the scores for the choice only; index -1: none
  IndexTableId by_token = {};  // (vocab, top_k) the experts of a token id, instead of a choice; index -1: none
  float scale = 1;             // multiplies the weights
  VectorId expert_scale = {};  // (experts) multiplies a chosen expert's weight, after renormalization; index -1: none
};

// An expert that every token uses, added after the routed ones. Between its products it stands in kGate and kUp, its
// output in kBlock.
struct SharedExpert {
  MatrixId gate, up, down;  // index -1: there is none
  MatrixId token_gate;      // (1, hidden): its sigmoid multiplies the output; index -1: 1
};

struct MoeSpec {
  int moe_layer = 0;
  Slot from{};
  Norm norm;  // of `from`, before routed and shared experts
  RouterSpec router;
  SharedExpert shared;
  RouterSpec next_router;  // of the next MoE layer, for look-ahead; weight -1: this is the last one
  Slot to{};
  bool add = true;  // to = to + result; otherwise to = result
};

struct Linear {
  MatrixId weight;
  VectorId bias;
  Slot to{};
};  // bias.index -1: none

struct LogitsSpec {
  Slot from{};
  Norm norm = {};  // weight -1: none
  MatrixId head;
  float softcap = 0;  // c: logits become c * tanh(logits / c); 0: none
};

// What only some families need has a default that is a bug to call: a device that lacks an operation does not list the
// family (FamilyDesc::on_cuda), and its model is refused at start.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void embed(const EmbedSpec& spec) = 0;  // current step's ids
  // Several products of one input, which is normed first if `norm` has a weight.
  virtual void linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) = 0;
  // output.to = output.to + (product [+ bias]); output.to is as wide as the residual stream.
  virtual void linear_add(Slot from, const Linear& output) = 0;
  // Norms and rotates kQuery and kKey (by the family's RopeTable, the same one in serve and reference mode), appends
  // key and value to the cache, attends, result in kAttention.
  virtual void attention(const AttentionSpec& spec) = 0;
  virtual void glu(const GluSpec& spec) = 0;
  virtual void moe(const MoeSpec& spec) = 0;
  // Final norm and head, only for the tokens whose logits are wanted; rows go to the step's logits buffer.
  virtual void logits(const LogitsSpec& spec) = 0;

  virtual void norm(Slot from, const Norm& norm, Slot to);  // rows as wide as the norm's weight
  virtual void add(const AddSpec& spec);                    // likewise
  virtual void delta_net(const DeltaNetSpec& spec);
  // `to` = the weighted sum of the streams; what writes also leaves its factors in kStreamFactors. Gated streams also
  // use kStreamNormed, kStreamLow and kStreamGate.
  virtual void streams_read(const StreamsSpec& spec, Slot to);
  // Every stream = its write factor times `from` + the mix of the old streams, or the old one.
  virtual void streams_write(const StreamsSpec& spec, Slot from);
  virtual void embed_ngrams(const NgramEmbedSpec& spec);
  virtual void add_ngrams(const NgramAddSpec& spec);  // leaves nothing in kNgramKey, kStreamNormed, kStreamFactors
  virtual void compressed_attention(const CompressedAttentionSpec& spec);
  // The matrix's rows in `groups` equal parts, `from`'s columns likewise: part g of `to` is part g of the matrix times
  // part g of `from`. REQUIRES a multiple of kRowsPerTile rows a group.
  virtual void grouped_linear(Slot from, MatrixId weight, int groups, Slot to);
};

}  // namespace ft
