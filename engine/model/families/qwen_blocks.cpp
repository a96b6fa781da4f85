#include "engine/model/families/qwen_blocks.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ft {

std::vector<std::string> text_names(const std::string& name) {
  return {"model.language_model." + name, "model." + name};
}

VectorId zero_centred(WeightList& list, std::vector<std::string> names, int64_t size) {
  return list.vector(std::move(names), size, {.add = 1});
}

RopeSettings read_partial_rope(const Json& json, const ConfigReader& reader, int64_t head_dim, int64_t max_positions,
                               double absent) {
  constexpr const char* kKey = "partial_rotary_factor";
  std::vector<ConfigReader> holders;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (const Json* given = reader.object(key)) holders.emplace_back(*given, std::string(key) + ".");
  }
  holders.push_back(reader);
  const auto found = std::find_if(holders.begin(), holders.end(), [&](const auto& r) { return r.has(kKey); });
  const ConfigReader& holder = found == holders.end() ? reader : *found;
  const double factor = holder.number(kKey, 0, 1, absent);
  const auto rotary = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (rotary < 2 || rotary % 2 != 0) {
    holder.refuse(kKey, "what makes an even number of at least 2 of head_dim, " + std::to_string(head_dim) + ", not " +
                            std::to_string(rotary));
  }
  return read_rope_settings(json, rotary, max_positions);
}

void check_gated_heads(const ConfigReader& reader, const HeadShape& heads) {
  if (2 * heads.query_width() <= kMaxMatrixRows) return;
  reader.refuse("num_attention_heads",
                "heads whose queries and gates have at most " + std::to_string(kMaxMatrixRows) + " rows together");
}

GatedAttentionWeights declare_gated_attention(WeightList& list, const std::string& prefix, const HeadShape& heads,
                                              int64_t hidden, bool biased) {
  GatedAttentionWeights weights;
  weights.query = list.matrix(text_names(prefix + "q_proj"), 2 * heads.query_width(), hidden);
  weights.key = list.matrix(text_names(prefix + "k_proj"), heads.kv_width(), hidden);
  weights.value = list.matrix(text_names(prefix + "v_proj"), heads.kv_width(), hidden);
  weights.out = list.matrix(text_names(prefix + "o_proj"), hidden, heads.query_width());
  weights.query_norm = zero_centred(list, text_names(prefix + "q_norm.weight"), heads.head_dim);
  weights.key_norm = zero_centred(list, text_names(prefix + "k_norm.weight"), heads.head_dim);
  if (biased) {
    const VectorForm bias{.synthetic = 0};
    weights.query_bias = list.vector(text_names(prefix + "q_proj.bias"), 2 * heads.query_width(), bias);
    weights.key_bias = list.vector(text_names(prefix + "k_proj.bias"), heads.kv_width(), bias);
    weights.value_bias = list.vector(text_names(prefix + "v_proj.bias"), heads.kv_width(), bias);
    weights.out_bias = list.vector(text_names(prefix + "o_proj.bias"), hidden, bias);
  }
  return weights;
}

void apply_gated_attention(Backend& backend, const GatedAttentionWeights& weights, const HeadShape& heads, int kv_layer,
                           const BlockSite& site, float norm_eps, const BlockIndexSpec& index) {
  const Linear query{weights.query, weights.query_bias, Slot::kQuery}, key{weights.key, weights.key_bias, Slot::kKey};
  const Linear value{weights.value, weights.value_bias, Slot::kValue};
  if (index.layer >= 0) {
    backend.linear(site.from, site.norm, {query, key, value, {weights.index, {}, Slot::kIndexQuery}});
  } else {
    backend.linear(site.from, site.norm, {query, key, value});
  }
  AttentionSpec spec;
  spec.kv_layer = kv_layer;
  spec.heads = heads.heads;
  spec.kv_heads = static_cast<int>(heads.kv_heads);
  spec.head_dim = heads.head_dim;
  spec.gated = true;
  spec.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  spec.q_norm = weights.query_norm;
  spec.k_norm = weights.key_norm;
  spec.norm_eps = norm_eps;
  spec.index = index;
  backend.attention(spec);
  end_block(backend, site, weights.out, weights.out_bias);
}

int64_t block_slot_width(Slot slot, bool attends, const HeadShape& heads, int64_t shared_intermediate, int64_t of_net) {
  switch (slot) {
    case Slot::kQuery:
      return attends ? 2 * heads.query_width() : 0;
    case Slot::kKey:
    case Slot::kValue:
      return attends ? heads.kv_width() : 0;
    case Slot::kAttention:
      return std::max(attends ? heads.query_width() : 0, of_net);
    case Slot::kGate:
    case Slot::kUp:
      return shared_intermediate;
    default:
      return of_net;
  }
}

SharedMoeWeights declare_shared_moe(WeightList& list, const std::string& prefix, const ExpertGeometry& experts,
                                    int64_t shared_intermediate) {
  SharedMoeWeights weights;
  const std::string shared = prefix + "shared_expert.";
  weights.router = list.matrix(text_names(prefix + "gate"), experts.experts, experts.hidden, /*keep_bf16=*/true);
  weights.shared.gate = list.matrix(text_names(shared + "gate_proj"), shared_intermediate, experts.hidden);
  weights.shared.up = list.matrix(text_names(shared + "up_proj"), shared_intermediate, experts.hidden);
  weights.shared.down = list.matrix(text_names(shared + "down_proj"), experts.hidden, shared_intermediate);
  weights.shared.token_gate =
      list.matrix(text_names(prefix + "shared_expert_gate"), 1, experts.hidden, /*keep_bf16=*/true);
  list.expert_layer({text_names(prefix + "experts.")});
  return weights;
}

}  // namespace ft
