// qwen3_5_moe (Qwen3.5 and 3.6): most layers are gated delta nets, every few a gated attention with partial rotation;
// all have experts with a shared one beside them. Norms store their weights as offsets from 1, but for the norm inside
// a delta net. Source: Hugging Face transformers 5.17, models/qwen3_5_moe.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/engine_config.h"
#include "engine/model/families/config_shapes.h"
#include "engine/model/families/delta_net.h"
#include "engine/model/families/list.h"
#include "engine/model/families/qwen_blocks.h"

namespace ft {
namespace {

struct Qwen35MoeConfig {
  ModelGeometry geometry;
  std::vector<bool> is_attention;  // per layer; the others are delta nets
  HeadShape heads;
  DeltaNetShape delta;
  int64_t shared_intermediate = 0;
  float norm_eps = 0;
  bool tied = false;
  bool attention_bias = false;
  RopeSettings rope;
};

void read_layers(const ConfigReader& reader, Qwen35MoeConfig& config) {
  ModelGeometry& geometry = config.geometry;
  const std::vector<int> types = read_layer_types(reader, geometry.layers, {"linear_attention", "full_attention"});
  const int64_t interval = reader.integer("full_attention_interval", 1, kMaxLayers, 4);
  int64_t nets = 0;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const bool attends = types.empty() ? (layer + 1) % interval == 0 : types[static_cast<size_t>(layer)] == 1;
    config.is_attention.push_back(attends);
    if (attends) geometry.kv.push_back({config.heads.kv_heads, config.heads.head_dim});
    nets += attends ? 0 : 1;
    geometry.moe_layers.push_back(layer);
  }
  geometry.state_floats = nets * config.delta.layer_floats();
  geometry.widest_heads = std::max(config.heads.query_width(), config.delta.value_width());
}

Qwen35MoeConfig read_config(const Json& json) {
  const ConfigReader reader(json);
  Qwen35MoeConfig config;
  ModelGeometry& geometry = config.geometry;
  geometry.family = "qwen3_5_moe";
  reader.text("hidden_act", {"silu"}, "silu");
  reader.text("output_gate_type", {"swish", "silu"}, "swish");  // of the delta nets
  if (!reader.boolean("attn_output_gate", true)) reader.refuse("attn_output_gate", "true");
  read_model_shape(reader, {.layers = 40, .hidden = 2048, .vocab = 248320, .max_positions = 32768}, geometry);
  config.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  config.tied = reader.boolean("tie_word_embeddings", false);
  config.heads = read_heads(reader, geometry.hidden, {.heads = 16, .kv_heads = 2, .head_dim = 256});
  check_gated_heads(reader, config.heads);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.delta =
      read_delta_net(reader, {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4});
  read_expert_shape(reader, {.intermediate = 512, .experts = 256, .top_k = 8}, geometry);
  config.shared_intermediate = reader.integer("shared_expert_intermediate_size", 1, kMaxDenseIntermediate, 512);
  read_layers(reader, config);
  config.rope = read_partial_rope(json, reader, config.heads.head_dim, geometry.max_positions, 0.25);
  return config;
}

struct Layer {
  VectorId input_norm, mlp_norm;
  int kv_layer = -1;     // of an attention
  int state_layer = -1;  // of a delta net
  GatedAttentionWeights attention;
  DeltaNetWeights delta;
  SharedMoeWeights moe;
  MatrixId next_router;  // the next layer's; index -1 in the last one
};

class Qwen35Moe final : public Family {
 public:
  explicit Qwen35Moe(const Json& json) : config_(read_config(json)) {
    const ModelGeometry& g = config_.geometry;
    table_ = list_.table(text_names("embed_tokens.weight"), g.vocab, g.hidden);
    int attentions = 0, nets = 0;
    for (int layer = 0; layer < g.layers; ++layer) {
      const bool attends = config_.is_attention[static_cast<size_t>(layer)];
      declare_layer(layer);
      (attends ? layers_.back().kv_layer : layers_.back().state_layer) = attends ? attentions++ : nets++;
    }
    for (size_t i = 0; i + 1 < layers_.size(); ++i) layers_[i].next_router = layers_[i + 1].moe.router;
    norm_ = zero_centred(list_, text_names("norm.weight"), g.hidden);
    head_ = list_.matrix(config_.tied ? text_names("embed_tokens") : std::vector<std::string>{"lm_head"}, g.vocab,
                         g.hidden, /*keep_bf16=*/true);
    config_.geometry.slot_floats = slot_floats(*this);
  }

  const ModelGeometry& geometry() const override { return config_.geometry; }
  WeightList declare_weights() const override { return list_; }

  int64_t width(Slot slot) const override {
    const bool attends = !config_.geometry.kv.empty(), recurs = config_.geometry.state_floats > 0;
    const int64_t of_net = recurs ? delta_net_width(config_.delta, slot) : 0;
    switch (slot) {
      case Slot::kResidual:
      case Slot::kBlock:
        return config_.geometry.hidden;
      default:
        return block_slot_width(slot, attends, config_.heads, config_.shared_intermediate, of_net);
    }
  }

  std::vector<RopeTable> make_ropes(int64_t positions) const override {
    return {make_rope_table(config_.rope, positions)};
  }

  void forward(Backend& backend, const ModelWeights&, const StepBatch&) const override {
    backend.embed({table_, Slot::kResidual});
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      if (layer.kv_layer >= 0) {
        apply_gated_attention(backend, layer.attention, config_.heads, layer.kv_layer,
                              {.norm = norm_by(layer.input_norm)}, config_.norm_eps);
      } else {
        apply_delta_net(backend, layer.delta, config_.delta, layer.state_layer, {.norm = norm_by(layer.input_norm)},
                        config_.norm_eps, GateKind::kSilu);
      }
      MoeSpec spec;
      spec.moe_layer = static_cast<int>(i);
      spec.from = spec.to = Slot::kResidual;
      spec.norm = norm_by(layer.mlp_norm);
      spec.router = {.norm = spec.norm, .weight = layer.moe.router, .renormalize = true};
      spec.shared = layer.moe.shared;
      spec.next_router = {.norm = spec.norm, .weight = layer.next_router, .renormalize = true};
      backend.moe(spec);
    }
    backend.logits({Slot::kResidual, norm_by(norm_), head_});
  }

 private:
  Norm norm_by(VectorId weight) const { return {weight, config_.norm_eps}; }

  void declare_layer(int index) {
    const ModelGeometry& g = config_.geometry;
    const std::string prefix = "layers." + std::to_string(index) + ".";
    Layer layer;
    layer.input_norm = zero_centred(list_, text_names(prefix + "input_layernorm.weight"), g.hidden);
    if (config_.is_attention[static_cast<size_t>(index)]) {
      layer.attention =
          declare_gated_attention(list_, prefix + "self_attn.", config_.heads, g.hidden, config_.attention_bias);
    } else {
      layer.delta = declare_delta_net(list_, text_names(prefix + "linear_attn."), config_.delta, g.hidden);
    }
    layer.mlp_norm = zero_centred(list_, text_names(prefix + "post_attention_layernorm.weight"), g.hidden);
    layer.moe = declare_shared_moe(list_, prefix + "mlp.", g.expert, config_.shared_intermediate);
    layers_.push_back(layer);
  }

  Qwen35MoeConfig config_;
  WeightList list_;
  TableId table_;
  std::vector<Layer> layers_;
  VectorId norm_;
  MatrixId head_;
};

}  // namespace

std::unique_ptr<Family> make_qwen3_5_moe(const Json& config) { return std::make_unique<Qwen35Moe>(config); }

}  // namespace ft
