// What the layers of Qwen3.5 and later have in common beside delta nets: gated attention, and experts with a shared
// one. Norms store their weights as offsets from 1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/families/block_site.h"
#include "engine/model/families/config_shapes.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "engine/runtime/backend.h"

namespace ft {

// Checkpoints with a vision part hold the text part one level deeper.
std::vector<std::string> text_names(const std::string& name);

VectorId zero_centred(WeightList& list, std::vector<std::string> names, int64_t size);

// The first partial_rotary_factor * head_dim dimensions of a head rotate; `absent` is the factor without that key. Text
// has one row of positions, which makes the multimodal sections of the rotation the ordinary one. Throws Error naming
// the key.
RopeSettings read_partial_rope(const Json& json, const ConfigReader& reader, int64_t head_dim, int64_t max_positions,
                               double absent);

struct GatedAttentionWeights {
  MatrixId query, key, value, out;
  VectorId query_bias, key_bias, value_bias, out_bias;  // index -1: none
  VectorId query_norm, key_norm;
  MatrixId index;  // queries and key of an indexer, to kIndexQuery; index -1: none
};
// Refuses num_attention_heads whose queries and gates are too many rows.
void check_gated_heads(const ConfigReader& reader, const HeadShape& heads);
// `prefix` is of text_names: "layers.3.self_attn.". All but `index`.
GatedAttentionWeights declare_gated_attention(WeightList& list, const std::string& prefix, const HeadShape& heads,
                                              int64_t hidden, bool biased);
void apply_gated_attention(Backend& backend, const GatedAttentionWeights& weights, const HeadShape& heads, int kv_layer,
                           const BlockSite& site, float norm_eps, const BlockIndexSpec& index = {});

// Width of a slot of these layers' blocks: attention with gates (attends: the model has such layers), a shared expert,
// and delta nets, which take of_net of the slot.
int64_t block_slot_width(Slot slot, bool attends, const HeadShape& heads, int64_t shared_intermediate, int64_t of_net);

struct SharedMoeWeights {
  MatrixId router;
  SharedExpert shared;
};
// `prefix` is of text_names: "layers.3.mlp.". Adds the layer's experts to the list.
SharedMoeWeights declare_shared_moe(WeightList& list, const std::string& prefix, const ExpertGeometry& experts,
                                    int64_t shared_intermediate);

}  // namespace ft
