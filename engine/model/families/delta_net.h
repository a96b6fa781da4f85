// A gated delta net as families with one have it: its configuration, its weights, and its part of the forward pass.
#pragma once

#include <string>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/families/block_site.h"
#include "engine/model/weights.h"
#include "engine/runtime/backend.h"

namespace ft {

// linear_conv_kernel_dim, linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim;
// `absent` is what transformers assumes without them. Throws Error naming the key, its value and what is allowed.
DeltaNetShape read_delta_net(const ConfigReader& reader, const DeltaNetShape& absent);

struct DeltaNetWeights {
  MatrixId mixed, gate, write, decay, out;
  VectorId conv, decay_log, decay_bias, norm;
};
// Four flat projections: prefix + "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a". Prefixes are tried in order.
DeltaNetWeights declare_delta_net(WeightList& list, const std::vector<std::string>& prefixes,
                                  const DeltaNetShape& shape, int64_t hidden);

// Floats of a token in a delta net's slots; 0 for other slots. kAttention holds value_width.
int64_t delta_net_width(const DeltaNetShape& shape, Slot slot);

// norm_eps is of the heads' own norm.
void apply_delta_net(Backend& backend, const DeltaNetWeights& weights, const DeltaNetShape& shape, int state_layer,
                     const BlockSite& site, float norm_eps, GateKind gate);

}  // namespace ft
