// Checked against: the published configuration of Gemma-4-26B-A4B, what transformers 5.17 assumes without a key, and
// limits at the bound and one past it.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

// A small valid configuration with some keys replaced.
Json config_with(const char* changes) {
  return config_of(R"({"model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 3,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64,
      "intermediate_size": 192, "enable_moe_block": true, "moe_intermediate_size": 48, "num_experts": 8,
      "top_k_experts": 3, "hidden_size_per_layer_input": 0, "vocab_size": 320, "max_position_embeddings": 2048})",
                   changes);
}

std::string refusal(const char* changes) { return refusal_of(config_with(changes)); }

ModelGeometry geometry_of(const char* changes) { return make_family(config_with(changes))->geometry(); }

}  // namespace

TEST_CASE("the configuration of Gemma-4-26B-A4B, by its older and by its newer keys") {
  const Json common = Json::parse(R"({"model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 30,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "attention_k_eq_v": true,
      "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8,
      "enable_moe_block": true, "vocab_size": 262144, "rms_norm_eps": 1e-06, "sliding_window": 1024,
      "final_logit_softcapping": 30.0, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
      "use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
      "use_double_wide_mlp": false, "attention_bias": false, "max_position_embeddings": 262144})");
  Json older = common, newer = common;
  older.merge_patch(Json::parse(R"({"global_head_dim": 512, "num_global_key_value_heads": 2})"));
  for (const char* layer : {"5", "11", "17", "23", "29"}) {
    newer["per_layer_config"][layer] = {{"head_dim", 512}, {"num_key_value_heads", 2}};
  }
  for (const Json& config : {older, newer}) {
    const auto family = make_family(config);
    const ModelGeometry& g = family->geometry();
    CHECK(g.family == "gemma4");
    CHECK(g.moe_layers.size() == 30);
    CHECK(g.total_experts() == 30 * 128);
    CHECK(g.expert.form.glu.kind == GluKind::kGeluTanh);
    CHECK(g.kv_elements_per_token() == 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512);
    CHECK(g.kv[4].kv_heads == 8);
    CHECK(g.kv[5].kv_heads == 2);
    CHECK(g.kv[5].head_dim == 512);
    CHECK(family->width(Slot::kQuery) == 16 * 512);
    CHECK(family->width(Slot::kKey) == 8 * 256);
    CHECK(family->width(Slot::kGate) == 2112);
    CHECK(family->width(Slot::kRouted) == 2816);
    const WeightList list = family->declare_weights();
    CHECK(list.matrices.size() == 25 * 8 + 5 * 7 + 1);  // full layers have no value projection
    CHECK(list.vectors.size() == 30 * 12 + 1);
    const std::vector<RopeTable> ropes = family->make_ropes(3);
    REQUIRE(ropes.size() == 2);
    CHECK(ropes[0].half == 128);
    CHECK(ropes[1].half == 256);
    CHECK(ropes[1].cos[2 * 256 + 63] < 1);  // the last pair that turns, at position 2
    CHECK(ropes[1].cos[2 * 256 + 64] == 1);
    CHECK(ropes[1].sin[2 * 256 + 64] == 0);
  }
}

TEST_CASE("which layers are full, and what their heads are") {
  const auto widths = [](const char* changes) {
    std::vector<int64_t> list;
    for (const KvLayer& layer : geometry_of(changes).kv) list.push_back(layer.head_dim);
    return list;
  };
  using Widths = std::vector<int64_t>;
  CHECK(widths("{}") == Widths{32, 32, 64});  // the last layer, whatever its place
  CHECK(widths(R"({"num_hidden_layers": 8})") == Widths{32, 32, 32, 32, 32, 64, 32, 64});
  CHECK(widths(R"({"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]})") ==
        Widths{64, 32, 64});
  CHECK(widths(R"({"global_head_dim": null})") == Widths{32, 32, 512});
  CHECK(widths(R"({"per_layer_config": {"2": {"head_dim": 48}}})") == Widths{32, 32, 48});
  CHECK(widths(R"({"per_layer_config": {}})") == Widths{32, 32, 32});
  const auto kv_heads = [](const char* changes) { return geometry_of(changes).kv.back().kv_heads; };
  CHECK(kv_heads(R"({"num_global_key_value_heads": 1})") == 2);  // counts only where values are keys
  CHECK(kv_heads(R"({"num_global_key_value_heads": 1, "attention_k_eq_v": true})") == 1);
  CHECK(kv_heads(R"({"attention_k_eq_v": true})") == 2);
  CHECK(kv_heads(R"({"per_layer_config": {"2": {"num_key_value_heads": 4}}})") == 4);
}

TEST_CASE("layers of one kind share a rotation: other widths among them are refused") {
  CHECK(
      mentions(refusal(R"({"per_layer_config": {"1": {"head_dim": 48}}})"), {"per_layer_config", "sliding_attention"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"3": {"head_dim": 48}}})"), {"per_layer_config", "'3'"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"x": {}}})"), {"per_layer_config", "'x'"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"": {}}})"), {"per_layer_config"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"99999999999999999999": {}}})"), {"per_layer_config"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"2": 7}})"), {"per_layer_config.2"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"2": {"sliding_window": 7}}})"),
                 {"per_layer_config.2.sliding_window", "'7'"}));
  CHECK(mentions(refusal(R"({"per_layer_config": {"2": {"head_dim": 514}}})"), {"per_layer_config.2.head_dim", "514"}));
}

TEST_CASE("every number is refused one past its bound, with its key, value and what is allowed") {
  struct Bound {
    const char* at;
    const char* past;
    const char* key;
  };
  const Bound bounds[] = {
      {R"({"intermediate_size": 262144})", R"({"intermediate_size": 262145})", "intermediate_size"},
      {R"({"intermediate_size": 1})", R"({"intermediate_size": 0})", "intermediate_size"},
      {R"({"top_k_experts": 8})", R"({"top_k_experts": 9})", "top_k_experts"},
      {R"({"top_k_experts": 1})", R"({"top_k_experts": 0})", "top_k_experts"},
      {R"({"num_experts": 4096})", R"({"num_experts": 4097})", "num_experts"},
      {R"({"moe_intermediate_size": 131072})", R"({"moe_intermediate_size": 131073})", "moe_intermediate_size"},
      {R"({"sliding_window": 1})", R"({"sliding_window": 0})", "sliding_window"},
      {R"({"sliding_window": 16777216})", R"({"sliding_window": 16777217})", "sliding_window"},
      {R"({"global_head_dim": 512})", R"({"global_head_dim": 514})", "global_head_dim"},
      {R"({"global_head_dim": 2})", R"({"global_head_dim": 3})", "global_head_dim"},
      {R"({"attention_k_eq_v": true, "num_global_key_value_heads": 4})",
       R"({"attention_k_eq_v": true, "num_global_key_value_heads": 5})", "num_global_key_value_heads"},
      {R"({"final_logit_softcapping": 0.001})", R"({"final_logit_softcapping": 0})", "final_logit_softcapping"},
      {R"({"final_logit_softcapping": 1e6})", R"({"final_logit_softcapping": 1.1e6})", "final_logit_softcapping"},
      {R"({"rms_norm_eps": 0.1})", R"({"rms_norm_eps": 0.11})", "rms_norm_eps"},
      {R"({"num_hidden_layers": 1})", R"({"num_hidden_layers": 1025})", "num_hidden_layers"},
      {R"({"rope_parameters": {"sliding_attention": {}, "full_attention": {"partial_rotary_factor": 1,
           "rope_type": "proportional"}}})",
       R"({"rope_parameters": {"sliding_attention": {}, "full_attention": {"partial_rotary_factor": 1.01,
           "rope_type": "proportional"}}})",
       "rope_parameters.full_attention.partial_rotary_factor"},
      {R"({"rope_parameters": {"sliding_attention": {"rope_theta": 2}, "full_attention": {}}})",
       R"({"rope_parameters": {"sliding_attention": {"rope_theta": 1.9}, "full_attention": {}}})",
       "rope_parameters.sliding_attention.rope_theta"},
      {R"({"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "proportional", "factor": 1}}})",
       R"({"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "proportional",
           "factor": 0.9}}})",
       "rope_parameters.full_attention.factor"},
      {R"({"hidden_size_per_layer_input": 0})", R"({"hidden_size_per_layer_input": 1})", "hidden_size_per_layer_input"},
      {R"({"num_kv_shared_layers": 0})", R"({"num_kv_shared_layers": 1})", "num_kv_shared_layers"},
  };
  for (const Bound& bound : bounds) {
    CAPTURE(bound.past);
    CHECK(refusal(bound.at) == "no error");
    CHECK(mentions(refusal(bound.past), {"config.json refused", bound.key, "allowed"}));
  }
}

TEST_CASE("what this engine does not compute for the family is refused by name") {
  CHECK(mentions(refusal(R"({"enable_moe_block": null})"), {"enable_moe_block", "true"}));
  CHECK(mentions(refusal(R"({"hidden_size_per_layer_input": null})"), {"hidden_size_per_layer_input", "256"}));
  CHECK(mentions(refusal(R"({"use_double_wide_mlp": true})"), {"use_double_wide_mlp"}));
  CHECK(mentions(refusal(R"({"attention_bias": true})"), {"attention_bias"}));
  CHECK(
      mentions(refusal(R"({"use_bidirectional_attention": "all"})"), {"use_bidirectional_attention", "all", "vision"}));
  CHECK(mentions(refusal(R"({"hidden_activation": "silu"})"), {"hidden_activation", "silu"}));
  for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
    const Json changes = {{key, nullptr}};
    CHECK(mentions(refusal(changes.dump().c_str()), {key, "enable_moe_block"}));
  }
  CHECK(mentions(refusal(R"({"layer_types": ["full_attention", "full_attention", "chunked_attention"]})"),
                 {"layer_types", "chunked_attention"}));
  CHECK(mentions(refusal(R"({"rope_parameters": {"full_attention": {}}})"), {"rope_parameters.sliding_attention"}));
  CHECK(mentions(refusal(R"({"rope_parameters": {"sliding_attention": 3, "full_attention": {}}})"),
                 {"rope_parameters.sliding_attention"}));
  CHECK(mentions(refusal(R"({"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "su"}}})"),
                 {"rope_parameters.full_attention.rope_type", "su", "proportional"}));
}

TEST_CASE("a tensor that is absent or of another shape is named, by every name that it may have") {
  EditableModel model = read_model(golden_folder("gemma4.plain"));
  const auto loading_error = [&] {
    const TempFolder folder;
    model.write(folder);
    return error_of([&] { load(folder.path()); });
  };
  CHECK(loading_error() == "no error");
  const auto without = [&](const std::string& name) {
    const DiskTensor kept = model.tensors.at(name);
    model.tensors.erase(name);
    const std::string error = loading_error();
    model.tensors[name] = kept;
    return error;
  };
  CHECK(mentions(without("model.layers.1.layer_scalar"),
                 {"model.language_model.layers.1.layer_scalar", "model.layers.1.layer_scalar"}));
  CHECK(mentions(without("model.layers.0.router.per_expert_scale"), {"model.layers.0.router.per_expert_scale"}));
  CHECK(mentions(without("model.layers.1.self_attn.v_proj.weight"), {"model.layers.1.self_attn.v_proj.weight"}));
  CHECK(mentions(without("model.layers.0.experts.down_proj"), {"model.layers.0.experts.down_proj"}));
  model.tensors.at("model.layers.0.layer_scalar").shape = {1, 1};
  CHECK(mentions(loading_error(), {"model.layers.0.layer_scalar", "[1, 1]", "[1]"}));
}
