// Checked against: the published configuration of Qwen3.5-35B-A3B and what follows from it by hand, transformers'
// documented defaults, limits at the bound and one past it, and a checkpoint with one tensor spoiled at a time.
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
  return config_of(R"({"model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 48,
      "shared_expert_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3, "vocab_size": 320,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
      "max_position_embeddings": 2048})",
                   changes);
}

std::string refusal(const char* changes) { return refusal_of(config_with(changes)); }

// What a forward pass asks for, layer by layer.
class Recorder final : public Backend {
 public:
  void embed(const EmbedSpec&) override {}
  void linear(Slot, const Norm&, std::initializer_list<Linear>) override {}
  void linear_add(Slot, const Linear&) override {}
  void attention(const AttentionSpec& spec) override { kinds += 'A', attentions.push_back(spec); }
  void glu(const GluSpec&) override {}
  void moe(const MoeSpec& spec) override { kinds += 'M', moes.push_back(spec); }
  void logits(const LogitsSpec&) override { kinds += 'L'; }
  void delta_net(const DeltaNetSpec& spec) override { kinds += 'D', nets.push_back(spec); }
  std::string kinds;
  std::vector<AttentionSpec> attentions;
  std::vector<DeltaNetSpec> nets;
  std::vector<MoeSpec> moes;
};

Recorder forward(const Family& family) {
  Recorder recorder;
  family.forward(recorder, ModelWeights{}, StepBatch{});
  return recorder;
}

std::string kinds_of(const char* changes) { return forward(*make_family(config_with(changes))).kinds; }

}  // namespace

TEST_CASE("the configuration of Qwen3.5-35B-A3B") {
  const auto family = make_family(Json::parse(R"({"model_type": "qwen3_5_moe_text", "attention_bias": false,
      "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
      "hidden_size": 2048, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
      "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
      "mlp_only_layers": [], "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256,
      "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
      "shared_expert_intermediate_size": 512, "vocab_size": 248320, "mamba_ssm_dtype": "float32",
      "mtp_num_hidden_layers": 1, "tie_word_embeddings": false, "rope_parameters": {"mrope_interleaved": true,
      "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}})"));
  const ModelGeometry& g = family->geometry();
  CHECK(g.family == "qwen3_5_moe");
  CHECK(g.moe_layers.size() == 40);
  CHECK(g.total_experts() == 10240);
  CHECK(g.kv == std::vector<KvLayer>(10, {2, 256}));
  CHECK(g.state_floats == 30 * (4 * 8192 + 32 * 128 * 128));  // 63.8 MiB
  CHECK(g.widest_heads == 4096);
  CHECK(family->width(Slot::kQuery) == 2 * 4096);
  CHECK(family->width(Slot::kAttention) == 4096);
  CHECK(family->width(Slot::kDeltaMixed) == 8192);
  CHECK(family->width(Slot::kDeltaDecay) == 32);
  CHECK(family->width(Slot::kUp) == 512);
  CHECK(family->make_ropes(3).front().half == 32);
  const WeightList list = family->declare_weights();
  CHECK(list.matrices.size() == 40 * 5 + 10 * 4 + 30 * 5 + 1);
  CHECK(list.expert_layers.size() == 40);
  const Recorder pass = forward(*family);
  std::string expected;
  for (int i = 0; i < 10; ++i) expected += "DMDMDMAM";
  CHECK(pass.kinds == expected + "L");
  CHECK(pass.nets.back().state_layer == 29);
  CHECK(pass.nets.back().shape.taps == 4);
  CHECK(pass.nets.back().gate == GateKind::kSilu);
  CHECK(pass.attentions.back().kv_layer == 9);
  CHECK(pass.attentions.back().gated);
  CHECK(pass.attentions.back().scale == 1.0f / 16);
  CHECK(pass.moes[5].router.renormalize);
  CHECK(pass.moes[5].next_router.weight.index == pass.moes[6].router.weight.index);
  CHECK(pass.moes[39].next_router.weight.index == -1);
  CHECK(pass.moes[39].shared.token_gate.index >= 0);
}

TEST_CASE("an empty configuration has the defaults of the class; the wrapper's name is known too") {
  for (const char* name : {"qwen3_5_moe", "qwen3_5_moe_text"}) {
    const ModelGeometry g = make_family(Json{{"model_type", name}})->geometry();
    CHECK(g.layers == 40);
    CHECK(g.hidden == 2048);
    CHECK(g.vocab == 248320);
    CHECK(g.expert.experts == 256);
    CHECK(g.expert.intermediate == 512);
    CHECK(g.kv == std::vector<KvLayer>(10, {2, 256}));
    CHECK(g.state_floats == 30 * (4 * 8192 + 32 * 128 * 128));
  }
}

TEST_CASE("which layers attend: by list, else every fourth or as the interval says") {
  CHECK(kinds_of("{}") == "DMDMDMAML");
  CHECK(kinds_of(R"({"full_attention_interval": 1})") == "AMAMAMAML");
  CHECK(kinds_of(R"({"full_attention_interval": 3})") == "DMDMAMDML");
  CHECK(kinds_of(R"({"full_attention_interval": 1024})") == "DMDMDMDML");
  CHECK(kinds_of(R"({"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
      "full_attention_interval": 2})") == "AMDMDMAML");
  CHECK(mentions(refusal(R"({"layer_types": ["full_attention"]})"), {"layer_types", "4"}));
  CHECK(mentions(refusal(R"({"layer_types": ["full_attention", "sliding_attention", "x", "y"]})"),
                 {"layer_types", "sliding_attention"}));
  // Of a model with one kind, nothing of the other is kept.
  CHECK(make_family(config_with(R"({"full_attention_interval": 1})"))->geometry().state_floats == 0);
  const auto nets = make_family(config_with(R"({"full_attention_interval": 1024})"));
  CHECK(nets->geometry().kv.empty());
  CHECK(nets->width(Slot::kQuery) == 0);
}

TEST_CASE("how much of a head rotates: a quarter without the key, from wherever it stands") {
  const auto half = [](const char* changes) { return make_family(config_with(changes))->make_ropes(1).front().half; };
  CHECK(half("{}") == 4);
  CHECK(half(R"({"partial_rotary_factor": 0.5})") == 8);
  CHECK(half(R"({"rope_parameters": {"rope_theta": 1e7}})") == 4);
  CHECK(half(R"({"rope_parameters": {"partial_rotary_factor": 1.0}, "partial_rotary_factor": 0.5})") == 16);
  CHECK(half(R"({"rope_scaling": {"partial_rotary_factor": 0.0625}})") == 1);
}

TEST_CASE("every number is refused one past its bound, with its key") {
  struct Bound {
    const char* at;
    const char* past;
    const char* key;
  };
  const Bound bounds[] = {
      {R"({"linear_conv_kernel_dim": 8})", R"({"linear_conv_kernel_dim": 9})", "linear_conv_kernel_dim"},
      {R"({"linear_conv_kernel_dim": 1})", R"({"linear_conv_kernel_dim": 0})", "linear_conv_kernel_dim"},
      {R"({"linear_num_key_heads": 1})", R"({"linear_num_key_heads": 0})", "linear_num_key_heads"},
      {R"({"linear_num_key_heads": 1024, "linear_num_value_heads": 1024})",
       R"({"linear_num_key_heads": 1025, "linear_num_value_heads": 1025})", "linear_num_key_heads"},
      {R"({"linear_num_key_heads": 4})", R"({"linear_num_key_heads": 3})", "linear_num_value_heads"},
      {R"({"linear_key_head_dim": 512})", R"({"linear_key_head_dim": 513})", "linear_key_head_dim"},
      {R"({"linear_key_head_dim": 1})", R"({"linear_key_head_dim": 0})", "linear_key_head_dim"},
      {R"({"linear_value_head_dim": 512})", R"({"linear_value_head_dim": 513})", "linear_value_head_dim"},
      {R"({"linear_value_head_dim": 1})", R"({"linear_value_head_dim": 0})", "linear_value_head_dim"},
      {R"({"linear_value_head_dim": 512, "linear_num_value_heads": 512})",
       R"({"linear_value_head_dim": 512, "linear_num_value_heads": 514})", "linear_num_value_heads"},
      {R"({"shared_expert_intermediate_size": 262144})", R"({"shared_expert_intermediate_size": 262145})",
       "shared_expert_intermediate_size"},
      {R"({"shared_expert_intermediate_size": 1})", R"({"shared_expert_intermediate_size": 0})",
       "shared_expert_intermediate_size"},
      {R"({"full_attention_interval": 1})", R"({"full_attention_interval": 0})", "full_attention_interval"},
      {R"({"full_attention_interval": 1024})", R"({"full_attention_interval": 1025})", "full_attention_interval"},
      {R"({"partial_rotary_factor": 1})", R"({"partial_rotary_factor": 1.01})", "partial_rotary_factor"},
      {R"({"partial_rotary_factor": 0.0625})", R"({"partial_rotary_factor": 0.05})", "partial_rotary_factor"},
      {R"({"partial_rotary_factor": 0.125})", R"({"partial_rotary_factor": 0.1})", "partial_rotary_factor"},
      {R"({"attn_output_gate": true})", R"({"attn_output_gate": false})", "attn_output_gate"},
      {R"({"output_gate_type": "swish"})", R"({"output_gate_type": "sigmoid"})", "output_gate_type"},
      {R"({"hidden_act": "silu"})", R"({"hidden_act": "gelu"})", "hidden_act"},
  };
  for (const Bound& bound : bounds) {
    CAPTURE(bound.past);
    CHECK(refusal(bound.at) == "no error");
    CHECK(mentions(refusal(bound.past), {"config.json refused", bound.key, "allowed"}));
  }
}

TEST_CASE("a tensor that is absent or has another shape is named") {
  const EditableModel good = read_model(golden_folder("qwen3_5_moe_text.b"));
  const auto message = [&](const std::string& name, bool remove) {
    EditableModel model{std::make_unique<Json>(*good.config), good.tensors};
    REQUIRE(model.tensors.count(name) == 1);
    DiskTensor& tensor = model.tensors[name];
    if (remove) {
      model.tensors.erase(name);
    } else {  // the last row away
      tensor.bytes.resize(tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]) *
                          static_cast<size_t>(tensor.shape[0] - 1));
      --tensor.shape[0];
    }
    TempFolder folder;
    model.write(folder);
    return error_of([&] { load(folder.path()); });
  };
  for (const char* name : {"embed_tokens.weight",
                           "norm.weight",
                           "layers.0.linear_attn.in_proj_qkv.weight",
                           "layers.0.linear_attn.in_proj_z.weight",
                           "layers.0.linear_attn.in_proj_b.weight",
                           "layers.0.linear_attn.in_proj_a.weight",
                           "layers.0.linear_attn.conv1d.weight",
                           "layers.0.linear_attn.A_log",
                           "layers.0.linear_attn.dt_bias",
                           "layers.0.linear_attn.norm.weight",
                           "layers.0.linear_attn.out_proj.weight",
                           "layers.1.self_attn.q_proj.weight",
                           "layers.1.self_attn.q_proj.bias",
                           "layers.1.self_attn.o_proj.bias",
                           "layers.1.self_attn.k_norm.weight",
                           "layers.2.mlp.gate.weight",
                           "layers.2.mlp.experts.gate_up_proj",
                           "layers.2.mlp.experts.down_proj",
                           "layers.2.mlp.shared_expert.up_proj.weight",
                           "layers.2.mlp.shared_expert_gate.weight"}) {
    CAPTURE(name);
    const std::string full = std::string("model.language_model.") + name;
    CHECK(mentions(message(full, false), {full}));
    // Without a stack, an expert's own tensors are asked for.
    const bool stack = full.find("gate_up_proj") != std::string::npos;
    CHECK(mentions(message(full, true), {stack ? "model.language_model.layers.2.mlp.experts.0.gate_proj" : full}));
  }
}

TEST_CASE("synthetic weights: a module that is excluded from quantization under either of its names is excluded") {
  const auto dense_of = [](const char* prefix) {
    Json config = config_with("{}");
    config["quantization_config"] = Json::parse(R"({"quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true}}}})");
    Json ignored = Json::array({"lm_head"});
    for (int layer = 0; layer < 4; ++layer) {
      const std::string at = prefix + std::string("layers.") + std::to_string(layer) + ".";
      for (const char* name :
           {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj", "self_attn.q_proj",
            "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"}) {
        ignored.push_back(at + name);
      }
    }
    config["quantization_config"]["ignore"] = ignored;
    TempFolder folder;
    folder.write("config.json", config.dump());
    const ModelFormats formats = inspect_formats(*family_of(folder.path()), synthetic_weights(folder.path()));
    return formats.dense + "/" + formats.experts;
  };
  CHECK(dense_of("model.") == "bf16/nvfp4");
  CHECK(dense_of("model.language_model.") == "bf16/nvfp4");
  CHECK(dense_of("other.") == "bf16+nvfp4/nvfp4");
}
