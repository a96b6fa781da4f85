// Checked against: the published configuration of Qwen3.8-Flash-Next, what transformers 5.17 makes of a configuration,
// limits at the bound and one past it, edited copies of a checkpoint. (Hashes of n-grams: ngram_hash_test.cpp.)
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/model/families/qwen4_exp_config.h"
#include "engine/model/family.h"
#include "engine/model/row_table.h"
#include "engine/runtime/backend.h"
#include "kernels/base/fp_codes.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

Json config_with(const char* changes) {
  return config_of(R"({"model_type": "qwen4_exp_text", "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "moe_intermediate_size": 32,
      "shared_expert_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3, "vocab_size": 320,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
      "max_position_embeddings": 2048, "hc_count": 4, "hc_lowrank": 16, "indexer_n_heads": 4, "indexer_kv_heads": 1,
      "indexer_head_dim": 64, "indexer_budget": 32, "indexer_compress_ratio": 4, "ngram_size": 3,
      "heads_per_ngram": 2, "ngram_vocab_size_base": 500, "make_ngram_vocab_size_divisible_by": 16,
      "split_ngram_parts": 4, "ple_layer_ids": [2], "eos_token_id": 2})",
                   changes);
}

std::string refusal(const char* changes) { return refusal_of(config_with(changes)); }
Qwen4ExpConfig read(const char* changes) { return read_qwen4_exp_config(config_with(changes)); }

// What a forward pass asks for, in order.
class Recorder final : public Backend {
 public:
  void embed(const EmbedSpec& spec) override { calls += 'E', copies = spec.copies; }
  void linear(Slot, const Norm&, std::initializer_list<Linear>) override {}
  void linear_add(Slot, const Linear&) override { calls += '+'; }
  void attention(const AttentionSpec& spec) override { calls += 'A', attentions.push_back(spec); }
  void glu(const GluSpec&) override {}
  void moe(const MoeSpec& spec) override { calls += 'M', moes.push_back(spec); }
  void logits(const LogitsSpec& spec) override { calls += 'L', head_norm = spec.norm.weight; }
  void delta_net(const DeltaNetSpec& spec) override { calls += 'D', nets.push_back(spec); }
  void streams_read(const StreamsSpec& spec, Slot) override { calls += spec.writes ? 'r' : 'h', sites.push_back(spec); }
  void streams_write(const StreamsSpec&, Slot) override { calls += 'w'; }
  void embed_ngrams(const NgramEmbedSpec& spec) override { calls += 'n', embeds.push_back(spec); }
  void add_ngrams(const NgramAddSpec& spec) override { calls += 'N', adds.push_back(spec); }
  std::string calls;
  int copies = 0;
  VectorId head_norm;
  std::vector<AttentionSpec> attentions;
  std::vector<DeltaNetSpec> nets;
  std::vector<MoeSpec> moes;
  std::vector<StreamsSpec> sites;
  std::vector<NgramEmbedSpec> embeds;
  std::vector<NgramAddSpec> adds;
};

Recorder forward(const Family& family) {
  Recorder recorder;
  family.forward(recorder, ModelWeights{}, StepBatch{});
  return recorder;
}

struct Bound {
  const char* at;
  const char* past;
  const char* key;
};
const Bound kBounds[] = {
    {R"({"hc_count": 2})", R"({"hc_count": 1})", "hc_count"},
    {R"({"hc_count": 8})", R"({"hc_count": 9})", "hc_count"},
    {R"({"hidden_size": 65536, "hc_count": 4})", R"({"hidden_size": 65537, "hc_count": 4})", "hc_count"},
    {R"({"hc_lowrank": 1})", R"({"hc_lowrank": 0})", "hc_lowrank"},
    {R"({"hc_lowrank": 65536})", R"({"hc_lowrank": 65537})", "hc_lowrank"},
    {R"({"indexer_n_heads": 1})", R"({"indexer_n_heads": 0})", "indexer_n_heads"},
    {R"({"indexer_n_heads": 1024})", R"({"indexer_n_heads": 1025})", "indexer_n_heads"},
    {R"({"indexer_n_heads": 4})", R"({"indexer_n_heads": null})", "indexer_n_heads"},
    {R"({"indexer_kv_heads": 1})", R"({"indexer_kv_heads": 2})", "indexer_kv_heads"},
    {R"({"indexer_kv_heads": 1})", R"({"indexer_kv_heads": null})", "indexer_kv_heads"},
    {R"({"indexer_head_dim": 64})", R"({"indexer_head_dim": 63})", "indexer_head_dim"},
    {R"({"indexer_head_dim": 16, "partial_rotary_factor": 0.25})",
     R"({"indexer_head_dim": 15, "partial_rotary_factor": 0.25})", "indexer_head_dim"},
    {R"({"indexer_head_dim": 512})", R"({"indexer_head_dim": 513})", "indexer_head_dim"},
    {R"({"indexer_compress_ratio": 1})", R"({"indexer_compress_ratio": 0})", "indexer_compress_ratio"},
    {R"({"indexer_compress_ratio": 4096, "indexer_budget": 8192})",
     R"({"indexer_compress_ratio": 4097, "indexer_budget": 8194})", "indexer_compress_ratio"},
    {R"({"indexer_budget": 4})", R"({"indexer_budget": 6})", "indexer_budget"},
    {R"({"indexer_budget": 16777216})", R"({"indexer_budget": 16777220})", "indexer_budget"},
    {R"({"ngram_size": 2})", R"({"ngram_size": 1})", "ngram_size"},
    {R"({"ngram_size": 16, "ple_embed_dim": 30})", R"({"ngram_size": 17, "ple_embed_dim": 32})", "ngram_size"},
    {R"({"heads_per_ngram": 1})", R"({"heads_per_ngram": 0})", "heads_per_ngram"},
    {R"({"heads_per_ngram": 256, "ple_embed_dim": 512})", R"({"heads_per_ngram": 257, "ple_embed_dim": 514})",
     "heads_per_ngram"},
    {R"({"ngram_vocab_size_base": 1})", R"({"ngram_vocab_size_base": 0})", "ngram_vocab_size_base"},
    {R"({"ngram_vocab_size_base": 2147483648})", R"({"ngram_vocab_size_base": 2147483649})", "ngram_vocab_size_base"},
    {R"({"make_ngram_vocab_size_divisible_by": 1, "split_ngram_parts": 1})",
     R"({"make_ngram_vocab_size_divisible_by": 0})", "make_ngram_vocab_size_divisible_by"},
    {R"({"make_ngram_vocab_size_divisible_by": 1048576})", R"({"make_ngram_vocab_size_divisible_by": 1048577})",
     "make_ngram_vocab_size_divisible_by"},
    {R"({"split_ngram_parts": 1})", R"({"split_ngram_parts": 0})", "split_ngram_parts"},
    {R"({"split_ngram_parts": 65536})", R"({"split_ngram_parts": 65537})", "split_ngram_parts"},
    {R"({"seed": 0})", R"({"seed": -1})", "seed"},
    {R"({"seed": 4611686018427387904})", R"({"seed": 4611686018427387905})", "seed"},
    {R"({"ple_layer_ids": [1, 2, 3]})", R"({"ple_layer_ids": [1, 2, 4]})", "ple_layer_ids"},
    {R"({"ple_layer_ids": [1]})", R"({"ple_layer_ids": [0]})", "ple_layer_ids"},
    {R"({"ple_layer_ids": [1], "ngram_size": 16, "heads_per_ngram": 256, "ple_embed_dim": 3840})",
     R"({"ple_layer_ids": [1, 2], "ngram_size": 16, "heads_per_ngram": 256, "ple_embed_dim": 3840})", "ple_layer_ids"},
    {R"({"ple_layer_ids": [3]})", R"({"ple_layer_ids": [5]})", "ple_layer_ids"},
    {R"({"ple_embed_dim": 4})", R"({"ple_embed_dim": 6})", "ple_embed_dim"},
    {R"({"ple_embed_dim": 131072})", R"({"ple_embed_dim": 131076})", "ple_embed_dim"},
    {R"({"ple_conv_kernel_size": 1})", R"({"ple_conv_kernel_size": 0})", "ple_conv_kernel_size"},
    {R"({"ple_conv_kernel_size": 8})", R"({"ple_conv_kernel_size": 9})", "ple_conv_kernel_size"},
    {R"({"eos_token_id": 0})", R"({"eos_token_id": -1})", "eos_token_id"},
    {R"({"eos_token_id": 319})", R"({"eos_token_id": 320})", "eos_token_id"},
    {R"({"eos_token_id": [319, 2]})", R"({"eos_token_id": []})", "eos_token_id"},
    {R"({"eos_token_id": 2})", R"({"eos_token_id": null})", "eos_token_id"},
    {R"({"shared_expert_intermediate_size": 1})", R"({"shared_expert_intermediate_size": 0})",
     "shared_expert_intermediate_size"},
    {R"({"linear_conv_kernel_dim": 8})", R"({"linear_conv_kernel_dim": 9})", "linear_conv_kernel_dim"},
    {R"({"num_experts": 3})", R"({"num_experts": 2})", "num_experts_per_tok"},
    {R"({"rms_norm_eps": 0.1})", R"({"rms_norm_eps": 0.11})", "rms_norm_eps"},
    {R"({"partial_rotary_factor": 1})", R"({"partial_rotary_factor": 1.1})", "partial_rotary_factor"},
    {R"({"full_attention_interval": 1, "ple_layer_ids": []})", R"({"full_attention_interval": 0})",
     "full_attention_interval"},
    {R"({"output_gate_type": "sigmoid"})", R"({"output_gate_type": "tanh"})", "output_gate_type"},
    {R"({"hidden_act": "silu"})", R"({"hidden_act": "gelu"})", "hidden_act"},
};

}  // namespace

TEST_CASE("the published configuration of Qwen3.8-Flash-Next") {
  const std::string folder = std::string(std::getenv("FT_TEST_DATA")) + "/geometry/qwen3.8-flash-next-nvfp4";
  const auto family = family_of(folder);
  const ModelGeometry& g = family->geometry();
  CHECK(g.layers == 48);
  CHECK(g.moe_layers.size() == 48);
  CHECK(g.kv.size() == 12);
  CHECK(g.kv_bytes_per_token() == 12 * 2 * 2 * 256 * 2);
  CHECK(g.compressed == std::vector<CompressedLayer>(
                            12, {.ratio = 4, .index_dim = 128, .index_heads = 4, .index_top_k = 512, .blocks = true}));
  CHECK(g.compressed[0].attended(2048) == 2048);
  CHECK(g.compressed[0].attended(1 << 18) == 2048 + 3);
  const int64_t net = 4 * 10240 + 48 * 128 * 128;
  CHECK(g.state_floats == 36 * net + 9 * 10240 + 16);
  CHECK(family->width(Slot::kResidual) == 10240);
  CHECK(family->width(Slot::kStreamLow) == 320);
  CHECK(family->width(Slot::kNgram) == 2560);
  CHECK(family->width(Slot::kNgramKey) == 10240);
  CHECK(family->width(Slot::kIndexQuery) == 5 * 128);
  CHECK(family->width(Slot::kQuery) == 2 * 24 * 256);
  CHECK(family->make_ropes(2).front().half == 32);
  const WeightList list = family->declare_weights();
  REQUIRE(list.row_tables.size() == 1);
  CHECK(list.row_tables[0].rows == 320001536);
  CHECK(list.row_tables[0].cols == 160);
  CHECK(list.row_tables[0].parts == 128);
  CHECK(list.row_tables[0].rows_per_token == 16);
  CHECK(list.row_tables[0].prefixes[0] == "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.");
  CHECK(list.integers.size() == 3);
  const Recorder recorder = forward(*family);
  std::string expected = "E";
  for (int layer = 0; layer < 48; ++layer) {
    expected += std::string(layer == 1 ? "nN" : "") + (layer % 4 == 3 ? "rAwrMw" : "rDwrMw");
  }
  CHECK(recorder.calls == expected + "hL");
  CHECK(recorder.copies == 4);
  CHECK(recorder.head_norm.index == -1);
  CHECK(recorder.attentions[11].index.layer == 11);
  CHECK(recorder.attentions[0].gated);
  CHECK(recorder.nets[0].gate == GateKind::kSigmoid);
  CHECK(recorder.moes[0].router.renormalize);
  CHECK(recorder.moes[47].next_router.weight.index == -1);
  CHECK(recorder.adds[0].dilation == 3);
  // Experts are NVFP4 and nothing else is; the table is in no sum.
  const ModelFormats formats = inspect_formats(*family, synthetic_weights(folder));
  CHECK(formats.dense == "bf16");
  CHECK(formats.experts == "nvfp4");
  CHECK(formats.row_table_bytes == 320001536LL * 160 * 2);
  CHECK(formats.row_bytes_per_token == 16 * 160 * 2);
  CHECK(formats.dense_bytes < int64_t{12} << 30);
}

TEST_CASE("the memory of the state: delta nets first, then each n-gram layer's history and tokens, none overlapping") {
  const auto family = make_family(config_with(R"({"ple_layer_ids": [3, 2, 3, 1]})"));
  const Recorder recorder = forward(*family);
  CHECK(recorder.calls.substr(0, 15) == "EnNrDwrMwnNrDwr");
  REQUIRE(recorder.adds.size() == 3);
  const int64_t net = 4 * 128 + 4 * 16 * 16, history = 9 * 256;
  for (int64_t i = 0; i < 3; ++i) {
    CHECK(recorder.adds[static_cast<size_t>(i)].state_begin == 3 * net + i * (history + 16));
    CHECK(recorder.embeds[static_cast<size_t>(i)].state_begin == 3 * net + i * (history + 16) + history);
  }
  CHECK(family->geometry().state_floats == 3 * net + 3 * (history + 16));
  CHECK(recorder.embeds[0].hash->primes().front() == 503);
  CHECK(recorder.embeds[1].hash->primes().front() > recorder.embeds[0].hash->primes().back());
}

TEST_CASE("what is absent: n-grams, the gate's kind, a factor of rotation, layer types") {
  const Recorder plain = forward(*make_family(config_with(R"({"ple_layer_ids": null, "eos_token_id": null})")));
  CHECK(plain.calls == "ErDwrMwrDwrMwrDwrMwrAwrMwhL");
  CHECK(plain.nets[0].gate == GateKind::kSilu);
  CHECK(read("{}").rope.rotary_dim == 64);  // all of a head, unlike Qwen3.5
  CHECK(read(R"({"partial_rotary_factor": 0.5})").rope.rotary_dim == 32);
  CHECK(read("{}").renormalize);
  CHECK(!read(R"({"norm_topk_prob": false})").renormalize);
  CHECK(read("{}").ngrams.width == 64);
  CHECK(read(R"({"ple_embed_dim": 32})").ngrams.head_width() == 8);
  CHECK(read(R"({"full_attention_interval": 2, "ple_layer_ids": [1]})").is_attention ==
        std::vector<bool>{false, true, false, true});
  const char* nets_only = R"({"full_attention_interval": 5, "indexer_n_heads": null, "indexer_kv_heads": null,
      "indexer_head_dim": null, "indexer_budget": null, "indexer_compress_ratio": null})";
  const auto family = make_family(config_with(nets_only));
  CHECK(family->geometry().compressed.empty());
  CHECK(family->width(Slot::kIndexQuery) == 0);
  CHECK(family->width(Slot::kQuery) == 0);
  CHECK(read(R"({"eos_token_id": [7, 3]})").ngrams.hash.separator == 7);
  for (const char* early :
       {R"({"model_type": "qwen3_8_flash_next"})", R"({"model_type": "qwen3_8_flash_next_text"})"}) {
    CHECK(make_family(config_with(early))->geometry().family == "qwen4_exp");
  }
  CHECK(read(R"({"layer_types": ["qwen_sparse_attention", "linear_attention", "full_attention", "linear_attention"]})")
            .is_attention == std::vector<bool>{true, false, true, false});
}

TEST_CASE("every number is refused one past its bound, with its key, value and what is allowed") {
  for (const Bound& bound : kBounds) {
    CAPTURE(bound.past);
    CHECK(refusal(bound.at) == "no error");
    CHECK(mentions(refusal(bound.past), {"config.json refused", bound.key, "allowed"}));
  }
  CHECK(mentions(refusal(R"({"layer_types": ["linear_attention", "sliding_attention", "linear_attention",
      "full_attention"]})"),
                 {"layer_types", "sliding_attention"}));
}

TEST_CASE("a tensor that is absent, of another shape, or holds what cannot be, is named") {
  EditableModel model = read_model(golden_folder("qwen4_exp.published"));
  const auto loading_error = [&] {
    const TempFolder folder;
    model.write(folder);
    return error_of([&] { load(folder.path()); });
  };
  CHECK(loading_error() == "no error");
  const std::string layers = "model.language_model.layers.", ngrams = layers + "0.ple.";
  const std::string embedding = ngrams + "ple_embedding.", table = embedding + "ngram_embedding.";
  for (const std::string& name :
       {layers + "0.attn_hyper_connection.hc_norm.weight", layers + "1.mlp_hyper_connection.block_inject_weight.weight",
        layers + "3.mlp_hyper_connection.input_mix_weight_up.weight",
        std::string("model.language_model.hyper_connection_mixer.input_mix_weight_down.weight"),
        layers + "2.self_attn.indexer.index_qk_proj.weight", layers + "2.self_attn.indexer.k_layernorm.weight",
        layers + "2.self_attn.q_norm.weight", layers + "1.linear_attn.A_log",
        layers + "1.mlp.shared_expert_gate.weight", ngrams + "key_proj.weight", ngrams + "norm_query.weight",
        ngrams + "conv1d.weight", table + "shard_0.weight", table + "shard_1.weight", std::string("lm_head.weight")}) {
    CAPTURE(name);
    const DiskTensor kept = model.tensors.at(name);
    model.tensors.erase(name);
    CHECK(mentions(loading_error(), {"lacks a tensor", name.c_str()}));
    model.tensors[name] = kept;
  }
  {
    const DiskTensor kept = model.tensors.at(table + "weight_scale_2");
    model.tensors.erase(table + "weight_scale_2");
    CHECK(mentions(loading_error(), {"fp8 table without a scale", "shard_0.weight"}));
    model.tensors[table + "weight_scale_2"] = kept;
  }
  DiskTensor& shard = model.tensors.at(table + "shard_1.weight");
  const std::vector<int64_t> shape = shard.shape;
  shard.shape = {shape[1], shape[0]};
  CHECK(mentions(loading_error(), {"shard_1.weight", "F8_E4M3"}));
  shard.shape = shape;
  shard.dtype = "U8";
  CHECK(mentions(loading_error(), {"shard_1.weight", "U8", "F8_E4M3"}));
  shard.dtype = "F8_E4M3";
  for (const char* name : {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}) {
    CAPTURE(name);
    DiskTensor& numbers = model.tensors.at(embedding + name);
    const DiskTensor kept = numbers;
    numbers.bytes[8] = static_cast<char>(numbers.bytes[8] ^ 2);
    CHECK(mentions(loading_error(), {"does not follow from config.json", name, " at 1"}));
    numbers = kept;
    numbers.dtype = "F64";
    CHECK(mentions(loading_error(), {name, "F64", "I64"}));
    model.tensors.erase(embedding + name);  // not needed
    CHECK(loading_error() == "no error");
    model.tensors[embedding + name] = kept;
  }
}

TEST_CASE("tables: whole or in parts, one scale or one a part, fp8 and bf16 give the rows that they hold") {
  EditableModel model = read_model(golden_folder("qwen4_exp.published"));
  const std::string table = "model.language_model.layers.3.ple.ple_embedding.ngram_embedding.";
  const DiskTensor first = model.tensors.at(table + "shard_0.weight"),
                   last = model.tensors.at(table + "shard_1.weight");
  const int64_t rows = first.shape[0] + last.shape[0], width = first.shape[1];
  const auto check = [&](float first_scale, float last_scale) {
    const TempFolder folder;
    model.write(folder);
    const auto weights = load(folder.path());
    const RowTable& found = weights->row_tables.back();
    REQUIRE(found.rows() == rows);
    REQUIRE(found.width() == width);
    std::vector<float> row(static_cast<size_t>(width));
    for (const int64_t index : {int64_t{0}, int64_t{1}, first.shape[0] - 1, first.shape[0], rows - 1}) {
      const bool in_first = index < first.shape[0];
      const DiskTensor& part = in_first ? first : last;
      found.will_read(index);
      found.read(index, row.data());
      for (int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<size_t>((index - (in_first ? 0 : first.shape[0])) * width + i);
        const float code = decode_e4m3(static_cast<uint8_t>(part.bytes[at]));
        REQUIRE(row[static_cast<size_t>(i)] == code * (in_first ? first_scale : last_scale));
      }
    }
    CHECK(weights->formats.row_table_bytes == found.row_bytes() * rows + weights->row_tables.front().rows() * width);
    CHECK(weights->formats.row_bytes_per_token == 2 * 4 * width);
  };
  float scale = 0;  // BF16 is the upper half
  std::memcpy(reinterpret_cast<char*>(&scale) + 2, model.tensors.at(table + "weight_scale_2").bytes.data(), 2);
  check(scale, scale);
  const auto scale_tensor = [](float value) {
    return DiskTensor{"F32", {}, std::string(reinterpret_cast<const char*>(&value), sizeof value)};
  };
  model.tensors[table + "shard_1.weight_scale"] = scale_tensor(0.75f);
  check(scale, 0.75f);
  model.tensors.erase(table + "shard_1.weight_scale");
  model.tensors.erase(table + "weight_scale_2");
  model.tensors[table + "weight_scale"] = scale_tensor(0.5f);
  check(0.5f, 0.5f);
  DiskTensor whole = first;
  whole.shape[0] = rows;
  whole.bytes += last.bytes;
  model.tensors.erase(table + "shard_0.weight");
  model.tensors.erase(table + "shard_1.weight");
  model.tensors[table + "weight"] = whole;
  check(0.5f, 0.5f);
}

TEST_CASE("synthetic weights: rows are made when they are read, the same ones again, others elsewhere") {
  const auto weights = load_synthetic(golden_folder("qwen4_exp.published"), 5);
  REQUIRE(weights->row_tables.size() == 2);
  const RowTable &table = weights->row_tables[0], &other = weights->row_tables[1];
  const auto row_of = [](const RowTable& from, int64_t index) {
    std::vector<float> row(static_cast<size_t>(from.width()));
    from.read(index, row.data());
    return row;
  };
  const std::vector<float> row = row_of(table, 3);
  CHECK(row == row_of(table, 3));
  CHECK(row != row_of(table, 4));
  CHECK(row != row_of(other, 3));
  for (const float value : row) {
    CHECK(std::fabs(value) >= 0x1p-5f);
    CHECK(std::fabs(value) < 0x1p-4f);
  }
  CHECK(weights->formats.row_table_bytes == (table.rows() + other.rows()) * table.width() * 2);
}
