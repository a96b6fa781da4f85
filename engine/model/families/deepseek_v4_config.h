// config.json of deepseek_v4, in transformers' keys (layer_types, mlp_layer_types, rope_parameters with main and
// compress) or in those of the published files (compress_ratios, num_hash_layers, flat rope_scaling).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/families/config_shapes.h"
#include "engine/model/rope.h"
#include "kernels/base/json.h"

namespace ft {

enum class DeepseekAttention : uint8_t {
  kSliding,  // the window alone
  kSparse,   // and the best of many entries, which overlap
  kHeavy,    // and all of few entries
};

struct DeepseekV4Config {
  ModelGeometry geometry;  // all but slot_floats
  HeadShape heads;
  std::vector<DeepseekAttention> attention;  // per layer
  std::vector<bool> hashed;                  // per layer: experts by token id
  int64_t q_rank = 0, o_rank = 0;
  int o_groups = 0;
  int streams = 0, sinkhorn_rounds = 0;
  float stream_eps = 0, norm_eps = 0;
  float routed_scale = 1;
  bool tied = false;
  RopeSettings main_rope, compress_rope;  // of sliding layers; of the others, for all that they rotate

  const CompressedLayer& layer(int index) const { return geometry.compressed[static_cast<size_t>(index)]; }
  int64_t o_width() const { return o_groups * o_rank; }
};

// Throws Error naming the key.
DeepseekV4Config read_deepseek_v4_config(const Json& json);

}  // namespace ft
