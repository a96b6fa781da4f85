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

namespace ft {

// Activation buffers, (tokens, width of the slot). The family says how wide each is: Family::width.
enum class Slot : uint8_t { kResidual, kQuery, kKey, kValue, kAttention, kGate, kUp };
inline constexpr int kSlotCount = 7;

// rmsnorm of kernels/ops/rows.h over rows of the residual stream's width.
struct Norm {
  VectorId weight;  // index -1: none
  float eps = 0;
};

struct AttentionSpec {
  int kv_layer = 0;  // index among layers that have a KV cache
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;
  int64_t window = 0;       // visible positions back from the query, itself included; 0: all
  VectorId q_norm, k_norm;  // index -1: none
  float norm_eps = 0;
};

struct MoeSpec {
  int moe_layer = 0;
  Norm norm;        // of the residual stream, before router and experts
  MatrixId router;  // (experts, hidden)
  bool renormalize = false;
  MatrixId next_router;  // of the next MoE layer, for look-ahead; index -1: this is the last one
};

struct Linear {
  MatrixId weight;
  VectorId bias;
  Slot to;
};  // bias.index -1: none

class Backend {
 public:
  virtual ~Backend() = default;
  virtual void embed(TableId table, Slot to) = 0;  // current step's ids
  // Several products of one input, which is normed first if `norm` has a weight.
  virtual void linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) = 0;
  // output.to = output.to + (product [+ bias]); output.to is as wide as the residual stream.
  virtual void linear_add(Slot from, const Linear& output) = 0;
  // Norms and rotates kQuery and kKey (by the family's RopeTable, the same one in serve and reference mode), appends
  // key and value to the cache, attends, result in kAttention.
  virtual void attention(const AttentionSpec& spec) = 0;
  virtual void silu_mul(Slot gate, Slot up, Slot to) = 0;
  virtual void moe(const MoeSpec& spec, Slot residual) = 0;  // residual = residual + experts of the normed residual
  // Final norm and head, only for the tokens whose logits are wanted; rows go to the step's logits buffer.
  virtual void logits(Slot from, const Norm& norm, MatrixId head) = 0;
};

}  // namespace ft
