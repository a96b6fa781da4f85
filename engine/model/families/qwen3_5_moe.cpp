// qwen3_5_moe (Qwen3.5 and 3.6): most layers are gated delta nets, every few a gated attention with partial rotation;
// all have experts with a shared one beside them. Norms store their weights as offsets from 1, but for the norm inside
// a delta net. Source: Hugging Face transformers 5.17, models/qwen3_5_moe.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine_config.h"
#include "engine/model/families/config_shapes.h"
#include "engine/model/families/delta_net.h"
#include "engine/model/families/list.h"

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

// The first partial_rotary_factor * head_dim dimensions of a head rotate. Text has one row of positions, which makes
// the multimodal sections of the rotation the ordinary one.
RopeSettings read_rope(const Json& json, const ConfigReader& reader, const Qwen35MoeConfig& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  std::vector<ConfigReader> holders;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (const Json* given = reader.object(key)) holders.emplace_back(*given, std::string(key) + ".");
  }
  holders.push_back(reader);
  const auto found = std::find_if(holders.begin(), holders.end(), [&](const auto& r) { return r.has(kKey); });
  const ConfigReader& holder = found == holders.end() ? reader : *found;
  const double factor = holder.number(kKey, 0, 1, 0.25);
  const auto rotary = static_cast<int64_t>(static_cast<double>(config.heads.head_dim) * factor);
  if (rotary < 2 || rotary % 2 != 0) {
    holder.refuse(kKey, "what makes an even number of at least 2 of head_dim, " +
                            std::to_string(config.heads.head_dim) + ", not " + std::to_string(rotary));
  }
  return read_rope_settings(json, rotary, config.geometry.max_positions);
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
  if (2 * config.heads.query_width() > kMaxMatrixRows) {
    reader.refuse("num_attention_heads",
                  "heads whose queries and gates have at most " + std::to_string(kMaxMatrixRows) + " rows together");
  }
  config.attention_bias = reader.boolean("attention_bias", false);
  config.delta =
      read_delta_net(reader, {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4});
  read_expert_shape(reader, {.intermediate = 512, .experts = 256, .top_k = 8}, geometry);
  config.shared_intermediate = reader.integer("shared_expert_intermediate_size", 1, kMaxDenseIntermediate, 512);
  read_layers(reader, config);
  config.rope = read_rope(json, reader, config);
  return config;
}

struct AttentionWeights {
  MatrixId query, key, value, out;
  VectorId query_bias, key_bias, value_bias, out_bias;
  VectorId query_norm, key_norm;
};

struct Layer {
  VectorId input_norm, mlp_norm;
  int kv_layer = -1;     // of an attention
  int state_layer = -1;  // of a delta net
  AttentionWeights attention;
  DeltaNetWeights delta;
  MatrixId router, next_router;  // the next layer's; index -1 in the last one
  SharedExpert shared;
};

// Checkpoints with a vision part hold the text part one level deeper.
std::vector<std::string> names_of(const std::string& name) { return {"model.language_model." + name, "model." + name}; }

class Qwen35Moe final : public Family {
 public:
  explicit Qwen35Moe(const Json& json) : config_(read_config(json)) {
    const ModelGeometry& g = config_.geometry;
    table_ = list_.table(names_of("embed_tokens.weight"), g.vocab, g.hidden);
    int attentions = 0, nets = 0;
    for (int layer = 0; layer < g.layers; ++layer) {
      const bool attends = config_.is_attention[static_cast<size_t>(layer)];
      declare_layer(layer);
      (attends ? layers_.back().kv_layer : layers_.back().state_layer) = attends ? attentions++ : nets++;
    }
    for (size_t i = 0; i + 1 < layers_.size(); ++i) layers_[i].next_router = layers_[i + 1].router;
    norm_ = zero_centred(names_of("norm.weight"), g.hidden);
    head_ = list_.matrix(config_.tied ? names_of("embed_tokens") : std::vector<std::string>{"lm_head"}, g.vocab,
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
      case Slot::kQuery:
        return attends ? 2 * config_.heads.query_width() : 0;
      case Slot::kKey:
      case Slot::kValue:
        return attends ? config_.heads.kv_width() : 0;
      case Slot::kAttention:
        return std::max(attends ? config_.heads.query_width() : 0, of_net);
      case Slot::kGate:
      case Slot::kUp:
        return config_.shared_intermediate;
      default:
        return of_net;
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
        attend(backend, layer);
      } else {
        apply_delta_net(backend, layer.delta, config_.delta, layer.state_layer, norm_by(layer.input_norm),
                        config_.norm_eps, GateKind::kSilu);
      }
      MoeSpec spec;
      spec.moe_layer = static_cast<int>(i);
      spec.from = spec.to = Slot::kResidual;
      spec.norm = norm_by(layer.mlp_norm);
      spec.router = {.norm = spec.norm, .weight = layer.router, .renormalize = true};
      spec.shared = layer.shared;
      spec.next_router = {.norm = spec.norm, .weight = layer.next_router, .renormalize = true};
      backend.moe(spec);
    }
    backend.logits({Slot::kResidual, norm_by(norm_), head_});
  }

 private:
  VectorId zero_centred(std::vector<std::string> names, int64_t size) {
    return list_.vector(std::move(names), size, {.add = 1});
  }
  Norm norm_by(VectorId weight) const { return {weight, config_.norm_eps}; }

  void declare_layer(int index) {
    const ModelGeometry& g = config_.geometry;
    const std::string prefix = "layers." + std::to_string(index) + ".";
    Layer layer;
    layer.input_norm = zero_centred(names_of(prefix + "input_layernorm.weight"), g.hidden);
    if (config_.is_attention[static_cast<size_t>(index)]) {
      layer.attention = declare_attention(prefix + "self_attn.");
    } else {
      layer.delta = declare_delta_net(list_, names_of(prefix + "linear_attn."), config_.delta, g.hidden);
    }
    layer.mlp_norm = zero_centred(names_of(prefix + "post_attention_layernorm.weight"), g.hidden);
    const std::string mlp = prefix + "mlp.", shared = mlp + "shared_expert.";
    layer.router = list_.matrix(names_of(mlp + "gate"), g.expert.experts, g.hidden, /*keep_bf16=*/true);
    const int64_t width = config_.shared_intermediate;
    layer.shared.gate = list_.matrix(names_of(shared + "gate_proj"), width, g.hidden);
    layer.shared.up = list_.matrix(names_of(shared + "up_proj"), width, g.hidden);
    layer.shared.down = list_.matrix(names_of(shared + "down_proj"), g.hidden, width);
    layer.shared.token_gate = list_.matrix(names_of(mlp + "shared_expert_gate"), 1, g.hidden, /*keep_bf16=*/true);
    list_.expert_layer({names_of(mlp + "experts.")});
    layers_.push_back(layer);
  }

  AttentionWeights declare_attention(const std::string& prefix) {
    const HeadShape& heads = config_.heads;
    const int64_t hidden = config_.geometry.hidden;
    AttentionWeights weights;
    weights.query = list_.matrix(names_of(prefix + "q_proj"), 2 * heads.query_width(), hidden);
    weights.key = list_.matrix(names_of(prefix + "k_proj"), heads.kv_width(), hidden);
    weights.value = list_.matrix(names_of(prefix + "v_proj"), heads.kv_width(), hidden);
    weights.out = list_.matrix(names_of(prefix + "o_proj"), hidden, heads.query_width());
    weights.query_norm = zero_centred(names_of(prefix + "q_norm.weight"), heads.head_dim);
    weights.key_norm = zero_centred(names_of(prefix + "k_norm.weight"), heads.head_dim);
    if (config_.attention_bias) {
      const VectorForm bias{.synthetic = 0};
      weights.query_bias = list_.vector(names_of(prefix + "q_proj.bias"), 2 * heads.query_width(), bias);
      weights.key_bias = list_.vector(names_of(prefix + "k_proj.bias"), heads.kv_width(), bias);
      weights.value_bias = list_.vector(names_of(prefix + "v_proj.bias"), heads.kv_width(), bias);
      weights.out_bias = list_.vector(names_of(prefix + "o_proj.bias"), hidden, bias);
    }
    return weights;
  }

  void attend(Backend& backend, const Layer& layer) const {
    const AttentionWeights& w = layer.attention;
    backend.linear(Slot::kResidual, norm_by(layer.input_norm),
                   {{w.query, w.query_bias, Slot::kQuery},
                    {w.key, w.key_bias, Slot::kKey},
                    {w.value, w.value_bias, Slot::kValue}});
    AttentionSpec spec;
    spec.kv_layer = layer.kv_layer;
    spec.heads = config_.heads.heads;
    spec.kv_heads = static_cast<int>(config_.heads.kv_heads);
    spec.head_dim = config_.heads.head_dim;
    spec.gated = true;
    spec.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
    spec.q_norm = w.query_norm;
    spec.k_norm = w.key_norm;
    spec.norm_eps = config_.norm_eps;
    backend.attention(spec);
    backend.linear_add(Slot::kAttention, {w.out, w.out_bias, Slot::kResidual});
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
