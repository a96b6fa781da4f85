// Checked against: the published configuration of DeepSeek-V4-Flash, what transformers 5.17 makes of it, limits at the
// bound and one past it, and edited copies of a checkpoint.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "engine/model/families/deepseek_v4_config.h"
#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

// A small valid configuration with some keys replaced; a null in `changes` removes the key.
Json config_with(const char* changes) {
  Json config = Json::parse(R"({"model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 3,
      "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 16, "q_lora_rank": 96,
      "o_lora_rank": 64, "o_groups": 2, "sliding_window": 32, "index_n_heads": 4, "index_head_dim": 32,
      "index_topk": 8, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
      "vocab_size": 320, "max_position_embeddings": 2048, "num_hash_layers": 1, "compress_ratios": [0, 4, 128]})");
  config.merge_patch(Json::parse(changes));
  return config;
}

std::string refusal(const char* changes) {
  return error_of([&] { make_family(config_with(changes))->declare_weights(); });
}

DeepseekV4Config read(const char* changes) { return read_deepseek_v4_config(config_with(changes)); }

}  // namespace

TEST_CASE("the published configuration of DeepSeek-V4-Flash") {
  Json config = Json::parse(R"({"model_type": "deepseek_v4", "vocab_size": 129280, "hidden_size": 4096,
      "moe_intermediate_size": 2048, "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1,
      "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024,
      "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 256,
      "num_experts_per_tok": 6, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": true,
      "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "num_hash_layers": 3, "hc_mult": 4, "hc_sinkhorn_iters": 20,
      "hc_eps": 1e-06, "rms_norm_eps": 1e-06, "rope_theta": 10000, "compress_rope_theta": 160000,
      "max_position_embeddings": 1048576, "tie_word_embeddings": false, "hidden_act": "silu",
      "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                       "beta_slow": 1}})");
  std::vector<int> ratios = {0, 0};
  for (int layer = 2; layer < 43; ++layer) ratios.push_back(layer % 2 == 0 ? 4 : 128);
  ratios.push_back(0);  // of the draft layer
  config["compress_ratios"] = ratios;
  const auto family = make_family(config);
  const ModelGeometry& g = family->geometry();
  CHECK(g.layers == 43);
  CHECK(g.moe_layers.size() == 43);
  CHECK(g.kv.empty());
  CHECK(g.expert.form.glu == Glu{GluKind::kSiluClamped, 10});
  CHECK(g.compressed[1] == CompressedLayer{.head_dim = 512, .window = 128});
  CHECK(g.compressed[2] == CompressedLayer{.head_dim = 512,
                                           .window = 128,
                                           .ratio = 4,
                                           .overlap = true,
                                           .index_dim = 128,
                                           .index_heads = 64,
                                           .index_top_k = 512});
  CHECK(g.compressed[3] == CompressedLayer{.head_dim = 512, .window = 128, .ratio = 128});
  CHECK(g.compressed[42].ratio == 4);
  CHECK(g.widest_heads == 32768);
  CHECK(family->width(Slot::kResidual) == 16384);
  CHECK(family->width(Slot::kEntryValue) == 1024);
  CHECK(family->width(Slot::kIndexLogit) == 256);
  CHECK(family->width(Slot::kIndexQuery) == 8192);
  CHECK(family->width(Slot::kStreamFactors) == 24);
  const DeepseekV4Config c = read_deepseek_v4_config(config);
  CHECK(!c.main_rope.yarn);
  CHECK(c.main_rope.theta == 10000);
  REQUIRE(c.compress_rope.yarn);
  CHECK(c.compress_rope.theta == 160000);
  CHECK(c.compress_rope.yarn->factor == 16);
  CHECK(c.compress_rope.yarn->original_positions == 65536);
  CHECK(c.compress_rope.yarn->attention_factor == 1);  // although yarn's own would be 1.277
  CHECK(std::accumulate(c.hashed.begin(), c.hashed.end(), 0) == 3);
  CHECK(c.hashed[2]);
  const WeightList list = family->declare_weights();
  CHECK(list.index_tables.size() == 3);
  CHECK(list.index_tables[2].limit == 256);
  CHECK(list.tables[0].names ==
        std::vector<std::string>{"model.embed_tokens.weight", "embed.weight", "embed_tokens.weight"});
  std::set<std::string> stems;
  for (const MatrixSpec& matrix : list.matrices) stems.insert(matrix.stems.back());
  CHECK(stems.count("layers.2.attn.indexer.wq_b") == 1);
  CHECK(stems.count("layers.3.attn.compressor.wgate") == 1);
  CHECK(stems.count("layers.3.attn.indexer.wq_b") == 0);
  CHECK(stems.count("layers.1.attn.compressor.wkv") == 0);
}

TEST_CASE("transformers' keys and the published ones give the same") {
  const DeepseekV4Config flat = read(R"({"num_hash_layers": 2, "rope_scaling": {"type": "yarn", "factor": 4,
      "original_max_position_embeddings": 64}})");
  const DeepseekV4Config nested = read(R"({"num_hash_layers": null, "compress_ratios": null, "qk_rope_head_dim": null,
      "partial_rotary_factor": 0.25,
      "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
      "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
      "mlp_layer_types": ["hash_moe", "hash_moe", "moe"],
      "rope_parameters": {"main": {"rope_type": "default", "rope_theta": 10000},
                          "compress": {"rope_type": "yarn", "rope_theta": 160000, "factor": 4,
                                       "original_max_position_embeddings": 64, "attention_factor": 1.277}}})");
  CHECK(flat.attention == nested.attention);
  CHECK(flat.hashed == nested.hashed);
  CHECK(flat.geometry.compressed == nested.geometry.compressed);
  CHECK(make_rope_table(flat.main_rope, 40).cos == make_rope_table(nested.main_rope, 40).cos);
  CHECK(make_rope_table(flat.compress_rope, 40).sin == make_rope_table(nested.compress_rope, 40).sin);
  CHECK(make_rope_table(flat.main_rope, 40).sin != make_rope_table(flat.compress_rope, 40).sin);
  // rope_parameters without main and compress is the compressed layers', whose theta is its own.
  const DeepseekV4Config one = read(R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000, "factor": 4,
      "original_max_position_embeddings": 64}})");
  CHECK(make_rope_table(one.compress_rope, 40).sin == make_rope_table(flat.compress_rope, 40).sin);
  CHECK(make_rope_table(one.main_rope, 40).sin == make_rope_table(flat.main_rope, 40).sin);
}

TEST_CASE("rates of their own: a ratio of 16, and layers of one kind only") {
  const DeepseekV4Config c = read(R"({"layer_types": ["heavily_compressed_attention", "sliding_attention",
      "heavily_compressed_attention"], "compress_rates": {"heavily_compressed_attention": 16}})");
  CHECK(c.layer(0).ratio == 16);
  CHECK(c.layer(0).index_dim == 0);
  const auto family = make_family(config_with(R"({"compress_ratios": [0, 0, 0]})"));
  CHECK(family->width(Slot::kEntryValue) == 0);
  CHECK(family->width(Slot::kIndexQuery) == 0);
}

TEST_CASE("every number is refused one past its bound, with its key, value and what is allowed") {
  struct Bound {
    const char* at;
    const char* past;
    const char* key;
  };
  const Bound bounds[] = {
      {R"({"num_attention_heads": 1024, "head_dim": 32, "qk_rope_head_dim": 16})",
       R"({"num_attention_heads": 1025, "head_dim": 32})", "num_attention_heads"},
      {R"({"head_dim": 512})", R"({"head_dim": 514})", "head_dim"},
      {R"({"num_key_value_heads": 1})", R"({"num_key_value_heads": 2})", "num_key_value_heads"},
      {R"({"qk_rope_head_dim": 2})", R"({"qk_rope_head_dim": 1})", "qk_rope_head_dim"},
      {R"({"qk_rope_head_dim": 32})", R"({"qk_rope_head_dim": 66})", "qk_rope_head_dim"},
      {R"({"qk_rope_head_dim": 16})", R"({"qk_rope_head_dim": 15})", "qk_rope_head_dim"},
      {R"({"index_head_dim": 16})", R"({"index_head_dim": 15})", "index_head_dim"},
      {R"({"index_head_dim": 512})", R"({"index_head_dim": 513})", "index_head_dim"},
      {R"({"index_n_heads": 1})", R"({"index_n_heads": 0})", "index_n_heads"},
      {R"({"index_n_heads": 1024})", R"({"index_n_heads": 1025})", "index_n_heads"},
      {R"({"index_topk": 1})", R"({"index_topk": 0})", "index_topk"},
      {R"({"index_topk": 1048576})", R"({"index_topk": 1048577})", "index_topk"},
      {R"({"q_lora_rank": 1})", R"({"q_lora_rank": 0})", "q_lora_rank"},
      {R"({"q_lora_rank": 65536})", R"({"q_lora_rank": 65537})", "q_lora_rank"},
      {R"({"o_lora_rank": 4})", R"({"o_lora_rank": 2})", "o_lora_rank"},
      {R"({"o_lora_rank": 65536})", R"({"o_lora_rank": 65540})", "o_lora_rank"},
      {R"({"o_groups": 4})", R"({"o_groups": 3})", "o_groups"},
      {R"({"o_groups": 1})", R"({"o_groups": 0})", "o_groups"},
      {R"({"sliding_window": 1})", R"({"sliding_window": 0})", "sliding_window"},
      {R"({"sliding_window": 16777216})", R"({"sliding_window": 16777217})", "sliding_window"},
      {R"({"n_routed_experts": 3})", R"({"n_routed_experts": 2})", "num_experts_per_tok"},
      {R"({"n_routed_experts": 4096})", R"({"n_routed_experts": 4097})", "n_routed_experts"},
      {R"({"n_shared_experts": 1})", R"({"n_shared_experts": 2})", "n_shared_experts"},
      {R"({"swiglu_limit": 0.001})", R"({"swiglu_limit": 0.0009})", "swiglu_limit"},
      {R"({"swiglu_limit": 1e6})", R"({"swiglu_limit": 1.1e6})", "swiglu_limit"},
      {R"({"routed_scaling_factor": 10000})", R"({"routed_scaling_factor": 10001})", "routed_scaling_factor"},
      {R"({"num_hash_layers": 0})", R"({"num_hash_layers": -1})", "num_hash_layers"},
      {R"({"hc_mult": 8})", R"({"hc_mult": 9})", "hc_mult"},
      {R"({"hc_mult": 1})", R"({"hc_mult": 0})", "hc_mult"},
      {R"({"hc_sinkhorn_iters": 1})", R"({"hc_sinkhorn_iters": 0})", "hc_sinkhorn_iters"},
      {R"({"hc_sinkhorn_iters": 1000})", R"({"hc_sinkhorn_iters": 1001})", "hc_sinkhorn_iters"},
      {R"({"hc_eps": 0})", R"({"hc_eps": -1e-9})", "hc_eps"},
      {R"({"hc_eps": 0.1})", R"({"hc_eps": 0.11})", "hc_eps"},
      {R"({"rms_norm_eps": 0.1})", R"({"rms_norm_eps": 0.11})", "rms_norm_eps"},
      {R"({"rope_theta": 2})", R"({"rope_theta": 1.9})", "rope_theta"},
      {R"({"compress_rope_theta": 2})", R"({"compress_rope_theta": 1.9})", "compress_rope_theta"},
      {R"({"compress_ratios": [0, 4, 128]})", R"({"compress_ratios": [0, 4, 129]})", "compress_ratios"},
      {R"({"compress_ratios": [0, 4, 128]})", R"({"compress_ratios": [0, 4, 16]})", "compress_ratios"},
      {R"({"compress_ratios": [0, 4, 128, 0]})", R"({"compress_ratios": [0, 4]})", "compress_ratios"},
      {R"({"layer_types": ["sliding_attention", "sliding_attention", "heavily_compressed_attention"],
           "compress_rates": {"heavily_compressed_attention": 4096}})",
       R"({"layer_types": ["sliding_attention", "sliding_attention", "heavily_compressed_attention"],
           "compress_rates": {"heavily_compressed_attention": 4097}})",
       "compress_rates.heavily_compressed_attention"},
      {R"({"mlp_layer_types": ["moe", "moe", "hash_moe"]})", R"({"mlp_layer_types": ["moe", "hash_moe"]})",
       "mlp_layer_types"},
  };
  for (const Bound& bound : bounds) {
    CAPTURE(bound.past);
    CHECK(refusal(bound.at) == "no error");
    CHECK(mentions(refusal(bound.past), {"config.json refused", bound.key, "allowed"}));
  }
}

TEST_CASE("what this engine does not compute for the family is refused by name") {
  CHECK(mentions(refusal(R"({"scoring_func": "sigmoid"})"), {"scoring_func", "sigmoid", "sqrtsoftplus"}));
  CHECK(mentions(refusal(R"({"hidden_act": "gelu"})"), {"hidden_act", "gelu"}));
  CHECK(mentions(refusal(R"({"attention_bias": true})"), {"attention_bias"}));
  CHECK(mentions(refusal(R"({"mlp_bias": true})"), {"mlp_bias"}));
  CHECK(mentions(refusal(R"({"mlp_layer_types": ["moe", "dense", "moe"]})"), {"mlp_layer_types", "dense"}));
  CHECK(mentions(refusal(R"({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})"),
                 {"layer_types", "full_attention"}));
  CHECK(mentions(refusal(R"({"compress_ratios": null})"), {"compress_ratios"}));
  CHECK(mentions(refusal(R"({"rope_scaling": {"type": "linear"}})"), {"rope_scaling.type", "linear"}));
}

TEST_CASE("a tensor that is absent, of another shape, or holds what cannot be, is named") {
  EditableModel model = read_model(golden_folder("deepseek_v4.published"));
  const auto loading_error = [&] {
    const TempFolder folder;
    model.write(folder);
    return error_of([&] { load(folder.path()); });
  };
  CHECK(loading_error() == "no error");
  for (const char* name : {"layers.0.ffn.gate.tid2eid", "layers.2.ffn.gate.bias", "layers.0.hc_attn_fn", "hc_head_base",
                           "layers.2.attn.compressor.ape", "layers.3.attn.indexer.compressor.norm.weight",
                           "layers.1.attn.kv_norm.weight", "layers.1.attn.attn_sink", "head.weight", "embed.weight",
                           "layers.1.attn.wo_a.weight", "layers.1.attn.indexer.weights_proj.weight"}) {
    CAPTURE(name);
    const DiskTensor kept = model.tensors.at(name);
    model.tensors.erase(name);
    CHECK(mentions(loading_error(), {"lacks a tensor", name}));
    model.tensors[name] = kept;
  }
  DiskTensor& fn = model.tensors.at("layers.0.hc_attn_fn");
  CHECK(fn.shape == std::vector<int64_t>{15, 96});
  fn.shape = {96, 15};
  CHECK(mentions(loading_error(), {"layers.0.hc_attn_fn", "[96, 15]", "[15, 96]"}));
  fn.shape = {15, 96};
  DiskTensor& table = model.tensors.at("layers.0.ffn.gate.tid2eid");
  for (const int64_t value : {int64_t{4}, int64_t{-1}, int64_t{1} << 32}) {
    const DiskTensor kept = table;
    std::memcpy(table.bytes.data() + 7 * sizeof value, &value, sizeof value);
    CHECK(mentions(loading_error(), {"layers.0.ffn.gate.tid2eid", "row 3", std::to_string(value).c_str(), "0 to 3"}));
    table = kept;
  }
  table.dtype = "F64";
  CHECK(mentions(loading_error(), {"layers.0.ffn.gate.tid2eid", "F64", "I64 [160, 2]"}));
}

TEST_CASE("transformers' names are read like the published ones") {
  EditableModel model = read_model(golden_folder("deepseek_v4.published"));
  DiskTensors renamed;
  for (const auto& [name, tensor] : model.tensors) {
    std::string other = name == "head.weight" ? name : "model." + name;
    for (const auto& [from, to] : {std::pair<const char*, const char*>{"hc_head_", "hc_head.hc_"},
                                   {"attn.kv_norm.", "attn.norm."},
                                   {"model.embed.", "model.embed_tokens."}}) {
      if (const size_t at = other.find(from); at != std::string::npos) other.replace(at, std::strlen(from), to);
    }
    renamed[other] = tensor;
  }
  const TempFolder published, own;
  model.write(published);
  model.tensors = renamed;
  model.write(own);
  const auto a = load(published.path()), b = load(own.path());
  REQUIRE(a->vectors.size() == b->vectors.size());
  for (size_t i = 0; i < a->vectors.size(); ++i) {
    CHECK(std::equal(a->vectors[i].begin(), a->vectors[i].end(), b->vectors[i].begin(), b->vectors[i].end()));
  }
  CHECK(std::memcmp(a->bank.bytes().data(), b->bank.bytes().data(), a->bank.bytes().size()) == 0);
  const IndexTable &x = a->index_tables.at(0), &y = b->index_tables.at(0);
  CHECK(std::equal(x.rows, x.rows + x.count * x.width, y.rows));
}

TEST_CASE("synthetic tables of experts name distinct ones within their limit, the same for a seed") {
  const TempFolder folder;
  folder.write("config.json", config_with("{}").dump());
  const auto family = family_of(folder.path());
  WorkerPool pool(WorkerPoolOptions{.threads = 2, .cpus = {}});
  WeightSource source;
  source.model_path = folder.path();
  source.synthetic = true;
  const auto a = load_weights(*family, source, pool), b = load_weights(*family, source, pool);
  const IndexTable &x = a->index_tables.at(0), &y = b->index_tables.at(0);
  CHECK(std::equal(x.rows, x.rows + x.count * x.width, y.rows));
  std::set<int32_t> used;
  for (int64_t row = 0; row < x.count; ++row) {
    const std::set<int32_t> distinct(x.row(row), x.row(row) + x.width);
    CHECK(distinct.size() == 3);
    used.insert(distinct.begin(), distinct.end());
  }
  CHECK(*used.begin() == 0);
  CHECK(*used.rbegin() == 7);
  CHECK(used.size() == 8);
}
