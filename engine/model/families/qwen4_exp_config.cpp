#include "engine/model/families/qwen4_exp_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine_config.h"
#include "engine/model/families/delta_net.h"
#include "engine/model/families/qwen_blocks.h"
#include "kernels/ops/streams.h"

namespace ft {
namespace {

constexpr int64_t kMinStreams = 2;
constexpr int64_t kMaxRank = int64_t{1} << 16;
constexpr int64_t kMaxIndexHeads = 1024;
constexpr int64_t kMaxIndexRatio = 4096;
constexpr int64_t kMaxIndexBudget = int64_t{1} << 24;
constexpr int64_t kMaxHeadsOfOrder = 256;
constexpr int64_t kMaxTableMultiple = int64_t{1} << 20;
constexpr int64_t kMaxTableParts = int64_t{1} << 16;
constexpr int64_t kMaxSeed = int64_t{1} << 62;
constexpr const char *kBudget = "indexer_budget", *kIndexDim = "indexer_head_dim", *kNgramWidth = "ple_embed_dim";

void read_layers(const ConfigReader& reader, Qwen4ExpConfig& config) {
  ModelGeometry& geometry = config.geometry;
  // Published checkpoints say full_attention; transformers calls it by what it is.
  const std::vector<int> types =
      read_layer_types(reader, geometry.layers, {"linear_attention", "full_attention", "qwen_sparse_attention"});
  const int64_t interval = reader.integer("full_attention_interval", 1, kMaxLayers, 4);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const bool attends = types.empty() ? (layer + 1) % interval == 0 : types[static_cast<size_t>(layer)] != 0;
    config.is_attention.push_back(attends);
    if (attends) geometry.kv.push_back({config.heads.kv_heads, config.heads.head_dim});
    geometry.moe_layers.push_back(layer);
  }
  geometry.widest_heads = std::max(config.heads.query_width(), config.delta.value_width());
}

void read_indexer(const ConfigReader& reader, Qwen4ExpConfig& config) {
  if (config.geometry.kv.empty()) return;
  CompressedLayer layer{.blocks = true};
  layer.index_heads = reader.integer("indexer_n_heads", 1, kMaxIndexHeads);
  reader.integer("indexer_kv_heads", 1, 1);
  layer.index_dim = reader.integer(kIndexDim, 2, kMaxHeadDim);
  if (layer.index_dim < config.rope.rotary_dim) {
    reader.refuse(kIndexDim, "at least " + std::to_string(config.rope.rotary_dim) + ", what is rotated of a head");
  }
  layer.ratio = reader.integer("indexer_compress_ratio", 1, kMaxIndexRatio);
  const int64_t budget = reader.integer(kBudget, 1, kMaxIndexBudget);
  if (budget % layer.ratio != 0) {
    reader.refuse(kBudget, "a multiple of indexer_compress_ratio, " + std::to_string(layer.ratio));
  }
  layer.index_top_k = budget / layer.ratio;
  config.geometry.compressed.assign(config.geometry.kv.size(), layer);
}

// Only the first of several ends a segment.
int32_t read_separator(const Json& json, const ConfigReader& reader, int64_t vocab) {
  constexpr const char* kKey = "eos_token_id";
  const std::string allowed = "one id, or a list of them, from 0 to " + std::to_string(vocab - 1) +
                              ": n-grams end there, and there are ple_layer_ids";
  if (!reader.has(kKey)) reader.refuse(kKey, allowed);
  const Json& given = json[kKey];
  if (!given.is_array()) return static_cast<int32_t>(reader.integer(kKey, 0, vocab - 1));
  constexpr size_t kMaxIds = 256;
  const std::vector<int64_t> ids = reader.integers(kKey, 0, vocab - 1, kMaxIds);
  if (ids.empty()) reader.refuse(kKey, allowed);
  return static_cast<int32_t>(ids.front());
}

// Layers count from 1 in config.json, and may be named twice.
std::vector<int> read_ngram_layers(const ConfigReader& reader, const Qwen4ExpConfig& config) {
  std::vector<int> layers;
  if (!reader.has("ple_layer_ids")) return layers;
  for (const int64_t id : reader.integers("ple_layer_ids", 1, config.geometry.layers, kMaxLayers)) {
    if (config.is_attention[static_cast<size_t>(id - 1)]) {
      reader.refuse("ple_layer_ids",
                    "numbers, from 1, of layers with linear attention, which " + std::to_string(id) + " is not");
    }
    layers.push_back(static_cast<int>(id - 1));
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

void read_ngrams(const Json& json, const ConfigReader& reader, Qwen4ExpConfig& config) {
  NgramLayers& ngrams = config.ngrams;
  ngrams.layers = read_ngram_layers(reader, config);
  const int64_t hidden = config.geometry.hidden;
  ngrams.hash.vocab = config.geometry.vocab;
  ngrams.hash.size = static_cast<int>(reader.integer("ngram_size", 2, kMaxNgramSize, 3));
  ngrams.hash.heads = reader.integer("heads_per_ngram", 1, kMaxHeadsOfOrder, 8);
  ngrams.hash.table_base = reader.integer("ngram_vocab_size_base", 1, kMaxNgramTableBase, 20'000'000);
  ngrams.hash.rows_multiple = reader.integer("make_ngram_vocab_size_divisible_by", 1, kMaxTableMultiple, 128);
  ngrams.hash.seed = reader.integer("seed", 0, kMaxSeed, 1234);
  ngrams.parts = reader.integer("split_ngram_parts", 1, kMaxTableParts, 512);
  ngrams.width = reader.integer(kNgramWidth, 1, kMaxHidden, hidden);
  ngrams.taps = reader.integer("ple_conv_kernel_size", 1, kMaxConvTaps, 4);
  if (ngrams.layers.empty()) return;
  const int64_t heads = (ngrams.hash.size - 1) * ngrams.hash.heads;
  if (ngrams.width % heads != 0) {
    reader.refuse(kNgramWidth, "a multiple of (ngram_size - 1) * heads_per_ngram, " + std::to_string(heads));
  }
  if (heads * static_cast<int64_t>(ngrams.layers.size()) > kMaxNgramHeads) {
    reader.refuse("ple_layer_ids", "at most " + std::to_string(kMaxNgramHeads / heads) + " layers with " +
                                       std::to_string(heads) + " n-gram heads each");
  }
  ngrams.hash.separator = read_separator(json, reader, config.geometry.vocab);
}

}  // namespace

int64_t Qwen4ExpConfig::ngram_floats() const {
  return NgramAddSpec::history_floats(ngrams.taps, ngrams.hash.size, stream_width()) +
         ngram_state_floats(ngrams.hash.size);
}

int64_t Qwen4ExpConfig::ngram_tokens_begin(int64_t index) const {
  return ngram_begin(index) + NgramAddSpec::history_floats(ngrams.taps, ngrams.hash.size, stream_width());
}

Qwen4ExpConfig read_qwen4_exp_config(const Json& json) {
  const ConfigReader reader(json);
  Qwen4ExpConfig config;
  ModelGeometry& geometry = config.geometry;
  geometry.family = "qwen4_exp";
  reader.text("hidden_act", {"silu"}, "silu");
  config.delta_gate =
      reader.text("output_gate_type", {"sigmoid", "silu"}, "silu") == "silu" ? GateKind::kSilu : GateKind::kSigmoid;
  read_model_shape(reader, {.layers = 40, .hidden = 2048, .vocab = 248320, .max_positions = 32768}, geometry);
  config.norm_eps = static_cast<float>(reader.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  config.tied = reader.boolean("tie_word_embeddings", false);
  config.streams = static_cast<int>(reader.integer("hc_count", kMinStreams, kMaxStreams, 4));
  if (config.stream_width() > kMaxMatrixCols) {
    reader.refuse("hc_count", "at most " + std::to_string(kMaxMatrixCols / geometry.hidden) +
                                  " with a hidden_size of " + std::to_string(geometry.hidden));
  }
  config.stream_rank = reader.integer("hc_lowrank", 1, kMaxRank, 320);
  config.heads = read_heads(reader, geometry.hidden, {.heads = 16, .kv_heads = 2, .head_dim = 256});
  check_gated_heads(reader, config.heads);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.delta =
      read_delta_net(reader, {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4});
  read_expert_shape(reader, {.intermediate = 512, .experts = 512, .top_k = 10}, geometry);
  config.shared_intermediate = reader.integer("shared_expert_intermediate_size", 1, kMaxDenseIntermediate, 512);
  config.renormalize = reader.boolean("norm_topk_prob", true);
  config.rope = read_partial_rope(json, reader, config.heads.head_dim, geometry.max_positions, 1.0);
  read_layers(reader, config);
  read_indexer(reader, config);
  read_ngrams(json, reader, config);
  geometry.state_floats = config.ngram_begin(static_cast<int64_t>(config.ngrams.layers.size()));
  return config;
}

}  // namespace ft
