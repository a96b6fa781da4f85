// Checked against: values of published Qwen3 configurations, transformers' documented defaults, and limits at the bound
// and one past it.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

// A small valid configuration with some keys replaced.
Json config_with(const char* changes) {
  return config_of(R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 192,
      "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "vocab_size": 320,
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-6})",
                   changes);
}

std::string refusal(const char* changes) { return refusal_of(config_with(changes)); }

ModelGeometry geometry_of(const char* changes) { return make_family(config_with(changes))->geometry(); }

}  // namespace

TEST_CASE("the configuration of Qwen3-30B-A3B") {
  const auto family =
      make_family(Json::parse(R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
      "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
      "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "sliding_window": null, "use_sliding_window": false, "mlp_only_layers": [],
      "decoder_sparse_step": 1, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false})"));
  const ModelGeometry& g = family->geometry();
  CHECK(g.family == "qwen3_moe");
  CHECK(g.layers == 48);
  CHECK(g.moe_layers.size() == 48);
  CHECK(g.total_experts() == 6144);
  CHECK(g.kv_bytes_per_token() == 48 * 2 * 4 * 128 * 2);
  CHECK(family->width(Slot::kQuery) == 4096);
  CHECK(family->width(Slot::kKey) == 512);
  CHECK(family->width(Slot::kResidual) == 2048);
  CHECK(family->width(Slot::kGate) == 0);  // no dense layer
  const WeightList list = family->declare_weights();
  CHECK(list.matrices.size() == 48 * 5 + 1);
  CHECK(list.expert_layers.size() == 48);
  CHECK(list.vectors.size() == 48 * 4 + 1);
  CHECK(family->make_ropes(3).front().half == 64);
}

TEST_CASE("an empty configuration has the defaults of the class") {
  const ModelGeometry g = make_family(Json::parse(R"({"model_type": "qwen3_moe"})"))->geometry();
  CHECK(g.hidden == 2048);
  CHECK(g.layers == 24);
  CHECK(g.widest_heads == 32 * 64);
  CHECK(g.kv == std::vector<KvLayer>(static_cast<size_t>(g.layers), {4, 64}));
  CHECK(g.vocab == 151936);
  CHECK(g.expert.experts == 128);
  CHECK(g.expert.intermediate == 768);
  CHECK(g.expert.top_k == 8);
  CHECK(g.max_positions == 32768);
}

TEST_CASE("which layers have experts") {
  using Layers = std::vector<int>;
  CHECK(geometry_of("{}").moe_layers == Layers{0, 1, 2, 3});
  CHECK(geometry_of(R"({"mlp_only_layers": [1]})").moe_layers == Layers{0, 2, 3});
  CHECK(geometry_of(R"({"decoder_sparse_step": 2})").moe_layers == Layers{1, 3});
  CHECK(geometry_of(R"({"decoder_sparse_step": 2, "mlp_only_layers": [3, 900]})").moe_layers == Layers{1});
  CHECK(mentions(refusal(R"({"decoder_sparse_step": 5})"), {"decoder_sparse_step", "'5'"}));
  CHECK(mentions(refusal(R"({"mlp_only_layers": [0, 1, 2, 3]})"), {"mlp_only_layers"}));
}

TEST_CASE("experts go by either name, and both must agree") {
  CHECK(geometry_of(R"({"num_experts": null, "num_local_experts": 16})").expert.experts == 16);
  CHECK(geometry_of(R"({"num_local_experts": 8})").expert.experts == 8);
  CHECK(mentions(refusal(R"({"num_local_experts": 9})"), {"num_local_experts", "'9'", "num_experts"}));
}

TEST_CASE("every number is refused one past its bound, with its key, value and what is allowed") {
  struct Bound {
    const char* at;
    const char* past;
    const char* key;
  };
  const Bound bounds[] = {
      {R"({"num_hidden_layers": 1024})", R"({"num_hidden_layers": 1025})", "num_hidden_layers"},
      {R"({"num_hidden_layers": 1})", R"({"num_hidden_layers": 0})", "num_hidden_layers"},
      {R"({"hidden_size": 131072})", R"({"hidden_size": 131073})", "hidden_size"},
      {R"({"hidden_size": 1})", R"({"hidden_size": 0})", "hidden_size"},
      {R"({"vocab_size": 4194304})", R"({"vocab_size": 4194305})", "vocab_size"},
      {R"({"moe_intermediate_size": 131072})", R"({"moe_intermediate_size": 131073})", "moe_intermediate_size"},
      {R"({"intermediate_size": 262144})", R"({"intermediate_size": 262145})", "intermediate_size"},
      {R"({"num_experts": 4096})", R"({"num_experts": 4097})", "num_experts"},
      {R"({"num_experts_per_tok": 8})", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
      {R"({"num_experts": 128, "num_experts_per_tok": 64})", R"({"num_experts": 128, "num_experts_per_tok": 65})",
       "num_experts_per_tok"},
      {R"({"num_experts_per_tok": 1})", R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
      {R"({"head_dim": 512})", R"({"head_dim": 514})", "head_dim"},
      {R"({"head_dim": 2})", R"({"head_dim": 1})", "head_dim"},
      {R"({"head_dim": 30})", R"({"head_dim": 31})", "head_dim"},
      {R"({"num_attention_heads": 1024})", R"({"num_attention_heads": 1025})", "num_attention_heads"},
      {R"({"num_attention_heads": 512, "head_dim": 512})", R"({"num_attention_heads": 514, "head_dim": 512})",
       "num_attention_heads"},
      {R"({"num_key_value_heads": 4})", R"({"num_key_value_heads": 5})", "num_key_value_heads"},
      {R"({"num_key_value_heads": 1})", R"({"num_key_value_heads": 3})", "num_key_value_heads"},
      {R"({"max_position_embeddings": 16777216})", R"({"max_position_embeddings": 16777217})",
       "max_position_embeddings"},
      {R"({"rms_norm_eps": 0.1})", R"({"rms_norm_eps": 0.11})", "rms_norm_eps"},
      {R"({"rms_norm_eps": 1e-12})", R"({"rms_norm_eps": 0})", "rms_norm_eps"},
      {R"({"decoder_sparse_step": 1})", R"({"decoder_sparse_step": 1025})", "decoder_sparse_step"},
      {R"({"mlp_only_layers": [1023]})", R"({"mlp_only_layers": [1024]})", "mlp_only_layers"},
      {R"({"mlp_only_layers": [0]})", R"({"mlp_only_layers": [-1]})", "mlp_only_layers"},
      {R"({"use_sliding_window": true, "sliding_window": 1})", R"({"use_sliding_window": true, "sliding_window": 0})",
       "sliding_window"},
  };
  for (const Bound& bound : bounds) {
    CAPTURE(bound.past);
    CHECK(refusal(bound.at) == "no error");
    CHECK(mentions(refusal(bound.past), {"config.json refused", bound.key, "allowed"}));
  }
}

TEST_CASE("values of the wrong type, and settings that this engine does not compute") {
  CHECK(mentions(refusal(R"({"hidden_size": "64"})"), {"hidden_size", "64"}));
  CHECK(mentions(refusal(R"({"hidden_size": 64.5})"), {"hidden_size", "64.5"}));
  CHECK(mentions(refusal(R"({"hidden_size": 18446744073709551615})"), {"hidden_size", "18446744073709551615"}));
  CHECK(mentions(refusal(R"({"hidden_size": 1e300})"), {"hidden_size"}));
  CHECK(mentions(refusal(R"({"hidden_size": [1]})"), {"hidden_size", "array"}));
  CHECK(mentions(refusal(R"({"norm_topk_prob": 1})"), {"norm_topk_prob", "true or false"}));
  CHECK(mentions(refusal(R"({"hidden_act": "gelu"})"), {"hidden_act", "gelu", "silu"}));
  CHECK(mentions(refusal(R"({"partial_rotary_factor": 0.5})"), {"partial_rotary_factor", "0.5"}));
  CHECK(mentions(refusal(R"({"mlp_only_layers": 3})"), {"mlp_only_layers"}));
  CHECK(mentions(refusal(R"({"head_dim": null, "hidden_size": 66})"), {"head_dim", "multiple"}));
  CHECK(geometry_of(R"({"head_dim": null})").max_head_dim() == 16);
}

TEST_CASE("an unknown kind of model is answered with the known ones") {
  CHECK(mentions(refusal(R"({"model_type": "llama"})"), {"model_type", "llama", "qwen3_moe"}));
  CHECK(mentions(refusal(R"({"model_type": null})"), {"model_type", "absent", "qwen3_moe"}));
  CHECK(mentions(error_of([] { make_family(Json::array()); }), {"model_type", "qwen3_moe"}));
  for (const FamilyDesc& family : families()) {
    CHECK(mentions(refusal(R"({"model_type": "llama"})"), {std::string(family.model_type)}));
  }
}

TEST_CASE("a multimodal configuration gives its text part with the outer quantization") {
  TempFolder folder;
  folder.write("config.json", R"({"model_type": "outer", "quantization_config": {"quant_method": "fp8"},
      "text_config": {"model_type": "qwen3_moe", "hidden_size": 128, "quantization_config": null}})");
  const Json config = load_model_config(folder.path());
  CHECK(config["model_type"] == "qwen3_moe");
  CHECK(config["hidden_size"] == 128);
  CHECK(config["quantization_config"]["quant_method"] == "fp8");
}
