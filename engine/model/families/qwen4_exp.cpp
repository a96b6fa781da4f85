// qwen4_exp (Qwen3.8): gated delta nets, and every few layers gated attention to blocks of tokens that an indexer
// chooses, around residual streams that sites read through low-rank gates; hashed embeddings of n-grams in a few
// layers; experts with a shared one beside them. The streams' norms stand in for those of the blocks and of the head,
// and norms store their weights as offsets from 1, but for the one inside a delta net.
// Source: Hugging Face transformers 5.17, models/qwen4_exp.
#include <algorithm>

#include "engine/model/families/delta_net.h"
#include "engine/model/families/list.h"
#include "engine/model/families/qwen4_exp_config.h"
#include "engine/model/families/qwen_blocks.h"

namespace ft {
namespace {

struct NgramWeights {
  NgramEmbedSpec embed;
  MatrixId key, value;
  NgramAddSpec add;
};

struct Layer {
  StreamsSpec mixer_site, moe_site;
  int kv_layer = -1;     // of an attention
  int state_layer = -1;  // of a delta net
  int ngrams = -1;       // index among layers that have them
  GatedAttentionWeights attention;
  BlockIndexSpec index;
  DeltaNetWeights delta;
  SharedMoeWeights moe;
};

class Qwen4Exp final : public Family {
 public:
  explicit Qwen4Exp(const Json& json) : config_(read_qwen4_exp_config(json)) {
    const ModelGeometry& g = config_.geometry;
    const auto tables = static_cast<int64_t>(config_.ngrams.layers.size());
    if (tables > 0) hashes_ = NgramHash::tables(config_.ngrams.hash, tables);
    table_ = list_.table(text_names("embed_tokens.weight"), g.vocab, g.hidden);
    int attentions = 0, nets = 0;
    for (int layer = 0; layer < g.layers; ++layer) {
      const bool attends = config_.is_attention[static_cast<size_t>(layer)];
      layers_.push_back(declare_layer(layer, attends ? attentions++ : nets++));
    }
    head_site_ = declare_site("hyper_connection_mixer.", false);
    head_ = list_.matrix(config_.tied ? text_names("embed_tokens") : std::vector<std::string>{"lm_head"}, g.vocab,
                         g.hidden, /*keep_bf16=*/true);
    config_.geometry.slot_floats = slot_floats(*this);
  }

  const ModelGeometry& geometry() const override { return config_.geometry; }
  WeightList declare_weights() const override { return list_; }

  int64_t width(Slot slot) const override {
    const bool attends = !config_.geometry.kv.empty(), recurs = config_.nets() > 0;
    const int64_t of_net = recurs ? delta_net_width(config_.delta, slot) : 0;
    const int64_t ngrams = config_.ngrams.layers.empty() ? 0 : 1;
    switch (slot) {
      case Slot::kResidual:
      case Slot::kStreamNormed:
      case Slot::kStreamGate:
        return config_.stream_width();
      case Slot::kStreamLow:
        return config_.stream_rank;
      case Slot::kStreamFactors:
        return config_.streams;
      case Slot::kBlockInput:
      case Slot::kBlock:
      case Slot::kRouted:
        return config_.geometry.hidden;
      case Slot::kNgram:
        return ngrams * config_.ngrams.width;
      case Slot::kNgramKey:
        return ngrams * config_.stream_width();
      case Slot::kNgramValue:
        return ngrams * config_.geometry.hidden;
      case Slot::kIndexQuery:
        return attends ? index_rows() : 0;
      default:
        return block_slot_width(slot, attends, config_.heads, config_.shared_intermediate, of_net);
    }
  }

  std::vector<RopeTable> make_ropes(int64_t positions) const override {
    return {make_rope_table(config_.rope, positions)};
  }

  void forward(Backend& backend, const ModelWeights&, const StepBatch&) const override {
    const BlockSite block{.from = Slot::kBlockInput, .to = Slot::kBlock, .add = false};
    backend.embed({.table = table_, .to = Slot::kResidual, .copies = config_.streams});
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      if (layer.ngrams >= 0) apply_ngrams(backend, ngrams_[static_cast<size_t>(layer.ngrams)]);
      backend.streams_read(layer.mixer_site, Slot::kBlockInput);
      if (layer.kv_layer >= 0) {
        apply_gated_attention(backend, layer.attention, config_.heads, layer.kv_layer, block, config_.norm_eps,
                              layer.index);
      } else {
        apply_delta_net(backend, layer.delta, config_.delta, layer.state_layer, block, config_.norm_eps,
                        config_.delta_gate);
      }
      backend.streams_write(layer.mixer_site, Slot::kBlock);
      backend.streams_read(layer.moe_site, Slot::kBlockInput);
      backend.moe(moe_of(i));
      backend.streams_write(layer.moe_site, Slot::kRouted);
    }
    backend.streams_read(head_site_, Slot::kBlockInput);
    backend.logits({.from = Slot::kBlockInput, .head = head_});
  }

 private:
  int64_t index_rows() const {
    const CompressedLayer& layer = config_.geometry.compressed.front();
    return (layer.index_heads + 1) * layer.index_dim;
  }

  // `prefix` is of text_names. Synthetic gates are those of random products.
  StreamsSpec declare_site(const std::string& prefix, bool writes) {
    const int64_t width = config_.stream_width(), rank = config_.stream_rank;
    StreamsSpec site;
    site.kind = StreamsKind::kGated;
    site.streams = config_.streams;
    site.writes = writes;
    site.norm_eps = config_.norm_eps;
    site.norm = zero_centred(list_, text_names(prefix + "hc_norm.weight"), width);
    site.down = list_.matrix(text_names(prefix + "input_mix_weight_down"), rank, width, /*keep_bf16=*/true);
    site.up = list_.matrix(text_names(prefix + "input_mix_weight_up"), width, rank, /*keep_bf16=*/true);
    if (writes) {
      site.write = list_.matrix(text_names(prefix + "block_inject_weight"), config_.streams, width, /*keep_bf16=*/true);
    }
    return site;
  }

  void declare_ngrams(const std::string& prefix, int index) {
    const NgramHash& hash = hashes_[static_cast<size_t>(index)];
    const NgramLayers& shape = config_.ngrams;
    const int64_t width = config_.stream_width(), hidden = config_.geometry.hidden;
    const std::string embedding = prefix + "ple_embedding.";
    list_.known_integers(text_names(embedding + "layer_multipliers"), hash.multipliers());
    list_.known_integers(text_names(embedding + "ngram_heads_vocab_sizes"), hash.primes());
    list_.known_integers(text_names(embedding + "ngram_heads_offsets"), hash.offsets());
    RowTableSpec table{text_names(embedding + "ngram_embedding."), hash.rows(), shape.head_width()};
    table.parts = table.rows % shape.parts == 0 ? shape.parts : 1;
    table.rows_per_token = hash.heads();
    NgramWeights weights;
    weights.embed = {list_.row_table(std::move(table)), &hash, config_.ngram_tokens_begin(index)};
    weights.key = list_.matrix(text_names(prefix + "key_proj"), width, shape.width, /*keep_bf16=*/true);
    weights.value = list_.matrix(text_names(prefix + "value_proj"), hidden, shape.width, /*keep_bf16=*/true);
    NgramAddSpec& add = weights.add;
    add.streams = config_.streams;
    add.norm_eps = config_.norm_eps;
    add.key_norm = zero_centred(list_, text_names(prefix + "norm_key.weight"), width);
    add.query_norm = zero_centred(list_, text_names(prefix + "norm_query.weight"), width);
    add.conv_norm = zero_centred(list_, text_names(prefix + "norm_conv.weight"), width);
    add.taps = shape.taps;
    add.dilation = shape.hash.size;
    add.conv =
        list_.vector(text_names(prefix + "conv1d.weight"), width * add.taps,
                     {.shape = {width, 1, add.taps}, .transpose = true, .synthetic = 1 / static_cast<float>(add.taps)});
    add.state_begin = config_.ngram_begin(index);
    ngrams_.push_back(weights);
  }

  // kind_index: of the layer among attentions, or among delta nets.
  Layer declare_layer(int index, int kind_index) {
    const ModelGeometry& g = config_.geometry;
    const std::string prefix = "layers." + std::to_string(index) + ".";
    Layer layer;
    const std::vector<int>& with_ngrams = config_.ngrams.layers;
    if (std::find(with_ngrams.begin(), with_ngrams.end(), index) != with_ngrams.end()) {
      layer.ngrams = static_cast<int>(ngrams_.size());
      declare_ngrams(prefix + "ple.", layer.ngrams);
    }
    layer.mixer_site = declare_site(prefix + "attn_hyper_connection.", true);
    if (config_.is_attention[static_cast<size_t>(index)]) {
      const std::string attention = prefix + "self_attn.", indexer = attention + "indexer.";
      const int64_t index_dim = g.compressed.front().index_dim;
      layer.kv_layer = layer.index.layer = kind_index;
      layer.attention = declare_gated_attention(list_, attention, config_.heads, g.hidden, config_.attention_bias);
      layer.attention.index =
          list_.matrix(text_names(indexer + "index_qk_proj"), index_rows(), g.hidden, /*keep_bf16=*/true);
      layer.index.query_norm = zero_centred(list_, text_names(indexer + "q_layernorm.weight"), index_dim);
      layer.index.entry_norm = zero_centred(list_, text_names(indexer + "k_layernorm.weight"), index_dim);
    } else {
      layer.state_layer = kind_index;
      layer.delta = declare_delta_net(list_, text_names(prefix + "linear_attn."), config_.delta, g.hidden);
    }
    layer.moe_site = declare_site(prefix + "mlp_hyper_connection.", true);
    layer.moe = declare_shared_moe(list_, prefix + "mlp.", g.expert, config_.shared_intermediate);
    return layer;
  }

  static void apply_ngrams(Backend& backend, const NgramWeights& weights) {
    backend.embed_ngrams(weights.embed);
    backend.linear(Slot::kNgram, {}, {{weights.key, {}, Slot::kNgramKey}, {weights.value, {}, Slot::kNgramValue}});
    backend.add_ngrams(weights.add);
  }

  // kBlockInput to kRouted.
  MoeSpec moe_of(size_t index) const {
    const auto router_of = [&](size_t layer) {
      return RouterSpec{.weight = layers_[layer].moe.router, .renormalize = config_.renormalize};
    };
    MoeSpec spec;
    spec.moe_layer = static_cast<int>(index);
    spec.from = Slot::kBlockInput;
    spec.router = router_of(index);
    spec.shared = layers_[index].moe.shared;
    if (index + 1 < layers_.size()) spec.next_router = router_of(index + 1);
    spec.to = Slot::kRouted;
    spec.add = false;
    return spec;
  }

  Qwen4ExpConfig config_;
  std::vector<NgramHash> hashes_;  // of the n-gram layers; their specs point to them
  WeightList list_;
  TableId table_;
  std::vector<NgramWeights> ngrams_;
  std::vector<Layer> layers_;
  StreamsSpec head_site_;
  MatrixId head_;
};

}  // namespace

std::unique_ptr<Family> make_qwen4_exp(const Json& config) { return std::make_unique<Qwen4Exp>(config); }

}  // namespace ft
