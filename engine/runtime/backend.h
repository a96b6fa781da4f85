// The operations a model family is written in. One implementation per device and numerics: host serve mode, host
// reference mode, later CUDA (where the calls record a graph).
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
enum class Slot : uint8_t { kResidual, kNormed, kQuery, kKey, kValue, kAttention, kGate, kUp, kOut };
inline constexpr int kSlotCount = 9;

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
  virtual void rmsnorm(Slot from, VectorId weight, float eps, Slot to) = 0;
  virtual void linear(Slot from, std::initializer_list<Linear> outputs) = 0;  // several products of one input
  // Norms and rotates kQuery and kKey (by the family's RopeTable, the same one in serve and reference mode), appends
  // key and value to the cache, attends, result in kAttention.
  virtual void attention(const AttentionSpec& spec) = 0;
  virtual void silu_mul(Slot gate, Slot up, Slot to) = 0;
  virtual void add(Slot into, Slot from) = 0;
  virtual void moe(const MoeSpec& spec, Slot from, Slot to) = 0;  // router, experts, merge
  // Final norm and head, only for the tokens whose logits are wanted; rows go to the step's logits buffer.
  virtual void logits(Slot from, VectorId norm, float eps, MatrixId head) = 0;
};

}  // namespace ft
