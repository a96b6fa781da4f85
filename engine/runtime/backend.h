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
};
inline constexpr int kSlotCount = 13;

// rmsnorm of kernels/ops/rows.h. Families whose checkpoints hold offsets from 1 load their weights with 1 added.
struct Norm {
  VectorId weight;  // index -1: none
  float eps = 0;
};

struct EmbedSpec {
  TableId table;
  Slot to{};
  float scale = 1;  // rounded to bf16 in serve mode, where transformers' bf16 runs do so
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

// Scores are the softmax over all experts. Chosen are the k largest, ties to the lower index.
struct RouterSpec {
  Norm norm = {};        // of the rows that the layer reads, before the router
  MatrixId weight = {};  // (experts, hidden); index -1: no router
  VectorId bias = {};    // (experts) added to the logits; index -1: none
  bool renormalize = false;
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
  Norm norm;
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
};

}  // namespace ft
