// gemma4 (Gemma-4-26B-A4B): layers with a sliding window and layers with full attention, whose heads differ in number
// and width; a dense MLP and an expert block side by side in every layer; norms before and after each block; soft
// capped logits. Source: Hugging Face transformers 5.17, models/gemma4. What only the small models of the family have
// (per-layer inputs, layers that share keys and values) is refused, and so is a model without experts.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine_config.h"
#include "engine/model/config_reader.h"
#include "engine/model/families/config_shapes.h"
#include "engine/model/families/list.h"
#include "engine/runtime/backend.h"
#include "kernels/base/error.h"
#include "kernels/ops/attention.h"

namespace ft {
namespace {

enum Kind : int { kSliding, kFull };  // of a layer, and which rotation table it uses
constexpr int kKinds = 2;
constexpr std::string_view kKindNames[kKinds] = {"sliding_attention", "full_attention"};
constexpr int kFullEvery = 6;  // without layer_types
constexpr int64_t kDefaultFullHeadDim = 512;
constexpr double kMinSoftcap = 1e-3, kMaxSoftcap = 1e6;

struct Gemma4Config {
  ModelGeometry geometry;
  std::vector<int> kinds;        // per layer
  std::vector<HeadShape> heads;  // per layer
  int64_t dense_intermediate = 0;
  float norm_eps = 0;
  float softcap = 0;  // 0: none
  bool tied = false;
  bool value_is_key = false;  // full layers have no value projection
  int64_t window = 0;         // of sliding layers
  RopeSettings ropes[kKinds];
};

// What transformers computes for them and this engine does not.
void refuse_other_gemmas(const ConfigReader& reader) {
  if (!reader.boolean("enable_moe_block", false)) {
    reader.refuse("enable_moe_block", "true: models without experts are not served");
  }
  if (!reader.has("hidden_size_per_layer_input")) {
    reader.refuse("hidden_size_per_layer_input", "0 (absent: 256); per-layer inputs are not supported");
  }
  reader.integer("hidden_size_per_layer_input", 0, 0);
  reader.integer("num_kv_shared_layers", 0, 0, 0);
  if (reader.boolean("use_double_wide_mlp", false)) reader.refuse("use_double_wide_mlp", "false");
  if (reader.boolean("attention_bias", false)) reader.refuse("attention_bias", "false");
  reader.text("use_bidirectional_attention", {"vision"}, "vision");  // of images: text is causal
  reader.text("hidden_activation", {"gelu_pytorch_tanh"}, "gelu_pytorch_tanh");
}

void read_kinds(const ConfigReader& reader, Gemma4Config& config) {
  const int layers = config.geometry.layers;
  config.kinds = read_layer_types(reader, layers, {kKindNames[kSliding], kKindNames[kFull]});
  if (config.kinds.empty()) {
    for (int layer = 0; layer < layers; ++layer)
      config.kinds.push_back((layer + 1) % kFullEvery == 0 ? kFull : kSliding);
  }
  config.kinds.back() = kFull;  // whatever is written there
}

// New configurations name the layers that differ, by their numbers.
void read_per_layer_heads(const ConfigReader& reader, const Json& per_layer, Gemma4Config& config) {
  constexpr const char* kKey = "per_layer_config";
  for (const auto& [name, given] : per_layer.items()) {
    const std::string last = std::to_string(config.geometry.layers - 1);
    const bool number = !name.empty() && name.size() <= last.size() &&
                        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!number || std::stoi(name) >= config.geometry.layers) {
      reader.refuse(kKey, "layers from 0 to " + last + ", not '" + name + "'");
    }
    const ConfigReader layer(given, std::string(kKey) + "." + name + ".");
    for (const auto& [key, value] : given.items()) {
      if (key != "head_dim" && key != "num_key_value_heads") layer.refuse(key, "head_dim and num_key_value_heads only");
    }
    HeadShape& heads = config.heads[static_cast<size_t>(std::stoi(name))];
    heads = read_heads(layer, config.geometry.hidden, heads);
  }
}

// Older ones have keys of their own for the full layers.
void read_global_heads(const ConfigReader& reader, Gemma4Config& config) {
  HeadShape full = config.heads.front();
  full.head_dim = kDefaultFullHeadDim;
  const bool own_count = config.value_is_key && reader.has("num_global_key_value_heads");
  full = read_heads(
      reader, config.geometry.hidden, full,
      {.kv_heads = own_count ? "num_global_key_value_heads" : "num_key_value_heads", .head_dim = "global_head_dim"});
  for (size_t layer = 0; layer < config.heads.size(); ++layer) {
    if (config.kinds[layer] == kFull) config.heads[layer] = full;
  }
}

void read_attention(const ConfigReader& reader, Gemma4Config& config) {
  ModelGeometry& geometry = config.geometry;
  read_kinds(reader, config);
  config.value_is_key = reader.boolean("attention_k_eq_v", false);
  config.window = reader.integer("sliding_window", 1, kMaxModelPositions, 512);
  const HeadShape common = read_heads(reader, geometry.hidden, {.heads = 8, .kv_heads = 4, .head_dim = 256});
  config.heads.assign(static_cast<size_t>(geometry.layers), common);
  if (const Json* per_layer = reader.object("per_layer_config")) {
    read_per_layer_heads(reader, *per_layer, config);
  } else {
    read_global_heads(reader, config);
  }
  for (size_t layer = 0; layer < config.heads.size(); ++layer) {
    const HeadShape& heads = config.heads[layer];
    geometry.kv.push_back({heads.kv_heads, heads.head_dim, config.kinds[layer] == kSliding ? config.window : 0});
    geometry.widest_heads = std::max(geometry.widest_heads, heads.query_width());
  }
}

// One table for all layers of a kind: they have one head_dim.
void read_ropes(const Json& json, const ConfigReader& reader, Gemma4Config& config) {
  const Json defaults = Json::parse(R"({"rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}})");
  const Json& holder = reader.has("rope_parameters") ? json : defaults;
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto first = std::find(config.kinds.begin(), config.kinds.end(), kind);
    if (first == config.kinds.end()) continue;
    const int64_t head_dim = config.heads[static_cast<size_t>(first - config.kinds.begin())].head_dim;
    for (size_t layer = 0; layer < config.heads.size(); ++layer) {
      if (config.kinds[layer] != kind || config.heads[layer].head_dim == head_dim) continue;
      reader.refuse("per_layer_config", "one head_dim for all layers of " + std::string(kKindNames[kind]));
    }
    config.ropes[kind] = read_rope_settings(holder, head_dim, config.geometry.max_positions, 10000, kKindNames[kind]);
  }
  config.geometry.rope_tables = kKinds;
}

void read_experts(const ConfigReader& reader, Gemma4Config& config) {
  ModelGeometry& geometry = config.geometry;
  constexpr ExpertKeys kKeys = {.top_k = "top_k_experts"};
  for (const std::string_view key : {kKeys.intermediate, kKeys.experts, kKeys.top_k}) {
    if (!reader.has(key)) reader.refuse(key, "a value, since enable_moe_block is true");
  }
  read_expert_shape(reader, {}, geometry, kKeys);
  geometry.expert.form.glu = {GluKind::kGeluTanh, 0};
  for (int layer = 0; layer < geometry.layers; ++layer) geometry.moe_layers.push_back(layer);
}

Gemma4Config read_config(const Json& json) {
  const ConfigReader reader(json);
  Gemma4Config config;
  config.geometry.family = "gemma4";
  refuse_other_gemmas(reader);
  read_model_shape(reader, {.layers = 30, .hidden = 2304, .vocab = 262144, .max_positions = 131072}, config.geometry);
  config.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  config.tied = reader.boolean("tie_word_embeddings", true);
  config.dense_intermediate = reader.integer("intermediate_size", 1, kMaxDenseIntermediate, 9216);
  if (reader.has("final_logit_softcapping")) {
    config.softcap = static_cast<float>(reader.number("final_logit_softcapping", kMinSoftcap, kMaxSoftcap));
  }
  read_attention(reader, config);
  read_ropes(json, reader, config);
  read_experts(reader, config);
  return config;
}

struct AttentionWeights {
  VectorId before, after;  // norms
  MatrixId query, key, value, out;
  VectorId query_norm, key_norm;
};

struct DenseWeights {
  VectorId before, after;
  MatrixId gate, up, down;
};

struct ExpertWeights {
  VectorId before, after;
  RouterSpec router;
};

struct Layer {
  AttentionWeights attention;
  DenseWeights dense;
  ExpertWeights experts;
  VectorId after;  // norm of the sum of both
  VectorId scalar;
};

class Gemma4 final : public Family {
 public:
  explicit Gemma4(const Json& json) : config_(read_config(json)) {
    const ModelGeometry& g = config_.geometry;
    table_ = list_.table(names("embed_tokens.weight"), g.vocab, g.hidden);
    for (int layer = 0; layer < g.layers; ++layer) declare_layer(layer);
    norm_ = list_.vector(names("norm.weight"), g.hidden);
    head_ = list_.matrix(config_.tied ? names("embed_tokens") : std::vector<std::string>{"lm_head"}, g.vocab, g.hidden,
                         /*keep_bf16=*/true);
    config_.geometry.slot_floats = slot_floats(*this);
  }

  const ModelGeometry& geometry() const override { return config_.geometry; }
  WeightList declare_weights() const override { return list_; }

  int64_t width(Slot slot) const override {
    switch (slot) {
      case Slot::kResidual:
      case Slot::kBlock:
      case Slot::kRouted:
        return config_.geometry.hidden;
      case Slot::kQuery:
      case Slot::kAttention:
        return config_.geometry.widest_heads;
      case Slot::kKey:
      case Slot::kValue: {
        int64_t widest = 0;
        for (const HeadShape& heads : config_.heads) widest = std::max(widest, heads.kv_width());
        return widest;
      }
      case Slot::kGate:
      case Slot::kUp:
        return config_.dense_intermediate;
      default:
        return 0;
    }
  }

  std::vector<RopeTable> make_ropes(int64_t positions) const override {
    std::vector<RopeTable> tables;
    for (const RopeSettings& rope : config_.ropes) tables.push_back(make_rope_table(rope, positions));
    return tables;
  }

  void forward(Backend& backend, const ModelWeights&, const StepBatch&) const override {
    backend.embed({table_, Slot::kResidual, std::sqrt(static_cast<float>(config_.geometry.hidden))});
    for (size_t i = 0; i < layers_.size(); ++i) {
      attend(backend, static_cast<int>(i));
      feed_forward(backend, static_cast<int>(i));
    }
    LogitsSpec spec{Slot::kResidual, norm_by(norm_), head_};
    spec.softcap = config_.softcap;
    backend.logits(spec);
  }

 private:
  // As published checkpoints and text-only ones call a tensor.
  static std::vector<std::string> names(const std::string& name) {
    return {"model.language_model." + name, "model." + name, "language_model.model." + name};
  }
  Norm norm_by(VectorId weight) const { return {weight, config_.norm_eps}; }

  void declare_layer(int layer) {
    const int64_t hidden = config_.geometry.hidden, intermediate = config_.dense_intermediate;
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto norm = [&](const char* name) { return list_.vector(names(prefix + name + ".weight"), hidden); };
    Layer w;
    w.attention = declare_attention(layer, prefix);
    w.dense.before = norm("pre_feedforward_layernorm");
    w.dense.after = norm("post_feedforward_layernorm_1");
    w.dense.gate = list_.matrix(names(prefix + "mlp.gate_proj"), intermediate, hidden);
    w.dense.up = list_.matrix(names(prefix + "mlp.up_proj"), intermediate, hidden);
    w.dense.down = list_.matrix(names(prefix + "mlp.down_proj"), hidden, intermediate);
    w.experts.before = norm("pre_feedforward_layernorm_2");
    w.experts.after = norm("post_feedforward_layernorm_2");
    w.experts.router = declare_router(prefix + "router.");
    list_.expert_layer({names(prefix + "experts.")});
    w.after = norm("post_feedforward_layernorm");
    w.scalar = list_.vector(names(prefix + "layer_scalar"), 1);
    layers_.push_back(w);
  }

  AttentionWeights declare_attention(int layer, const std::string& prefix) {
    const int64_t hidden = config_.geometry.hidden;
    const HeadShape& heads = config_.heads[static_cast<size_t>(layer)];
    const std::string self = prefix + "self_attn.";
    AttentionWeights w;
    w.before = list_.vector(names(prefix + "input_layernorm.weight"), hidden);
    w.after = list_.vector(names(prefix + "post_attention_layernorm.weight"), hidden);
    w.query = list_.matrix(names(self + "q_proj"), heads.query_width(), hidden);
    w.key = list_.matrix(names(self + "k_proj"), heads.kv_width(), hidden);
    if (!value_is_key(layer)) w.value = list_.matrix(names(self + "v_proj"), heads.kv_width(), hidden);
    w.out = list_.matrix(names(self + "o_proj"), hidden, heads.query_width());
    w.query_norm = list_.vector(names(self + "q_norm.weight"), heads.head_dim);
    w.key_norm = list_.vector(names(self + "k_norm.weight"), heads.head_dim);
    return w;
  }

  // The router reads its rows normed, times a scale per channel and hidden^-0.5: one weight of its norm.
  RouterSpec declare_router(const std::string& prefix) {
    const ModelGeometry& g = config_.geometry;
    VectorForm form;
    form.multiply = 1 / std::sqrt(static_cast<float>(g.hidden));
    RouterSpec router;
    router.norm = norm_by(list_.vector(names(prefix + "scale"), g.hidden, form));
    router.weight = list_.matrix(names(prefix + "proj"), g.expert.experts, g.hidden, /*keep_bf16=*/true);
    router.renormalize = true;
    router.expert_scale = list_.vector(names(prefix + "per_expert_scale"), g.expert.experts);
    return router;
  }

  bool value_is_key(int layer) const {
    return config_.value_is_key && config_.kinds[static_cast<size_t>(layer)] == kFull;
  }

  void attend(Backend& backend, int layer) const {
    const auto index = static_cast<size_t>(layer);
    const AttentionWeights& w = layers_[index].attention;
    const HeadShape& heads = config_.heads[index];
    AttentionSpec spec;
    spec.kv_layer = layer;
    spec.heads = heads.heads;
    spec.kv_heads = static_cast<int>(heads.kv_heads);
    spec.head_dim = heads.head_dim;
    spec.scale = 1;  // queries and keys are normed
    spec.window = config_.kinds[index] == kSliding ? config_.window : 0;
    spec.q_norm = w.query_norm;
    spec.k_norm = w.key_norm;
    spec.v_norm = true;
    spec.value_is_key = value_is_key(layer);
    spec.norm_eps = config_.norm_eps;
    spec.rope = config_.kinds[index];
    const Linear query{w.query, {}, Slot::kQuery}, key{w.key, {}, Slot::kKey};
    if (spec.value_is_key) {
      backend.linear(Slot::kResidual, norm_by(w.before), {query, key});
    } else {
      backend.linear(Slot::kResidual, norm_by(w.before), {query, key, {w.value, {}, Slot::kValue}});
    }
    backend.attention(spec);
    backend.linear(Slot::kAttention, {}, {{w.out, {}, Slot::kBlock}});
    backend.add({Slot::kBlock, norm_by(w.after), Slot::kResidual, {}});
  }

  // Experts first: what they have the link fetch for the next layer is under way while the dense MLP computes.
  void feed_forward(Backend& backend, int layer) const {
    const auto index = static_cast<size_t>(layer);
    const Layer& w = layers_[index];
    MoeSpec spec;
    spec.moe_layer = layer;
    spec.from = Slot::kResidual;
    spec.norm = norm_by(w.experts.before);
    spec.router = w.experts.router;
    if (index + 1 < layers_.size()) spec.next_router = layers_[index + 1].experts.router;
    spec.to = Slot::kRouted;
    spec.add = false;
    backend.moe(spec);
    backend.linear(Slot::kResidual, norm_by(w.dense.before),
                   {{w.dense.gate, {}, Slot::kGate}, {w.dense.up, {}, Slot::kUp}});
    backend.glu({config_.geometry.expert.form.glu, Slot::kGate, Slot::kUp, Slot::kGate, config_.dense_intermediate});
    backend.linear(Slot::kGate, {}, {{w.dense.down, {}, Slot::kBlock}});
    backend.norm(Slot::kBlock, norm_by(w.dense.after), Slot::kBlock);
    backend.add({Slot::kRouted, norm_by(w.experts.after), Slot::kBlock, {}});
    backend.add({Slot::kBlock, norm_by(w.after), Slot::kResidual, w.scalar});
  }

  Gemma4Config config_;
  WeightList list_;
  TableId table_;
  std::vector<Layer> layers_;
  VectorId norm_;
  MatrixId head_;
};

}  // namespace

std::unique_ptr<Family> make_gemma4(const Json& config) { return std::make_unique<Gemma4>(config); }

}  // namespace ft
