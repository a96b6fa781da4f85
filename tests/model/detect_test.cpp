// Checked against: golden checkpoints broken in one stated way each; the message must name the tensor, what it is and
// what is wanted.
#include "engine/model/detect.h"

#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

constexpr const char* kExpert = "model.layers.3.mlp.experts.5.up_proj";

// Error of inspecting the golden case after an edit.
std::string edited(std::string_view name, const std::function<void(EditableModel&)>& edit) {
  TempFolder folder;
  EditableModel model = read_model(golden_folder(name));
  edit(model);
  model.write(folder);
  return error_of([&] { inspect_formats(*family_of(folder.path()), real_weights(folder.path())); });
}

// Error of loading it, for what only the data shows.
std::string edited_load(std::string_view name, const std::function<void(EditableModel&)>& edit) {
  TempFolder folder;
  EditableModel model = read_model(golden_folder(name));
  edit(model);
  model.write(folder);
  return error_of([&] { load(folder.path()); });
}

DiskTensor zeros(const std::string& dtype, std::vector<int64_t> shape, size_t element_bytes) {
  size_t count = element_bytes;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return {dtype, std::move(shape), std::string(count, '\0')};
}

std::string f32(float value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

}  // namespace

TEST_CASE("every tensor of a golden case is needed") {
  // The last of each kind; input scales of activations are not read.
  for (const char* name : {"model.norm.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight",
                           "model.layers.3.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight",
                           "model.layers.2.mlp.gate.weight", "lm_head.weight"}) {
    CAPTURE(name);
    CHECK(mentions(edited("qwen3_moe-nvfp4_modelopt", [&](EditableModel& m) { REQUIRE(m.tensors.erase(name) == 1); }),
                   {"lacks a tensor", name}));
  }
  const auto without = [](std::string_view golden, const std::string& name) {
    return edited(golden, [&](EditableModel& m) { REQUIRE(m.tensors.erase(name) == 1); });
  };
  const std::string stem = kExpert;
  CHECK(mentions(without("qwen3_moe-nvfp4_modelopt", stem + ".weight"), {"lacks a tensor", stem + ".weight"}));
  CHECK(mentions(without("qwen3_moe-nvfp4_modelopt", stem + ".weight_scale"),
                 {"lacks a tensor", stem + ".weight_scale"}));
  CHECK(mentions(without("qwen3_moe-nvfp4_modelopt", stem + ".weight_scale_2"), {stem, "U8 matrix", "NVFP4"}));
  CHECK(mentions(without("qwen3_moe-nvfp4_ct", stem + ".weight_global_scale"),
                 {"lacks a tensor", stem + ".weight_global_scale"}));
  CHECK(mentions(without("qwen3_moe-fp8_block", stem + ".weight_scale_inv"), {stem, "fp8 without scales"}));
  CHECK(without("qwen3_moe-nvfp4_modelopt", stem + ".input_scale") == "no error");
}

TEST_CASE("wrong shapes are refused with the shape and the wanted one") {
  const auto reshaped = [](std::string_view golden, const std::string& name, std::vector<int64_t> shape) {
    return edited(golden, [&](EditableModel& m) { m.tensors.at(name).shape = shape; });
  };
  const std::string stem = kExpert;
  CHECK(mentions(reshaped("qwen3_moe.b", "model.layers.1.mlp.gate.weight", {64, 8}),
                 {"model.layers.1.mlp.gate.weight", "BF16 [64, 8]", "BF16 [8, 64]"}));
  CHECK(mentions(reshaped("qwen3_moe.b", "model.norm.weight", {1, 64}), {"model.norm.weight", "BF16 [1, 64]", "[64]"}));
  CHECK(mentions(reshaped("qwen3_moe.b", "model.embed_tokens.weight", {64, 320}), {"model.embed_tokens", "[320, 64]"}));
  CHECK(
      mentions(reshaped("qwen3_moe-nvfp4_modelopt", stem + ".weight", {32, 64}), {stem, "U8 [32, 64]", "U8 [64, 32]"}));
  CHECK(mentions(reshaped("qwen3_moe-nvfp4_modelopt", stem + ".weight_scale", {4, 64}),
                 {stem + ".weight_scale", "F8_E4M3 [64, 4]"}));
  CHECK(mentions(reshaped("qwen3_moe-fp8_block", stem + ".weight_scale_inv", {4}), {stem, "F32 [4]", "F32 [2, 2]"}));
  CHECK(reshaped("qwen3_moe-nvfp4_modelopt", stem + ".weight_scale_2", {1}) == "no error");
  CHECK(mentions(edited("qwen3_moe-nvfp4_ct",
                        [&](EditableModel& m) { m.tensors.at(stem + ".weight_global_scale") = zeros("F32", {2}, 4); }),
                 {stem + ".weight_global_scale", "F32 [2]", "one F32"}));
}

TEST_CASE("a config.json that does not belong to the weights") {
  CHECK(mentions(edited("qwen3_moe.b", [](EditableModel& m) { (*m.config)["hidden_size"] = 128; }),
                 {"does not fit config.json", "q_proj.weight", "[128, 64]", "[128, 128]"}));
  CHECK(mentions(edited("qwen3_moe.b", [](EditableModel& m) { (*m.config)["num_local_experts"] = 9; }),
                 {"model.layers.1.mlp.gate.weight", "[9, 64]"}));
  CHECK(mentions(edited("qwen3_moe.b", [](EditableModel& m) { (*m.config)["num_hidden_layers"] = 6; }),
                 {"lacks a tensor", "model.layers.4"}));
}

TEST_CASE("formats that are not supported are named with those that are") {
  const std::string stem = kExpert;
  const auto as = [&](std::string_view golden, const std::string& ending, const DiskTensor& tensor,
                      const std::string& also = "", const DiskTensor& also_tensor = {}) {
    return edited(golden, [&](EditableModel& m) {
      std::erase_if(m.tensors, [&](const auto& entry) { return entry.first.starts_with(stem); });
      m.tensors[stem + ending] = tensor;
      if (!also.empty()) m.tensors[stem + also] = also_tensor;
    });
  };
  const std::string case_name = "qwen3_moe-nvfp4_modelopt";
  CHECK(
      mentions(as(case_name, ".qweight", zeros("I32", {8, 64}, 4)), {stem + ".qweight", "GPTQ or AWQ", "bf16", "fp8"}));
  CHECK(mentions(as(case_name, ".weight_packed", zeros("I32", {64, 8}, 4)), {"compressed-tensors int4", "NVFP4"}));
  // gpt-oss's names are those of stacks only.
  CHECK(mentions(as(case_name, "_blocks", zeros("U8", {8, 64, 2, 16}, 1)), {"lacks a tensor", stem}));
  CHECK(mentions(as(case_name, ".weight", zeros("F8_E4M3", {64, 64}, 1), ".weight_scale", zeros("U8", {64, 2}, 1)),
                 {"MXFP8"}));
  CHECK(mentions(as(case_name, ".weight", zeros("F32", {64, 64}, 4)), {"F32 matrix"}));
  CHECK(mentions(as(case_name, ".weight", zeros("F16", {64, 64}, 2)), {"F16 matrix"}));
  CHECK(mentions(as(case_name, ".weight", zeros("I8", {64, 64}, 1)), {"I8 matrix"}));
}

TEST_CASE("MXFP4 tensors of another dtype or shape, or alone") {
  const std::string stem = kExpert;
  const auto edit = [&](Mxfp4Names names, const std::function<void(DiskTensors&)>& change) {
    return edited("qwen3_moe.b", [&](EditableModel& m) {
      to_mxfp4(m.tensors, ".experts.", names);
      change(m.tensors);
    });
  };
  const auto none = [](DiskTensors&) {};
  const auto put = [&](const std::string& ending, const DiskTensor& tensor) {
    return [=](DiskTensors& tensors) { tensors.at(stem + ending) = tensor; };
  };
  const auto erase = [&](const std::string& ending) {
    return [=](DiskTensors& tensors) { REQUIRE(tensors.erase(stem + ending) == 1); };
  };
  const Mxfp4Names packed = Mxfp4Names::kCompressedTensors, deepseek = Mxfp4Names::kDeepseek;
  CHECK(edit(packed, none) == "no error");
  CHECK(mentions(edit(packed, erase(".weight_scale")), {"lacks a tensor", stem + ".weight_scale"}));
  CHECK(mentions(edit(packed, put(".weight_packed", zeros("I8", {64, 32}, 1))), {stem, "I8 [64, 32]", "U8 [64, 32]"}));
  CHECK(mentions(edit(packed, put(".weight_packed", zeros("U8", {64, 64}, 1))), {stem, "U8 [64, 64]", "U8 [64, 32]"}));
  CHECK(mentions(edit(packed, put(".weight_scale", zeros("U8", {64, 4}, 1))),
                 {stem + ".weight_scale", "U8 [64, 4]", "U8 [64, 2]"}));
  CHECK(mentions(edit(packed, put(".weight_scale", zeros("F32", {64, 2}, 4))), {stem, "F32 [64, 2]", "U8 [64, 2]"}));
  CHECK(edit(deepseek, none) == "no error");
  CHECK(edit(deepseek, put(".weight", zeros("U8", {64, 32}, 1))) == "no error");
  CHECK(mentions(edit(deepseek, erase(".scale")), {stem, "I8 matrix", "MXFP4"}));
  CHECK(mentions(edit(deepseek, put(".weight", zeros("I8", {32, 64}, 1))), {stem, "I8 [32, 64]", "I8 [64, 32]"}));
  CHECK(mentions(edit(deepseek, put(".scale", zeros("F8_E8M0", {2, 64}, 1))), {stem, "[2, 64]", "F8_E8M0 [64, 2]"}));
  CHECK(mentions(edit(deepseek, put(".scale", zeros("F32", {64, 2}, 4))), {stem, "F32 [64, 2]", "F8_E8M0 [64, 2]"}));
  CHECK(mentions(edit(deepseek, [&](DiskTensors& t) { t.at(stem + ".scale").shape = {128}; }), {stem, "[128]"}));
  const auto narrower = [](EditableModel& m) {
    to_mxfp4(m.tensors, ".experts.", Mxfp4Names::kDeepseek);
    (*m.config)["moe_intermediate_size"] = 48;
    for (auto& [name, tensor] : m.tensors) {
      if (name.find(".experts.") != std::string::npos && name.find("down_proj") == std::string::npos) {
        const size_t row_bytes = tensor.bytes.size() / 64;
        tensor.shape[0] = 48;
        tensor.bytes.resize(48 * row_bytes);
      }
    }
  };
  CHECK(mentions(edited("qwen3_moe.b", narrower), {"down_proj", "multiple of 32 columns, not 48"}));
}

TEST_CASE("experts of one layer have one format, layers may differ") {
  const auto with_bf16 = [](EditableModel& m, const std::string& stem) {
    std::erase_if(m.tensors, [&](const auto& entry) { return entry.first.starts_with(stem); });
    m.tensors[stem + ".weight"] = zeros("BF16", {64, 64}, 2);
  };
  CHECK(mentions(edited("qwen3_moe-nvfp4_modelopt", [&](EditableModel& m) { with_bf16(m, kExpert); }),
                 {"different formats", kExpert, "bf16", "nvfp4"}));
  TempFolder folder;
  EditableModel model = read_model(golden_folder("qwen3_moe-nvfp4_modelopt"));
  for (int e = 0; e < 8; ++e) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      with_bf16(model, "model.layers.2.mlp.experts." + std::to_string(e) + "." + part);
    }
  }
  model.write(folder);
  const ModelFormats formats = load(folder.path())->formats;
  CHECK(formats.experts == "bf16+nvfp4");
  CHECK(formats.expert_format == std::vector{FormatId::kNvfp4, FormatId::kBf16, FormatId::kNvfp4});
  CHECK(formats.expert_bytes_max == expert_layout(FormatId::kBf16, 64, 64).bytes);
}

TEST_CASE("fp8 blocks other than 128 x 128") {
  CHECK(mentions(edited("qwen3_moe-fp8_block",
                        [](EditableModel& m) {
                          (*m.config)["quantization_config"]["weight_block_size"] = {64, 64};
                        }),
                 {"weight_block_size", "[64,64]", "[128, 128]"}));
  // Without the setting the shapes of the scales decide.
  CHECK(edited("qwen3_moe-fp8_block",
               [](EditableModel& m) { (*m.config)["quantization_config"].erase("weight_block_size"); }) == "no error");
}

TEST_CASE("global scales that cannot be used") {
  const auto with = [](std::string_view golden, const char* ending, float value) {
    return edited_load(golden,
                       [&](EditableModel& m) { m.tensors.at(std::string(kExpert) + ending).bytes = f32(value); });
  };
  CHECK(mentions(with("qwen3_moe-nvfp4_ct", ".weight_global_scale", 0.0f), {kExpert, "global scale", "other than 0"}));
  CHECK(mentions(with("qwen3_moe-nvfp4_ct", ".weight_global_scale", 1e-40f), {kExpert, "global scale"}));
  CHECK(mentions(with("qwen3_moe-nvfp4_modelopt", ".weight_scale_2", std::numeric_limits<float>::quiet_NaN()),
                 {kExpert, "global scale", "finite"}));
  CHECK(with("qwen3_moe-nvfp4_modelopt", ".weight_scale_2", 0.0f) == "no error");
}

TEST_CASE("config.json does not decide the format") {
  CHECK(edited("qwen3_moe-nvfp4_ct", [](EditableModel& m) { m.config->erase("quantization_config"); }) == "no error");
  CHECK(edited("qwen3_moe.b", [](EditableModel& m) {
          (*m.config)["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
        }) == "no error");
}
