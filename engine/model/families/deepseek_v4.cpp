// deepseek_v4 (DeepSeek-V4-Flash): residual streams that are mixed, attention to a window and to compressed entries by
// one key that is the value too, experts in every layer (the first ones choose by token id) beside a shared one.
// Source: Hugging Face transformers 5.17, models/deepseek_v4. The authors' own inference also puts cached rows and
// index vectors, turned by a Hadamard matrix, on the grids of FP8 and FP4: backends do, by
// EngineConfig::deepseek_arithmetic. It rounds the inputs of quantized products to FP8 too: not here, where they are
// bf16.
#include <algorithm>
#include <cmath>

#include "engine/model/families/deepseek_v4_config.h"
#include "engine/model/families/list.h"
#include "engine/runtime/backend.h"
#include "kernels/ops/streams.h"

namespace ft {
namespace {

constexpr int kMainRope = 0, kCompressRope = 1;

struct CompressorWeights {
  MatrixId value, logit;
  VectorId bias, norm;
};

struct Layer {
  StreamsSpec attention_site, mlp_site;
  VectorId attention_norm, mlp_norm;
  MatrixId low_query, query, key, low_out, out;
  VectorId query_norm, key_norm, sinks;
  CompressorWeights entries, index;  // index -1 where there is none
  MatrixId index_query, index_weight;
  RouterSpec router;
  SharedExpert shared;
};

class DeepseekV4 final : public Family {
 public:
  explicit DeepseekV4(const Json& json) : config_(read_deepseek_v4_config(json)) {
    const ModelGeometry& g = config_.geometry;
    const std::vector<std::string> embedding = {"model.embed_tokens", "embed", "embed_tokens"};
    table_ = list_.table(with_weight(embedding), g.vocab, g.hidden);
    for (int layer = 0; layer < g.layers; ++layer) layers_.push_back(declare_layer(layer));
    head_site_ = declare_site({"model.hc_head.hc_", "hc_head.hc_", "model.hc_head_", "hc_head_"}, false);
    norm_ = list_.vector({"model.norm.weight", "norm.weight"}, g.hidden);
    const std::vector<std::string> head = {"head", "lm_head"};
    head_ = list_.matrix(config_.tied ? embedding : head, g.vocab, g.hidden, /*keep_bf16=*/true);
    config_.geometry.slot_floats = slot_floats(*this);
  }

  const ModelGeometry& geometry() const override { return config_.geometry; }
  WeightList declare_weights() const override { return list_; }

  int64_t width(Slot slot) const override {
    const ModelGeometry& g = config_.geometry;
    switch (slot) {
      case Slot::kResidual:
        return config_.streams * g.hidden;
      case Slot::kBlockInput:
      case Slot::kBlock:
      case Slot::kRouted:
        return g.hidden;
      case Slot::kStreamLogits:
        return stream_logit_count(config_.streams) + 1;
      case Slot::kStreamFactors:
        return stream_logit_count(config_.streams);
      case Slot::kLowQuery:
        return config_.q_rank;
      case Slot::kQuery:
      case Slot::kAttention:
        return config_.heads.query_width();
      case Slot::kKey:
        return config_.heads.head_dim;
      case Slot::kLowOutput:
        return config_.o_width();
      case Slot::kGate:
      case Slot::kUp:
        return g.expert.intermediate;
      default:
        return widest_of_layers(slot);
    }
  }

  std::vector<RopeTable> make_ropes(int64_t positions) const override {
    return {make_rope_table(config_.main_rope, positions), make_rope_table(config_.compress_rope, positions)};
  }

  void forward(Backend& backend, const ModelWeights&, const StepBatch&) const override {
    backend.embed({.table = table_, .to = Slot::kResidual, .copies = config_.streams});
    for (int layer = 0; layer < config_.geometry.layers; ++layer) {
      const Layer& w = layers_[static_cast<size_t>(layer)];
      backend.streams_read(w.attention_site, Slot::kBlockInput);
      attend(backend, w, layer);
      backend.streams_write(w.attention_site, Slot::kBlock);
      backend.streams_read(w.mlp_site, Slot::kBlockInput);
      backend.moe(moe_of(layer));
      backend.streams_write(w.mlp_site, Slot::kRouted);
    }
    backend.streams_read(head_site_, Slot::kBlockInput);
    backend.logits({Slot::kBlockInput, norm_by(norm_), head_});
  }

 private:
  static std::vector<std::string> with_weight(std::vector<std::string> stems) {
    for (std::string& stem : stems) stem += ".weight";
    return stems;
  }
  // A name of a layer, as transformers and as the published checkpoints call it.
  static std::vector<std::string> names(int layer, const std::string& name) {
    const std::string in_layer = "layers." + std::to_string(layer) + "." + name;
    return {"model." + in_layer, in_layer};
  }
  Norm norm_by(VectorId weight) const { return {weight, config_.norm_eps}; }

  int64_t widest_of_layers(Slot slot) const {
    int64_t widest = 0;
    for (const CompressedLayer& layer : config_.geometry.compressed) {
      int64_t width = 0;
      if (slot == Slot::kEntryValue || slot == Slot::kEntryLogit) width = layer.ratio > 0 ? layer.head_dim : 0;
      if (slot == Slot::kIndexValue || slot == Slot::kIndexLogit) width = layer.index_dim;
      width *= layer.halves();
      if (slot == Slot::kIndexQuery) width = layer.index_heads * layer.index_dim;
      if (slot == Slot::kIndexWeight) width = layer.index_heads;
      widest = std::max(widest, width);
    }
    return widest;
  }

  // Synthetic factors are 0: streams are then read and mixed evenly.
  StreamsSpec declare_site(const std::vector<std::string>& prefixes, bool writes) {
    const int64_t streams = config_.streams, rows = writes ? stream_logit_count(streams) : streams;
    const auto vector = [&](const char* part, int64_t size, std::vector<int64_t> shape, float synthetic) {
      std::vector<std::string> names = prefixes;
      for (std::string& name : names) name += part;
      return list_.vector(names, size, {.shape = std::move(shape), .synthetic = synthetic});
    };
    const int64_t cols = streams * config_.geometry.hidden;
    StreamsSpec site;
    site.streams = config_.streams;
    site.rounds = config_.sinkhorn_rounds;
    site.eps = config_.stream_eps;
    site.norm_eps = config_.norm_eps;
    site.fn = vector("fn", rows * cols, {rows, cols}, 0);
    site.base = vector("base", rows, {}, 0);
    site.scale = vector("scale", writes ? 3 : 1, {}, 1);
    site.writes = writes;
    return site;
  }

  CompressorWeights declare_compressor(int layer, const std::string& name, int64_t dim) {
    const CompressedLayer& shape = config_.layer(layer);
    const int64_t rows = shape.halves() * dim, hidden = config_.geometry.hidden;
    CompressorWeights w;
    w.value = list_.matrix(names(layer, name + "wkv"), rows, hidden, /*keep_bf16=*/true);
    w.logit = list_.matrix(names(layer, name + "wgate"), rows, hidden, /*keep_bf16=*/true);
    w.bias =
        list_.vector(names(layer, name + "ape"), shape.ratio * rows, {.shape = {shape.ratio, rows}, .synthetic = 0});
    w.norm = list_.vector(names(layer, name + "norm.weight"), dim);
    return w;
  }

  void declare_attention(int layer, Layer& w) {
    const int64_t hidden = config_.geometry.hidden, dim = config_.heads.head_dim, width = config_.heads.query_width();
    const CompressedLayer& shape = config_.layer(layer);
    w.attention_norm = list_.vector(names(layer, "attn_norm.weight"), hidden);
    w.low_query = list_.matrix(names(layer, "attn.wq_a"), config_.q_rank, hidden);
    w.query_norm = list_.vector(names(layer, "attn.q_norm.weight"), config_.q_rank);
    w.query = list_.matrix(names(layer, "attn.wq_b"), width, config_.q_rank);
    w.key = list_.matrix(names(layer, "attn.wkv"), dim, hidden);
    std::vector<std::string> key_norm = names(layer, "attn.norm.weight");
    for (const std::string& name : names(layer, "attn.kv_norm.weight")) key_norm.push_back(name);
    w.key_norm = list_.vector(key_norm, dim);
    w.sinks = list_.vector(names(layer, "attn.attn_sink"), config_.heads.heads, {.synthetic = 0});
    w.low_out = list_.matrix(names(layer, "attn.wo_a"), config_.o_width(), width / config_.o_groups);
    w.out = list_.matrix(names(layer, "attn.wo_b"), hidden, config_.o_width());
    if (shape.ratio > 0) w.entries = declare_compressor(layer, "attn.compressor.", dim);
    if (shape.index_dim == 0) return;
    w.index = declare_compressor(layer, "attn.indexer.compressor.", shape.index_dim);
    w.index_query =
        list_.matrix(names(layer, "attn.indexer.wq_b"), shape.index_heads * shape.index_dim, config_.q_rank);
    w.index_weight =
        list_.matrix(names(layer, "attn.indexer.weights_proj"), shape.index_heads, hidden, /*keep_bf16=*/true);
  }

  void declare_mlp(int layer, Layer& w) {
    const ExpertGeometry& expert = config_.geometry.expert;
    w.mlp_norm = list_.vector(names(layer, "ffn_norm.weight"), expert.hidden);
    w.router.norm = norm_by(w.mlp_norm);
    w.router.weight = list_.matrix(names(layer, "ffn.gate"), expert.experts, expert.hidden, /*keep_bf16=*/true);
    w.router.kind = RouterKind::kSqrtSoftplus;
    w.router.scale = config_.routed_scale;
    if (config_.hashed[static_cast<size_t>(layer)]) {
      w.router.by_token =
          list_.index_table(names(layer, "ffn.gate.tid2eid"), config_.geometry.vocab, expert.top_k, expert.experts);
    } else {
      w.router.choice_bias = list_.vector(names(layer, "ffn.gate.bias"), expert.experts, {.synthetic = 0});
    }
    const std::string shared = "ffn.shared_experts.";
    w.shared.gate = list_.matrix(names(layer, shared + "w1"), expert.intermediate, expert.hidden);
    w.shared.up = list_.matrix(names(layer, shared + "w3"), expert.intermediate, expert.hidden);
    w.shared.down = list_.matrix(names(layer, shared + "w2"), expert.hidden, expert.intermediate);
    ExpertLayerSpec experts{names(layer, "ffn.experts.")};
    experts.gate = "w1";
    experts.up = "w3";
    experts.down = "w2";
    list_.expert_layer(std::move(experts));
  }

  Layer declare_layer(int layer) {
    Layer w;
    w.attention_site = declare_site(names(layer, "hc_attn_"), true);
    w.mlp_site = declare_site(names(layer, "hc_ffn_"), true);
    declare_attention(layer, w);
    declare_mlp(layer, w);
    return w;
  }

  // kBlockInput to kBlock.
  void attend(Backend& backend, const Layer& w, int layer) const {
    const CompressedLayer& shape = config_.layer(layer);
    const Norm norm = norm_by(w.attention_norm);
    const Linear low_query{w.low_query, {}, Slot::kLowQuery}, key{w.key, {}, Slot::kKey};
    const Linear value{w.entries.value, {}, Slot::kEntryValue}, logit{w.entries.logit, {}, Slot::kEntryLogit};
    if (shape.index_dim > 0) {
      backend.linear(Slot::kBlockInput, norm,
                     {low_query,
                      key,
                      value,
                      logit,
                      {w.index.value, {}, Slot::kIndexValue},
                      {w.index.logit, {}, Slot::kIndexLogit},
                      {w.index_weight, {}, Slot::kIndexWeight}});
    } else if (shape.ratio > 0) {
      backend.linear(Slot::kBlockInput, norm, {low_query, key, value, logit});
    } else {
      backend.linear(Slot::kBlockInput, norm, {low_query, key});
    }
    backend.norm(Slot::kLowQuery, norm_by(w.query_norm), Slot::kLowQuery);
    backend.norm(Slot::kKey, norm_by(w.key_norm), Slot::kKey);
    const Linear query{w.query, {}, Slot::kQuery};
    if (shape.index_dim > 0) {
      backend.linear(Slot::kLowQuery, {}, {query, {w.index_query, {}, Slot::kIndexQuery}});
    } else {
      backend.linear(Slot::kLowQuery, {}, {query});
    }
    CompressedAttentionSpec spec;
    spec.layer = layer;
    spec.heads = config_.heads.heads;
    spec.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.heads.head_dim)));
    spec.norm_eps = config_.norm_eps;
    spec.rope = shape.ratio > 0 ? kCompressRope : kMainRope;
    spec.sinks = w.sinks;
    spec.entry_bias = w.entries.bias;
    spec.entry_norm = w.entries.norm;
    spec.index_bias = w.index.bias;
    spec.index_norm = w.index.norm;
    backend.compressed_attention(spec);
    backend.grouped_linear(Slot::kAttention, w.low_out, config_.o_groups, Slot::kLowOutput);
    backend.linear(Slot::kLowOutput, {}, {{w.out, {}, Slot::kBlock}});
  }

  // kBlockInput to kRouted.
  MoeSpec moe_of(int layer) const {
    const Layer& w = layers_[static_cast<size_t>(layer)];
    MoeSpec spec;
    spec.moe_layer = layer;
    spec.from = Slot::kBlockInput;
    spec.norm = norm_by(w.mlp_norm);
    spec.router = w.router;
    spec.shared = w.shared;
    if (layer + 1 < config_.geometry.layers) spec.next_router = layers_[static_cast<size_t>(layer) + 1].router;
    spec.to = Slot::kRouted;
    spec.add = false;
    return spec;
  }

  DeepseekV4Config config_;
  WeightList list_;
  TableId table_;
  std::vector<Layer> layers_;
  StreamsSpec head_site_;
  VectorId norm_;
  MatrixId head_;
};

}  // namespace

std::unique_ptr<Family> make_deepseek_v4(const Json& config) { return std::make_unique<DeepseekV4>(config); }

}  // namespace ft
