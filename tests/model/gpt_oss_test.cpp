// Checked against: the class's defaults and values of published configurations, limits at the bound and one past it;
// the order of operations written out by hand; and raw tensors that the test makes and takes apart itself, in every
// layout that gpt-oss's experts come in.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/model/family.h"
#include "engine/model/staged_packer.h"
#include "engine/runtime/backend.h"
#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

Json config_with(const char* changes) {
  return config_of(R"({"model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
      "num_local_experts": 3, "num_experts_per_tok": 2, "vocab_size": 40, "max_position_embeddings": 2048,
      "sliding_window": 20})",
                   changes);
}

std::string refusal(const char* changes) { return refusal_of(config_with(changes)); }

// What forward() asks for.
class Recorder final : public Backend {
 public:
  void embed(const EmbedSpec&) override {}
  void linear(Slot, const Norm&, std::initializer_list<Linear> outputs) override { inputs = {outputs}; }
  void linear_add(Slot, const Linear& output) override { out = output; }
  void attention(const AttentionSpec& spec) override { attentions.push_back(spec); }
  void glu(const GluSpec&) override { FAIL("no dense layer"); }
  void moe(const MoeSpec& spec) override { moes.push_back(spec); }
  void logits(const LogitsSpec& spec) override { last = spec; }
  std::vector<Linear> inputs;
  Linear out;
  std::vector<AttentionSpec> attentions;
  std::vector<MoeSpec> moes;
  LogitsSpec last;
};

Recorder recorded(const char* changes) {
  Recorder recorder;
  make_family(config_with(changes))->forward(recorder, ModelWeights{}, StepBatch{});
  return recorder;
}

std::vector<int64_t> windows(const char* changes) {
  std::vector<int64_t> result;
  for (const AttentionSpec& spec : recorded(changes).attentions) result.push_back(spec.window);
  return result;
}

// Any values, so that a wrong place shows; finite, since NaN is not equal to itself.
DiskTensor bf16_tensor(std::vector<int64_t> shape, Random& random) {
  DiskTensor tensor{"BF16", std::move(shape), ""};
  int64_t count = 1;
  for (const int64_t n : tensor.shape) count *= n;
  for (int64_t i = 0; i < count; ++i) {
    const bf16 value = to_bf16(static_cast<float>(random.normal()));
    tensor.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return tensor;
}

float value_at(const DiskTensor& tensor, int64_t index) {
  bf16 value;
  std::memcpy(&value, tensor.bytes.data() + static_cast<size_t>(index) * sizeof value, sizeof value);
  return to_float(value);
}

// A whole checkpoint in BF16 with fused experts, as transformers saves it.
EditableModel made_model(const char* changes) {
  EditableModel model;
  model.config = std::make_unique<Json>(config_with(changes));
  const auto family = make_family(*model.config);
  const WeightList list = family->declare_weights();
  const ExpertGeometry& g = family->geometry().expert;
  Random random(5);
  for (const TableSpec& t : list.tables) model.tensors[t.names.front()] = bf16_tensor({t.rows, t.cols}, random);
  for (const MatrixSpec& m : list.matrices) {
    model.tensors[m.stems.front() + ".weight"] = bf16_tensor({m.rows, m.cols}, random);
  }
  for (const VectorSpec& v : list.vectors) model.tensors[v.names.front()] = bf16_tensor({v.size}, random);
  for (const ExpertLayerSpec& layer : list.expert_layers) {
    const std::string& prefix = layer.prefixes.front();
    model.tensors[prefix + "gate_up_proj"] = bf16_tensor({g.experts, g.hidden, 2 * g.intermediate}, random);
    model.tensors[prefix + "gate_up_proj_bias"] = bf16_tensor({g.experts, 2 * g.intermediate}, random);
    model.tensors[prefix + "down_proj"] = bf16_tensor({g.experts, g.intermediate, g.hidden}, random);
    model.tensors[prefix + "down_proj_bias"] = bf16_tensor({g.experts, g.hidden}, random);
  }
  return model;
}

// Row `row` of a matrix whose weight (row, k) is expected(k), and its bias.
template <class F>
void check_row(const PackedMatrix& matrix, int64_t row, float bias, F&& expected) {
  std::vector<float> values(static_cast<size_t>(matrix.layout.cols));
  format_info(matrix.layout.format).decode_row(matrix.layout, matrix.data, row, values.data());
  int64_t wrong = 0;
  for (int64_t k = 0; k < matrix.layout.cols; ++k) wrong += values[static_cast<size_t>(k)] != expected(k) ? 1 : 0;
  CHECK(wrong == 0);
  REQUIRE(matrix.bias != nullptr);
  CHECK(matrix.bias[row] == bias);
}

void check_experts(const ModelWeights& weights, const EditableModel& model, int64_t row_step) {
  const ExpertGeometry& g = weights.geometry.expert;
  for (int layer = 0; layer < weights.bank.layers(); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    const auto tensor = [&](const char* name) -> const DiskTensor& { return model.tensors.at(prefix + name); };
    const ExpertLayout& layout = weights.bank.layout(layer);
    for (int e = 0; e < g.experts; ++e) {
      const std::byte* blob = weights.bank.blob(layer, e);
      for (int64_t row = 0; row < g.intermediate; row += row_step) {
        for (int64_t up = 0; up < 2; ++up) {
          const int64_t column = 2 * row + up;
          check_row(up == 0 ? expert_gate(layout, blob) : expert_up(layout, blob), row,
                    value_at(tensor("gate_up_proj_bias"), e * 2 * g.intermediate + column), [&](int64_t k) {
                      return value_at(tensor("gate_up_proj"), (e * g.hidden + k) * 2 * g.intermediate + column);
                    });
        }
      }
      for (int64_t row = 0; row < g.hidden; row += row_step) {
        check_row(expert_down(layout, blob), row, value_at(tensor("down_proj_bias"), e * g.hidden + row),
                  [&](int64_t k) { return value_at(tensor("down_proj"), (e * g.intermediate + k) * g.hidden + row); });
      }
    }
  }
}

std::string edited(const std::function<void(EditableModel&)>& edit) {
  TempFolder folder;
  EditableModel model = made_model("{}");
  edit(model);
  model.write(folder);
  return error_of([&] { inspect_formats(*family_of(folder.path()), real_weights(folder.path())); });
}

}  // namespace

TEST_CASE("gpt_oss: the defaults are those of the 120b model") {
  const auto family = make_family(Json::parse(R"({"model_type": "gpt_oss"})"));
  const ModelGeometry& g = family->geometry();
  CHECK(g.layers == 36);
  CHECK(g.moe_layers.size() == 36);
  CHECK(g.hidden == 2880);
  CHECK(g.vocab == 201088);
  CHECK(g.max_positions == 131072);
  CHECK(g.widest_heads == 64 * 64);
  REQUIRE(g.kv.size() == 36);
  for (size_t layer = 0; layer < 36; ++layer) CHECK(g.kv[layer] == KvLayer{8, 64, layer % 2 == 0 ? 128 : 0});
  CHECK(g.expert.experts == 128);
  CHECK(g.expert.intermediate == 2880);
  CHECK(g.expert.top_k == 4);
  CHECK(g.expert.form == ExpertForm{{GluKind::kOss, 7}, true});
  // cos at position 1 of yarn without truncation, base 150000, factor 32: attention factor 1.3465736, frequencies as in
  // the published model.
  const RopeTable rope = family->make_ropes(2).front();
  REQUIRE(rope.half == 32);
  CHECK(rope.cos[32] == doctest::Approx(1.3465736 * std::cos(1.0)).epsilon(1e-6));
  CHECK(rope.sin[32 + 8] == doctest::Approx(1.3465736 * std::sin(0.05081327)).epsilon(1e-6));
  CHECK(rope.sin[32 + 9] == doctest::Approx(1.3465736 * std::sin(0.03170570)).epsilon(1e-6));
  CHECK(rope.sin[32 + 16] == doctest::Approx(1.3465736 * std::sin(4.5648e-4)).epsilon(1e-4));
}

TEST_CASE("gpt_oss: which layers have a window") {
  using Windows = std::vector<int64_t>;
  CHECK(windows("{}") == Windows{20, 0, 20, 0});
  CHECK(windows(R"({"layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]})") ==
        Windows{0, 0, 20, 0});
  Json null_window = config_with("{}");
  null_window["sliding_window"] = nullptr;
  Recorder recorder;
  make_family(null_window)->forward(recorder, ModelWeights{}, StepBatch{});
  CHECK(recorder.attentions[0].window == 0);
  CHECK(windows(R"({"sliding_window": null})") == Windows{128, 0, 128, 0});  // absent
  CHECK(mentions(refusal(R"({"layer_types": ["full_attention"]})"), {"layer_types", "4 of"}));
  CHECK(mentions(refusal(R"({"layer_types": ["a", "a", "a", "a"]})"), {"layer_types", "sliding_attention", "'a'"}));
  CHECK(mentions(refusal(R"({"layer_types": 3})"), {"layer_types"}));
}

TEST_CASE("gpt_oss: biases, sinks and routers are where the operations look for them") {
  const auto family = make_family(config_with("{}"));
  const WeightList list = family->declare_weights();
  const Recorder r = recorded("{}");
  const auto name = [&](VectorId id) { return list.vectors.at(static_cast<size_t>(id.index)).names.front(); };
  REQUIRE(r.inputs.size() == 3);
  CHECK(name(r.inputs[0].bias) == "model.layers.3.self_attn.q_proj.bias");
  CHECK(name(r.inputs[1].bias) == "model.layers.3.self_attn.k_proj.bias");
  CHECK(name(r.inputs[2].bias) == "model.layers.3.self_attn.v_proj.bias");
  CHECK(name(r.out.bias) == "model.layers.3.self_attn.o_proj.bias");
  CHECK(name(r.attentions[1].sinks) == "model.layers.1.self_attn.sinks");
  CHECK(r.attentions[1].q_norm.index == -1);
  CHECK(r.attentions[1].scale == doctest::Approx(std::pow(32.0, -0.5)).epsilon(1e-7));
  CHECK(name(r.moes[1].router.bias) == "model.layers.1.mlp.router.bias");
  CHECK(name(r.moes[1].next_router.bias) == "model.layers.2.mlp.router.bias");
  CHECK(r.moes[1].router.renormalize);
  CHECK(r.moes[3].next_router.weight.index == -1);
  const Recorder plain = recorded(R"({"attention_bias": false})");
  CHECK(plain.inputs[0].bias.index == -1);
  CHECK(plain.out.bias.index == -1);
  CHECK(make_family(config_with(R"({"tie_word_embeddings": true})"))->declare_weights().matrices.back().stems.front() ==
        "model.embed_tokens");
}

TEST_CASE("gpt_oss: numbers at their bounds and one past them") {
  struct Bound {
    const char* at;
    const char* past;
    const char* key;
  };
  const Bound bounds[] = {
      {R"({"swiglu_limit": 1e-3})", R"({"swiglu_limit": 9e-4})", "swiglu_limit"},
      {R"({"swiglu_limit": 1e6})", R"({"swiglu_limit": 1.1e6})", "swiglu_limit"},
      {R"({"sliding_window": 1})", R"({"sliding_window": 0})", "sliding_window"},
      {R"({"sliding_window": 16777216})", R"({"sliding_window": 16777217})", "sliding_window"},
      {R"({"num_local_experts": 4096})", R"({"num_local_experts": 4097})", "num_local_experts"},
      {R"({"num_experts_per_tok": 3})", R"({"num_experts_per_tok": 4})", "num_experts_per_tok"},
      {R"({"intermediate_size": 131072})", R"({"intermediate_size": 131073})", "intermediate_size"},
      {R"({"head_dim": 512})", R"({"head_dim": 514})", "head_dim"},
      {R"({"head_dim": 30})", R"({"head_dim": 31})", "head_dim"},
      {R"({"rms_norm_eps": 0.1})", R"({"rms_norm_eps": 0.11})", "rms_norm_eps"},
      {R"({"num_key_value_heads": 1})", R"({"num_key_value_heads": 3})", "num_key_value_heads"},
  };
  for (const Bound& bound : bounds) {
    CAPTURE(bound.past);
    CHECK(refusal(bound.at) == "no error");
    CHECK(mentions(refusal(bound.past), {"config.json refused", bound.key, "allowed"}));
  }
  CHECK(mentions(refusal(R"({"hidden_act": "gelu"})"), {"hidden_act", "gelu"}));
  // What is assumed of a model of 128 experts is too many for one of three.
  CHECK(mentions(refusal(R"({"num_experts_per_tok": null})"), {"num_experts_per_tok", "only 3 experts"}));
  CHECK(make_family(config_with(R"({"num_local_experts": null, "num_experts": 5})"))->geometry().expert.experts == 5);
}

TEST_CASE("gpt_oss: every weight and bias of fused BF16 experts, inputs first, gate and up in turns") {
  EditableModel model = made_model("{}");
  for (const size_t pad : {0, 1}) {
    TempFolder folder;
    model.write(folder, pad);
    check_experts(*load(folder.path()), model, 1);
  }
}

TEST_CASE("gpt_oss: experts that are staged in several strips") {
  EditableModel model = made_model(R"({"num_hidden_layers": 1, "num_local_experts": 2, "hidden_size": 1504,
      "intermediate_size": 1000, "vocab_size": 2})");
  static_assert(1504 * 1000 * 2 * 2 > kInputMajorStagingBytes);
  TempFolder folder;
  model.write(folder);
  check_experts(*load(folder.path()), model, 37);
}

TEST_CASE("gpt_oss: MXFP4 blocks, experts apart and fused ones with rows first are the same blobs") {
  EditableModel blocks = read_model(golden_folder("gpt_oss.small"));
  TempFolder as_blocks, apart;
  blocks.write(as_blocks);
  const auto expected = load(as_blocks.path());
  CHECK(expected->formats.experts == "mxfp4");
  EditableModel split = read_model(golden_folder("gpt_oss.small"));
  const ExpertGeometry& g = expected->geometry.expert;
  for (int layer = 0; layer < expected->bank.layers(); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    const auto take = [&](const char* name) { return split.tensors.extract(prefix + name).mapped(); };
    const DiskTensor codes = take("gate_up_proj_blocks"), scales = take("gate_up_proj_scales");
    const DiskTensor bias = take("gate_up_proj_bias"), down_codes = take("down_proj_blocks");
    const DiskTensor down_scales = take("down_proj_scales"), down_bias = take("down_proj_bias");
    const auto rows_of = [](const DiskTensor& tensor, int64_t first, int64_t step, int64_t count, int64_t all) {
      const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(all);
      std::string bytes;
      for (int64_t i = 0; i < count; ++i)
        bytes += tensor.bytes.substr(static_cast<size_t>(first + i * step) * row_bytes, row_bytes);
      return bytes;
    };
    const int64_t I = g.intermediate, H = g.hidden;
    for (int64_t e = 0; e < g.experts; ++e) {
      const std::string stem = prefix + std::to_string(e) + ".";
      for (int64_t up = 0; up < 2; ++up) {
        const std::string part = stem + (up == 0 ? "gate_proj" : "up_proj");
        const int64_t first = e * 2 * I + up, all = g.experts * 2 * I;
        split.tensors[part + ".weight_packed"] = {"U8", {I, H / 2}, rows_of(codes, first, 2, I, all)};
        split.tensors[part + ".weight_scale"] = {"U8", {I, H / 32}, rows_of(scales, first, 2, I, all)};
        split.tensors[part + ".bias"] = {"BF16", {I}, rows_of(bias, first, 2, I, all)};
      }
      const int64_t all = g.experts * H;
      split.tensors[stem + "down_proj.weight_packed"] = {"U8", {H, I / 2}, rows_of(down_codes, e * H, 1, H, all)};
      split.tensors[stem + "down_proj.weight_scale"] = {"U8", {H, I / 32}, rows_of(down_scales, e * H, 1, H, all)};
      split.tensors[stem + "down_proj.bias"] = {"BF16", {H}, rows_of(down_bias, e * H, 1, H, all)};
    }
  }
  split.write(apart);
  const auto loaded = load(apart.path());
  REQUIRE(loaded->bank.bytes().size() == expected->bank.bytes().size());
  CHECK(std::memcmp(loaded->bank.bytes().data(), expected->bank.bytes().data(), expected->bank.bytes().size()) == 0);
}

TEST_CASE("gpt_oss: a packed file gives the banks that it was written from, biases included") {
  EditableModel model = made_model("{}");
  TempFolder folder, packed;
  model.write(folder);
  WeightSource source = real_weights(folder.path());
  source.packed_cache = packed.path();
  const auto family = family_of(folder.path());
  for (int round = 0; round < 2; ++round) {  // packs and writes, then reads
    WorkerPool pool(pool_of(2));
    bool packs = false;
    LoadOptions options;
    options.progress = [&](const LoadProgress& progress) { packs = packs || progress.stage == "packing weights"; };
    const auto weights = load_weights(*family, source, pool, options);
    CHECK(packs == (round == 0));
    check_experts(*weights, model, 7);
  }
}

TEST_CASE("gpt_oss: tensors that are missing or of another shape are named") {
  const std::string prefix = "model.layers.2.mlp.experts.";
  const auto without = [&](const std::string& name) {
    return edited([&](EditableModel& m) { REQUIRE(m.tensors.erase(name) == 1); });
  };
  CHECK(edited([](EditableModel&) {}) == "no error");
  for (const std::string& name :
       {prefix + "gate_up_proj_bias", prefix + "down_proj_bias", prefix + "down_proj",
        std::string("model.layers.1.self_attn.sinks"), std::string("model.layers.1.mlp.router.bias")}) {
    CAPTURE(name);
    CHECK(mentions(without(name), {"lacks a tensor", name}));
  }
  const auto shaped = [&](const std::string& name, std::vector<int64_t> shape) {
    return edited([&](EditableModel& m) { m.tensors.at(name).shape = shape; });
  };
  CHECK(mentions(shaped(prefix + "gate_up_proj", {3, 192, 64}), {prefix + "gate_up_proj", "[3, 64, 192]"}));
  CHECK(mentions(shaped(prefix + "down_proj", {3, 64, 96}), {prefix + "down_proj", "[3, 96, 64]"}));
  CHECK(mentions(shaped(prefix + "gate_up_proj_bias", {192, 3}), {prefix + "gate_up_proj_bias", "[3, 192]"}));
  const auto block_edit = [&](const std::function<void(DiskTensors&)>& edit) {
    TempFolder folder;
    EditableModel model = read_model(golden_folder("gpt_oss.small"));
    edit(model.tensors);
    model.write(folder);
    return error_of([&] { inspect_formats(*family_of(folder.path()), real_weights(folder.path())); });
  };
  const std::string blocks = "model.layers.1.mlp.experts.gate_up_proj_blocks";
  const std::string scales = "model.layers.1.mlp.experts.down_proj_scales";
  CHECK(mentions(block_edit([&](DiskTensors& t) {
                   t.at(blocks).shape = {5, 192, 16, 2};
                 }),
                 {blocks, "[5, 192, 2, 16]"}));
  CHECK(mentions(block_edit([&](DiskTensors& t) { t.at(blocks).dtype = "I8"; }), {blocks, "I8", "U8"}));
  CHECK(mentions(block_edit([&](DiskTensors& t) { t.erase(scales); }), {"lacks a tensor", scales}));
  CHECK(mentions(block_edit([&](DiskTensors& t) { t.at(scales).shape = {5, 3, 64}; }), {scales, "[5, 64, 3]"}));
  const std::string down = "model.layers.1.mlp.experts.down_proj_blocks";
  CHECK(mentions(block_edit([&](DiskTensors& t) { t.erase(down); }), {"lacks a tensor", down}));
}

TEST_CASE("gpt_oss: OpenAI's own layout is named, by its configuration and by its tensors") {
  // original/config.json of the 20b model
  CHECK(mentions(refusal_of(Json::parse(R"({"num_hidden_layers": 24, "num_experts": 32, "experts_per_token": 4,
      "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "swiglu_limit": 7.0, "head_dim": 64,
      "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128, "initial_context_length": 4096,
      "rope_theta": 150000, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1, "rope_ntk_beta": 32})")),
                 {"not supported", "OpenAI", "original/", "Hugging Face"}));
  const std::string error = edited([](EditableModel& model) {
    model.tensors["block.0.attn.qkv.weight"] = model.tensors.extract("model.embed_tokens.weight").mapped();
  });
  CHECK(mentions(error, {"not supported", "OpenAI", "block.0.attn.qkv.weight", "Hugging Face"}));
}
