// qwen3_moe: grouped-query attention with per-head q/k norm and half-split rotation, softmax router, gated experts;
// some layers may have a dense gated MLP instead. Source: Hugging Face transformers 5.17, models/qwen3_moe.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine_config.h"
#include "engine/model/families/config_shapes.h"
#include "engine/model/families/list.h"
#include "engine/runtime/backend.h"
#include "kernels/base/error.h"
#include "kernels/ops/attention.h"

namespace ft {
namespace {

struct Qwen3MoeConfig {
  ModelGeometry geometry;
  std::vector<bool> is_moe;  // per layer
  HeadShape heads;
  int64_t dense_intermediate = 0;
  float norm_eps = 0;
  bool renormalize = false;
  bool tied = false;
  bool attention_bias = false;
  int64_t window = 0;  // 0: none
  RopeSettings rope;
};

void read_experts(const ConfigReader& reader, Qwen3MoeConfig& config) {
  read_expert_shape(reader, {.intermediate = 768, .experts = 128, .top_k = 8}, config.geometry);
  config.renormalize = reader.boolean("norm_topk_prob", false);
  config.dense_intermediate = reader.integer("intermediate_size", 1, kMaxDenseIntermediate, 6144);

  const int64_t step = reader.integer("decoder_sparse_step", 1, kMaxLayers, 1);
  const std::vector<int64_t> dense = reader.integers("mlp_only_layers", 0, kMaxLayers - 1, kMaxLayers);
  for (int layer = 0; layer < config.geometry.layers; ++layer) {
    const bool moe = (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
    config.is_moe.push_back(moe);
    if (moe) config.geometry.moe_layers.push_back(layer);
  }
  if (config.geometry.moe_layers.empty()) {
    const bool by_step = step > config.geometry.layers;
    reader.refuse(by_step ? "decoder_sparse_step" : "mlp_only_layers", "values that leave a layer with experts");
  }
}

void read_attention(const ConfigReader& reader, Qwen3MoeConfig& config) {
  ModelGeometry& geometry = config.geometry;
  config.heads = read_heads(reader, geometry.hidden, {.heads = 32, .kv_heads = 4});
  geometry.kv.assign(static_cast<size_t>(geometry.layers), {config.heads.kv_heads, config.heads.head_dim});
  geometry.widest_heads = config.heads.query_width();
  config.attention_bias = reader.boolean("attention_bias", false);
}

// transformers 5 applies the window to every layer; max_window_layers of older configurations has no effect there. An
// explicit null means no window, an absent key the default.
int64_t read_window(const Json& json, const ConfigReader& reader) {
  const bool is_null = json.contains("sliding_window") && json["sliding_window"].is_null();
  if (!reader.boolean("use_sliding_window", false) || is_null) return 0;
  return reader.integer("sliding_window", 1, kMaxModelPositions, 4096);
}

Qwen3MoeConfig read_config(const Json& json) {
  const ConfigReader reader(json);
  Qwen3MoeConfig config;
  ModelGeometry& geometry = config.geometry;
  geometry.family = "qwen3_moe";
  reader.text("hidden_act", {"silu"}, "silu");
  read_model_shape(reader, {.layers = 24, .hidden = 2048, .vocab = 151936, .max_positions = 32768}, geometry);
  config.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  config.tied = reader.boolean("tie_word_embeddings", false);
  read_attention(reader, config);
  config.window = read_window(json, reader);
  read_experts(reader, config);
  reader.number("partial_rotary_factor", 1, 1, 1);
  config.rope = read_rope_settings(json, config.heads.head_dim, geometry.max_positions);
  return config;
}

struct AttentionWeights {
  VectorId norm;
  MatrixId query, key, value, out;
  VectorId query_bias, key_bias, value_bias, out_bias;
  VectorId query_norm, key_norm;
};

struct MlpWeights {
  VectorId norm;
  MatrixId router;          // MoE layers
  MatrixId next_router;     // of the next MoE layer
  MatrixId gate, up, down;  // dense layers
};

struct Layer {
  AttentionWeights attention;
  MlpWeights mlp;
  int moe_layer = -1;  // -1: dense
};

class Qwen3Moe final : public Family {
 public:
  explicit Qwen3Moe(const Json& json) : config_(read_config(json)) {
    const ModelGeometry& g = config_.geometry;
    table_ = list_.table({"model.embed_tokens.weight"}, g.vocab, g.hidden);
    for (int layer = 0; layer < g.layers; ++layer) declare_layer(layer);
    MatrixId next;
    for (size_t i = layers_.size(); i-- > 0;) {
      layers_[i].mlp.next_router = next;
      if (layers_[i].moe_layer >= 0) next = layers_[i].mlp.router;
    }
    norm_ = list_.vector({"model.norm.weight"}, g.hidden);
    head_ = list_.matrix({config_.tied ? "model.embed_tokens" : "lm_head"}, g.vocab, g.hidden, /*keep_bf16=*/true);
    config_.geometry.slot_floats = slot_floats(*this);
  }

  const ModelGeometry& geometry() const override { return config_.geometry; }
  WeightList declare_weights() const override { return list_; }

  int64_t width(Slot slot) const override {
    const ModelGeometry& g = config_.geometry;
    const bool has_dense = g.moe_layers.size() < static_cast<size_t>(g.layers);
    switch (slot) {
      case Slot::kResidual:
        return g.hidden;
      case Slot::kQuery:
      case Slot::kAttention:
        return config_.heads.query_width();
      case Slot::kKey:
      case Slot::kValue:
        return config_.heads.kv_width();
      case Slot::kGate:
      case Slot::kUp:
        return has_dense ? config_.dense_intermediate : 0;
      default:
        return 0;
    }
  }

  std::vector<RopeTable> make_ropes(int64_t positions) const override {
    return {make_rope_table(config_.rope, positions)};
  }

  void forward(Backend& backend, const ModelWeights&, const StepBatch&) const override {
    backend.embed({table_, Slot::kResidual});
    for (size_t i = 0; i < layers_.size(); ++i) {
      attend(backend, layers_[i].attention, static_cast<int>(i));
      const MlpWeights& mlp = layers_[i].mlp;
      if (layers_[i].moe_layer >= 0) {
        MoeSpec spec;
        spec.moe_layer = layers_[i].moe_layer;
        spec.from = spec.to = Slot::kResidual;
        spec.norm = norm_by(mlp.norm);
        spec.router = {.norm = spec.norm, .weight = mlp.router, .renormalize = config_.renormalize};
        spec.next_router = {.norm = spec.norm, .weight = mlp.next_router, .renormalize = config_.renormalize};
        backend.moe(spec);
      } else {
        dense_mlp(backend, mlp);
      }
    }
    backend.logits({Slot::kResidual, norm_by(norm_), head_});
  }

 private:
  void declare_layer(int layer) {
    const ModelGeometry& g = config_.geometry;
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    Layer weights;
    weights.attention = declare_attention(prefix);
    weights.mlp.norm = list_.vector({prefix + "post_attention_layernorm.weight"}, g.hidden);
    const std::string mlp = prefix + "mlp.";
    if (config_.is_moe[static_cast<size_t>(layer)]) {
      weights.moe_layer = static_cast<int>(list_.expert_layers.size());
      weights.mlp.router = list_.matrix({mlp + "gate"}, g.expert.experts, g.hidden, /*keep_bf16=*/true);
      list_.expert_layer({{mlp + "experts."}});
    } else {
      weights.mlp.gate = list_.matrix({mlp + "gate_proj"}, config_.dense_intermediate, g.hidden);
      weights.mlp.up = list_.matrix({mlp + "up_proj"}, config_.dense_intermediate, g.hidden);
      weights.mlp.down = list_.matrix({mlp + "down_proj"}, g.hidden, config_.dense_intermediate);
    }
    layers_.push_back(weights);
  }

  AttentionWeights declare_attention(const std::string& prefix) {
    const ModelGeometry& g = config_.geometry;
    const int64_t q_width = config_.heads.query_width();
    const int64_t kv_width = config_.heads.kv_width();
    const std::string self = prefix + "self_attn.";
    AttentionWeights weights;
    weights.norm = list_.vector({prefix + "input_layernorm.weight"}, g.hidden);
    weights.query = list_.matrix({self + "q_proj"}, q_width, g.hidden);
    weights.key = list_.matrix({self + "k_proj"}, kv_width, g.hidden);
    weights.value = list_.matrix({self + "v_proj"}, kv_width, g.hidden);
    weights.out = list_.matrix({self + "o_proj"}, g.hidden, q_width);
    weights.query_norm = list_.vector({self + "q_norm.weight"}, config_.heads.head_dim);
    weights.key_norm = list_.vector({self + "k_norm.weight"}, config_.heads.head_dim);
    if (config_.attention_bias) {
      const VectorForm bias{.synthetic = 0};
      weights.query_bias = list_.vector({self + "q_proj.bias"}, q_width, bias);
      weights.key_bias = list_.vector({self + "k_proj.bias"}, kv_width, bias);
      weights.value_bias = list_.vector({self + "v_proj.bias"}, kv_width, bias);
      weights.out_bias = list_.vector({self + "o_proj.bias"}, g.hidden, bias);
    }
    return weights;
  }

  Norm norm_by(VectorId weight) const { return {weight, config_.norm_eps}; }

  void attend(Backend& backend, const AttentionWeights& w, int layer) const {
    backend.linear(Slot::kResidual, norm_by(w.norm),
                   {{w.query, w.query_bias, Slot::kQuery},
                    {w.key, w.key_bias, Slot::kKey},
                    {w.value, w.value_bias, Slot::kValue}});
    AttentionSpec spec;
    spec.kv_layer = layer;
    spec.heads = config_.heads.heads;
    spec.kv_heads = static_cast<int>(config_.heads.kv_heads);
    spec.head_dim = config_.heads.head_dim;
    spec.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.heads.head_dim)));
    spec.window = config_.window;
    spec.q_norm = w.query_norm;
    spec.k_norm = w.key_norm;
    spec.norm_eps = config_.norm_eps;
    backend.attention(spec);
    backend.linear_add(Slot::kAttention, {w.out, w.out_bias, Slot::kResidual});
  }

  void dense_mlp(Backend& backend, const MlpWeights& w) const {
    backend.linear(Slot::kResidual, norm_by(w.norm), {{w.gate, {}, Slot::kGate}, {w.up, {}, Slot::kUp}});
    backend.glu({{}, Slot::kGate, Slot::kUp, Slot::kGate, config_.dense_intermediate});
    backend.linear_add(Slot::kGate, {w.down, {}, Slot::kResidual});
  }

  Qwen3MoeConfig config_;
  WeightList list_;
  TableId table_;
  std::vector<Layer> layers_;
  VectorId norm_;
  MatrixId head_;
};

}  // namespace

std::unique_ptr<Family> make_qwen3_moe(const Json& config) { return std::make_unique<Qwen3Moe>(config); }

}  // namespace ft
