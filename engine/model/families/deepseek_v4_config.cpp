#include "engine/model/families/deepseek_v4_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine_config.h"
#include "kernels/base/error.h"
#include "kernels/formats/format.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/streams.h"

namespace ft {
namespace {

constexpr int64_t kMaxRank = int64_t{1} << 16;
constexpr int64_t kMaxRatio = 4096;  // tokens of an entry: their rows are kept in fp32
constexpr int64_t kMaxIndexHeads = 1024;
constexpr int64_t kMaxIndexTopK = int64_t{1} << 20;
constexpr int64_t kMaxRounds = 1000;
constexpr double kMaxScale = 1e4;
constexpr double kMinLimit = 1e-3, kMaxLimit = 1e6;  // of the gated linear unit
constexpr const char *kRopeDim = "qk_rope_head_dim", *kIndexDim = "index_head_dim";

constexpr const char* kSparseName = "compressed_sparse_attention";
constexpr const char* kHeavyName = "heavily_compressed_attention";

struct Rates {
  int64_t sparse = 4, heavy = 128;
};

// The published ratios 0, 4 and 128 name the kinds; there is one for each layer, and more for draft layers.
std::vector<DeepseekAttention> kinds_by_ratio(const ConfigReader& reader, int layers) {
  const std::string allowed = "at least " + std::to_string(layers) + " of 0, 4 and 128, one per layer";
  const std::vector<int64_t> ratios = reader.integers("compress_ratios", 0, 128, size_t{2} * kMaxLayers);
  if (ratios.size() < static_cast<size_t>(layers)) reader.refuse("compress_ratios", allowed);
  std::vector<DeepseekAttention> kinds;
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t ratio = ratios[static_cast<size_t>(layer)];
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      reader.refuse("compress_ratios", allowed + ", not " + std::to_string(ratio));
    }
    kinds.push_back(ratio == 0   ? DeepseekAttention::kSliding
                    : ratio == 4 ? DeepseekAttention::kSparse
                                 : DeepseekAttention::kHeavy);
  }
  return kinds;
}

std::vector<DeepseekAttention> read_kinds(const ConfigReader& reader, int layers) {
  if (!reader.has("layer_types")) return kinds_by_ratio(reader, layers);
  std::vector<DeepseekAttention> kinds;
  for (const int type : read_layer_types(reader, layers, {"sliding_attention", kSparseName, kHeavyName})) {
    kinds.push_back(static_cast<DeepseekAttention>(type));
  }
  return kinds;
}

Rates read_rates(const ConfigReader& reader) {
  Rates rates;
  const Json* given = reader.has("layer_types") ? reader.object("compress_rates") : nullptr;
  if (given == nullptr) return rates;
  const ConfigReader nested(*given, "compress_rates.");
  rates.sparse = nested.integer(kSparseName, 1, kMaxRatio, rates.sparse);
  rates.heavy = nested.integer(kHeavyName, 1, kMaxRatio, rates.heavy);
  return rates;
}

int64_t read_rope_dim(const ConfigReader& reader, int64_t head_dim) {
  const double share = reader.number("partial_rotary_factor", 0, 1, 64.0 / static_cast<double>(head_dim));
  const auto implied = static_cast<int64_t>(share * static_cast<double>(head_dim));
  const int64_t dim = reader.has(kRopeDim) ? reader.integer(kRopeDim, 2, head_dim) : implied;
  if (dim < 2 || dim > head_dim || dim % 2 != 0) {
    reader.refuse(kRopeDim, "an even number from 2 to " + std::to_string(head_dim) + " (head_dim)");
  }
  return dim;
}

// The rotation of sliding layers is never scaled. That of the others may be, by yarn, but without its factor on cos and
// sin. `nested`: rope_parameters holds an object for each; otherwise one set of keys, which is for the others.
void read_ropes(const Json& json, const ConfigReader& reader, int64_t dim, DeepseekV4Config& config) {
  const int64_t positions = config.geometry.max_positions;
  const Json* parameters = reader.object("rope_parameters");
  const auto nested = [&](const char* key) {
    return parameters != nullptr && parameters->contains(key) && !(*parameters)[key].is_null();
  };
  const auto theta = [&](const char* key, double absent) { return reader.number(key, 2, kMaxRopeTheta, absent); };
  config.main_rope.rotary_dim = dim;
  config.main_rope.theta = theta("rope_theta", 10000);
  if (nested("main")) config.main_rope = read_rope_settings(json, dim, positions, config.main_rope.theta, "main");
  const double compress_theta = theta("compress_rope_theta", 160000);
  if (nested("compress")) {
    config.compress_rope = read_rope_settings(json, dim, positions, compress_theta, "compress");
  } else {
    Json flat = Json::object();
    const Json* scaling = reader.object("rope_scaling");
    if (scaling == nullptr && !nested("main")) scaling = parameters;
    if (scaling != nullptr) flat["rope_scaling"] = *scaling;
    flat["rope_scaling"]["rope_theta"] = compress_theta;
    config.compress_rope = read_rope_settings(flat, dim, positions);
  }
  for (RopeSettings* rope : {&config.main_rope, &config.compress_rope}) {
    if (rope->yarn) rope->yarn->attention_factor = 1;
  }
}

void read_attention(const Json& json, const ConfigReader& reader, DeepseekV4Config& config) {
  ModelGeometry& geometry = config.geometry;
  config.heads = read_heads(reader, geometry.hidden, {.heads = 64, .kv_heads = 1, .head_dim = 512});
  if (config.heads.kv_heads != 1) reader.refuse("num_key_value_heads", "1");
  if (reader.boolean("attention_bias", false)) reader.refuse("attention_bias", "false");
  const int64_t dim = read_rope_dim(reader, config.heads.head_dim);
  config.q_rank = reader.integer("q_lora_rank", 1, kMaxRank, 1024);
  config.o_rank = reader.integer("o_lora_rank", 1, kMaxRank, 1024);
  config.o_groups = static_cast<int>(reader.integer("o_groups", 1, config.heads.heads, 8));
  if (config.heads.heads % config.o_groups != 0) {
    reader.refuse("o_groups", "a divisor of num_attention_heads, " + std::to_string(config.heads.heads));
  }
  if (config.o_rank % kRowsPerTile != 0) {
    reader.refuse("o_lora_rank", "a multiple of " + std::to_string(kRowsPerTile));
  }
  const int64_t window = reader.integer("sliding_window", 1, kMaxModelPositions, 128);
  const int64_t index_heads = reader.integer("index_n_heads", 1, kMaxIndexHeads, 64);
  const int64_t index_dim = reader.integer(kIndexDim, 2, kMaxHeadDim, 128);
  const int64_t index_top_k = reader.integer("index_topk", 1, kMaxIndexTopK, 512);
  const Rates rates = read_rates(reader);
  config.attention = read_kinds(reader, geometry.layers);
  for (const DeepseekAttention kind : config.attention) {
    CompressedLayer layer{.head_dim = config.heads.head_dim, .window = window};
    if (kind == DeepseekAttention::kHeavy) layer.ratio = rates.heavy;
    if (kind == DeepseekAttention::kSparse) {
      if (index_dim < dim) reader.refuse(kIndexDim, "at least " + std::to_string(dim) + ", what is rotated of a head");
      layer.ratio = rates.sparse;
      layer.overlap = true;
      layer.index_dim = index_dim;
      layer.index_heads = index_heads;
      layer.index_top_k = index_top_k;
    }
    geometry.compressed.push_back(layer);
  }
  geometry.rope_tables = 2;
  geometry.output_groups = config.o_groups;
  geometry.output_group_width = config.heads.query_width() / config.o_groups;
  geometry.widest_heads = std::max({config.heads.query_width(), config.o_width(), config.q_rank});
  read_ropes(json, reader, dim, config);
}

void read_experts(const ConfigReader& reader, DeepseekV4Config& config) {
  ModelGeometry& geometry = config.geometry;
  read_expert_shape(reader, {.intermediate = 2048, .experts = 256, .top_k = 6}, geometry,
                    {.experts = "n_routed_experts", .experts_alias = "num_local_experts"});
  reader.integer("n_shared_experts", 1, 1, 1);
  reader.text("scoring_func", {"sqrtsoftplus"}, "sqrtsoftplus");
  if (reader.boolean("mlp_bias", false)) reader.refuse("mlp_bias", "false");
  const double limit = reader.number("swiglu_limit", kMinLimit, kMaxLimit, 10);
  geometry.expert.form = {.glu = {GluKind::kSiluClamped, static_cast<float>(limit)}};
  config.routed_scale = static_cast<float>(reader.number("routed_scaling_factor", 0, kMaxScale, 1.5));
  const int64_t hashed = reader.integer("num_hash_layers", 0, kMaxLayers, 3);
  std::vector<std::string> types;
  if (reader.has("mlp_layer_types")) types = reader.texts("mlp_layer_types", kMaxLayers);
  if (reader.has("mlp_layer_types") && types.size() != static_cast<size_t>(geometry.layers)) {
    reader.refuse("mlp_layer_types", std::to_string(geometry.layers) + " of hash_moe and moe, one per layer");
  }
  for (int layer = 0; layer < geometry.layers; ++layer) {
    geometry.moe_layers.push_back(layer);
    const std::string type = types.empty() ? (layer < hashed ? "hash_moe" : "moe") : types[static_cast<size_t>(layer)];
    if (type != "hash_moe" && type != "moe") reader.refuse("mlp_layer_types", "hash_moe or moe, not '" + type + "'");
    config.hashed.push_back(type == "hash_moe");
  }
}

}  // namespace

DeepseekV4Config read_deepseek_v4_config(const Json& json) {
  const ConfigReader reader(json);
  DeepseekV4Config config;
  ModelGeometry& geometry = config.geometry;
  geometry.family = "deepseek_v4";
  reader.text("hidden_act", {"silu"}, "silu");
  read_model_shape(reader, {.layers = 43, .hidden = 4096, .vocab = 129280, .max_positions = 1048576}, geometry);
  config.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  config.tied = reader.boolean("tie_word_embeddings", false);
  config.streams = static_cast<int>(reader.integer("hc_mult", 1, kMaxStreams, 4));
  config.sinkhorn_rounds = static_cast<int>(reader.integer("hc_sinkhorn_iters", 1, kMaxRounds, 20));
  config.stream_eps = static_cast<float>(reader.number("hc_eps", 0, 0.1, 1e-6));
  read_attention(json, reader, config);
  read_experts(reader, config);
  return config;
}

}  // namespace ft
