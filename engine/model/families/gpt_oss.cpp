// gpt_oss: grouped-query attention with biases and a sink a head, windows on some layers, YaRN; a router with a bias
// whose softmax is over the chosen experts; experts with biases and a clamped gated unit.
// Source: Hugging Face transformers 5.17, models/gpt_oss. Repositories of these models hold the weights a second time,
// in a folder original/ without a tokenizer: OpenAI's own layout, which is refused.
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine_config.h"
#include "engine/model/families/config_shapes.h"
#include "engine/model/families/list.h"
#include "engine/runtime/backend.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr double kTheta = 150000;
constexpr double kMinLimit = 1e-3, kMaxLimit = 1e6;  // swiglu_limit
constexpr int64_t kAbsentWindow = 128;

constexpr const char* kNativeLayout = "gpt-oss in OpenAI's own names (original/)";
constexpr const char* kSupportedLayout =
    "the same weights in the names of Hugging Face (model.layers.0...), in the folder above original/";

struct GptOssConfig {
  ModelGeometry geometry;
  HeadShape heads;
  std::vector<int64_t> windows;  // of each layer; 0: none
  float norm_eps = 0;
  bool attention_bias = true;
  bool tied = false;
  RopeSettings rope;
};

// Without layer_types every other layer has a window, the first one included; a null sliding_window means none.
void read_windows(const Json& json, const ConfigReader& reader, GptOssConfig& config) {
  const bool is_null = json.contains("sliding_window") && json["sliding_window"].is_null();
  const int64_t window = is_null ? 0 : reader.integer("sliding_window", 1, kMaxModelPositions, kAbsentWindow);
  const int layers = config.geometry.layers;
  std::vector<int> types = read_layer_types(reader, layers, {"sliding_attention", "full_attention"});
  for (int layer = 0; layer < layers; ++layer) {
    const bool slides = types.empty() ? layer % 2 == 0 : types[static_cast<size_t>(layer)] == 0;
    config.windows.push_back(slides ? window : 0);
  }
}

RopeSettings read_rope(Json json, const HeadShape& heads, int64_t max_positions) {
  const auto given = [&](const char* key) { return json.contains(key) && !json[key].is_null(); };
  if (!given("rope_parameters") && !given("rope_scaling")) {
    json["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                               {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  }
  return read_rope_settings(json, heads.head_dim, max_positions, kTheta);
}

GptOssConfig read_config(const Json& json) {
  const ConfigReader reader(json);
  GptOssConfig config;
  ModelGeometry& geometry = config.geometry;
  geometry.family = "gpt_oss";
  reader.text("hidden_act", {"silu"}, "silu");
  read_model_shape(reader, {.layers = 36, .hidden = 2880, .vocab = 201088, .max_positions = 131072}, geometry);
  config.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-12, 0.1, 1e-5));
  config.tied = reader.boolean("tie_word_embeddings", false);
  config.attention_bias = reader.boolean("attention_bias", true);
  config.heads = read_heads(reader, geometry.hidden, {.heads = 64, .kv_heads = 8, .head_dim = 64});
  geometry.kv.assign(static_cast<size_t>(geometry.layers), {config.heads.kv_heads, config.heads.head_dim});
  geometry.widest_heads = config.heads.query_width();
  read_windows(json, reader, config);
  for (size_t layer = 0; layer < geometry.kv.size(); ++layer) geometry.kv[layer].window = config.windows[layer];
  read_expert_shape(
      reader, {.intermediate = 2880, .experts = 128, .top_k = 4}, geometry,
      {.intermediate = "intermediate_size", .experts = "num_local_experts", .experts_alias = "num_experts"});
  const double limit = reader.number("swiglu_limit", kMinLimit, kMaxLimit, 7);
  geometry.expert.form = {.glu = {GluKind::kOss, static_cast<float>(limit)}, .biased = true};
  for (int layer = 0; layer < geometry.layers; ++layer) geometry.moe_layers.push_back(layer);
  config.rope = read_rope(json, config.heads, geometry.max_positions);
  return config;
}

struct Layer {
  VectorId attention_norm;
  MatrixId query, key, value, out;
  VectorId query_bias, key_bias, value_bias, out_bias;
  VectorId sinks;
  VectorId mlp_norm;
  MatrixId router;
  VectorId router_bias;
};

class GptOss final : public Family {
 public:
  explicit GptOss(const Json& json) : config_(read_config(json)) {
    const ModelGeometry& g = config_.geometry;
    table_ = list_.table({"model.embed_tokens.weight"}, g.vocab, g.hidden);
    list_.other_layout({"block.0.attn.qkv.weight", kNativeLayout, kSupportedLayout});
    for (int layer = 0; layer < g.layers; ++layer) declare_layer(layer);
    norm_ = list_.vector({"model.norm.weight"}, g.hidden);
    head_ = list_.matrix({config_.tied ? "model.embed_tokens" : "lm_head"}, g.vocab, g.hidden, /*keep_bf16=*/true);
    config_.geometry.slot_floats = slot_floats(*this);
  }

  const ModelGeometry& geometry() const override { return config_.geometry; }
  WeightList declare_weights() const override { return list_; }

  int64_t width(Slot slot) const override {
    switch (slot) {
      case Slot::kResidual:
        return config_.geometry.hidden;
      case Slot::kQuery:
      case Slot::kAttention:
        return config_.heads.query_width();
      case Slot::kKey:
      case Slot::kValue:
        return config_.heads.kv_width();
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
      attend(backend, layers_[i], static_cast<int>(i));
      MoeSpec spec;
      spec.moe_layer = static_cast<int>(i);
      spec.from = spec.to = Slot::kResidual;
      spec.norm = norm_by(layers_[i].mlp_norm);
      spec.router = router_of(layers_[i], spec.norm);
      if (i + 1 < layers_.size()) spec.next_router = router_of(layers_[i + 1], spec.norm);
      backend.moe(spec);
    }
    backend.logits({Slot::kResidual, norm_by(norm_), head_});
  }

 private:
  void declare_layer(int layer) {
    const ModelGeometry& g = config_.geometry;
    const int64_t q_width = config_.heads.query_width(), kv_width = config_.heads.kv_width();
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string self = prefix + "self_attn.", mlp = prefix + "mlp.";
    const VectorForm zero{.synthetic = 0};
    Layer weights;
    weights.attention_norm = list_.vector({prefix + "input_layernorm.weight"}, g.hidden);
    weights.query = list_.matrix({self + "q_proj"}, q_width, g.hidden);
    weights.key = list_.matrix({self + "k_proj"}, kv_width, g.hidden);
    weights.value = list_.matrix({self + "v_proj"}, kv_width, g.hidden);
    weights.out = list_.matrix({self + "o_proj"}, g.hidden, q_width);
    if (config_.attention_bias) {
      weights.query_bias = list_.vector({self + "q_proj.bias"}, q_width, zero);
      weights.key_bias = list_.vector({self + "k_proj.bias"}, kv_width, zero);
      weights.value_bias = list_.vector({self + "v_proj.bias"}, kv_width, zero);
      weights.out_bias = list_.vector({self + "o_proj.bias"}, g.hidden, zero);
    }
    weights.sinks = list_.vector({self + "sinks"}, config_.heads.heads, zero);
    weights.mlp_norm = list_.vector({prefix + "post_attention_layernorm.weight"}, g.hidden);
    weights.router = list_.matrix({mlp + "router"}, g.expert.experts, g.hidden, /*keep_bf16=*/true);
    weights.router_bias = list_.vector({mlp + "router.bias"}, g.expert.experts, zero);
    list_.expert_layer({.prefixes = {mlp + "experts."}, .interleaved = true, .input_major = true});
    layers_.push_back(weights);
  }

  Norm norm_by(VectorId weight) const { return {weight, config_.norm_eps}; }

  static RouterSpec router_of(const Layer& w, const Norm& norm) {
    return {.norm = norm, .weight = w.router, .bias = w.router_bias, .renormalize = true};
  }

  void attend(Backend& backend, const Layer& w, int layer) const {
    backend.linear(Slot::kResidual, norm_by(w.attention_norm),
                   {{w.query, w.query_bias, Slot::kQuery},
                    {w.key, w.key_bias, Slot::kKey},
                    {w.value, w.value_bias, Slot::kValue}});
    AttentionSpec spec;
    spec.kv_layer = layer;
    spec.heads = config_.heads.heads;
    spec.kv_heads = static_cast<int>(config_.heads.kv_heads);
    spec.head_dim = config_.heads.head_dim;
    spec.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.heads.head_dim)));
    spec.window = config_.windows[static_cast<size_t>(layer)];
    spec.sinks = w.sinks;
    backend.attention(spec);
    backend.linear_add(Slot::kAttention, {w.out, w.out_bias, Slot::kResidual});
  }

  GptOssConfig config_;
  WeightList list_;
  TableId table_;
  std::vector<Layer> layers_;
  VectorId norm_;
  MatrixId head_;
};

}  // namespace

void refuse_native_gpt_oss(const Json& config) {
  if (!config.is_object() || !config.contains("initial_context_length") || !config.contains("rope_ntk_beta")) return;
  throw Error(ErrorKind::kFailed, {.what = "this layout of a checkpoint is not supported",
                                   .value = kNativeLayout,
                                   .allowed = kSupportedLayout,
                                   .path = "initial_context_length"});
}

std::unique_ptr<Family> make_gpt_oss(const Json& config) { return std::make_unique<GptOss>(config); }

}  // namespace ft
