// Checked against: matches written out by hand for the pattern languages of Python's fnmatch and re, and the formats
// that published configurations are known to give.
#include "engine/model/quantization.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

constexpr const char* kExpert = "model.layers.3.mlp.experts.7.gate_proj";
constexpr const char* kQuery = "model.layers.3.self_attn.q_proj";

Json with(const std::string& quantization) { return Json::parse("{\"quantization_config\":" + quantization + "}"); }

FormatId format_in(const std::string& quantization, const char* module) {
  return QuantizationRules(with(quantization)).format_of(module);
}

std::string refusal(const std::string& quantization) {
  return error_of([&] { const QuantizationRules rules(with(quantization)); });
}

std::string modelopt(const std::string& ignore) {
  return R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":)" + ignore + "}";
}
std::string compressed(const std::string& ignore) {
  return R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":)" + ignore + "}";
}
std::string fp8(const std::string& skipped) {
  return R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":)" + skipped + "}";
}

}  // namespace

TEST_CASE("globs match whole names as fnmatch does") {
  CHECK(glob_match("*mlp.gate", "model.layers.0.mlp.gate"));
  CHECK(!glob_match("*mlp.gate", "model.layers.0.mlp.gate_proj"));
  CHECK(!glob_match("mlp.gate", "model.layers.0.mlp.gate"));
  CHECK(glob_match("*", ""));
  CHECK(glob_match("", ""));
  CHECK(!glob_match("", "a"));
  CHECK(glob_match("a?c", "abc"));
  CHECK(!glob_match("a?c", "ac"));
  CHECK(glob_match("layers.[0-3].*", "layers.2.x"));
  CHECK(!glob_match("layers.[0-3].*", "layers.4.x"));
  CHECK(glob_match("layers.[!0-3].*", "layers.4.x"));
  CHECK(glob_match("[]]", "]"));
  CHECK(glob_match("a[", "a["));
  CHECK(glob_match("*a*b*c", "xxaxxbxxbxxc"));
  CHECK(!glob_match("*a*b*c", "xxaxxcxx"));
}

TEST_CASE("a hostile glob takes time in proportion to pattern and text only") {
  std::string pattern;
  for (int i = 0; i < 300; ++i) pattern += "a*";
  CHECK(!glob_match(pattern + "b", std::string(1000, 'a')));
}

TEST_CASE("no quantization means bf16") {
  CHECK(QuantizationRules(Json::object()).format_of(kExpert) == FormatId::kBf16);
  CHECK(format_in("null", kExpert) == FormatId::kBf16);
}

TEST_CASE("modelopt ignores by glob, a name covers what it encloses") {
  CHECK(format_in(modelopt("[]"), kExpert) == FormatId::kNvfp4);
  CHECK(format_in(modelopt(R"(["*self_attn*"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(modelopt(R"(["*self_attn*"])"), kExpert) == FormatId::kNvfp4);
  CHECK(format_in(modelopt(R"(["model.layers.3.self_attn"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(modelopt(R"(["model.layers.3*"])"), kExpert) == FormatId::kBf16);
  CHECK(format_in(modelopt(R"(["model.layers.33*"])"), kExpert) == FormatId::kNvfp4);
  const std::string excluded =
      R"({"quant_method":"modelopt","quant_algo":"NVFP4","exclude_modules":["*.experts.7.*"]})";
  CHECK(format_in(excluded, kExpert) == FormatId::kBf16);
}

TEST_CASE("compressed-tensors ignores by exact name or by anchored expression, within its targets") {
  CHECK(format_in(compressed("[]"), kExpert) == FormatId::kNvfp4);
  CHECK(format_in(compressed(R"(["re:.*self_attn.*"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(compressed(R"(["re:self_attn"])"), kQuery) == FormatId::kNvfp4);  // anchored at the start
  CHECK(format_in(compressed(R"(["re:.*gate$"])"), kExpert) == FormatId::kNvfp4);
  CHECK(format_in(compressed(R"(["model.layers.3.self_attn.q_proj"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(compressed(R"(["model.layers.3.self_attn"])"), kQuery) == FormatId::kNvfp4);
  const std::string targeted = R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",
      "config_groups":{"g":{"targets":["re:.*experts.*"],"weights":{"num_bits":4,"group_size":16}}}})";
  CHECK(format_in(targeted, kExpert) == FormatId::kNvfp4);
  CHECK(format_in(targeted, kQuery) == FormatId::kBf16);
}

TEST_CASE("mxfp4 of compressed-tensors is a scheme like nvfp4, mxfp4 alone means routed experts") {
  const std::string targeted = R"({"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized","ignore":[],
      "config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"float","group_size":32}}}})";
  CHECK(format_in(targeted, kExpert) == FormatId::kMxfp4);
  CHECK(format_in(targeted, kQuery) == FormatId::kMxfp4);
  const std::string of_16 = R"({"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized",
      "config_groups":{"g":{"targets":["Linear"],"weights":{"group_size":16}}}})";
  CHECK(mentions(refusal(of_16), {"config_groups.g.weights.group_size", "16", "32"}));
  CHECK(format_in(R"({"quant_method":"mxfp4"})", kExpert) == FormatId::kMxfp4);
  CHECK(format_in(R"({"quant_method":"mxfp4"})", kQuery) == FormatId::kBf16);
  CHECK(format_in(R"({"quant_method":"mxfp4"})", "model.layers.3.mlp.shared_experts.gate_proj") == FormatId::kBf16);
  const std::string skipped = R"({"quant_method":"mxfp4","modules_to_not_convert":["model.layers.*.mlp"]})";
  CHECK(format_in(skipped, kExpert) == FormatId::kBf16);
}

TEST_CASE("fp8 of modelopt and of compressed-tensors, with one scale, one a row or blocks") {
  CHECK(format_in(R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["lm_head"]})", kExpert) ==
        FormatId::kFp8Block);
  CHECK(format_in(R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["*self_attn*"]})", kQuery) ==
        FormatId::kBf16);
  CHECK(format_in(R"({"quant_method":"modelopt","quant_algo":"FP8_PER_CHANNEL_PER_TOKEN"})", kExpert) ==
        FormatId::kFp8Channel);
  const auto group = [](const std::string& weights) {
    return R"({"quant_method":"compressed-tensors","format":"float-quantized","ignore":["lm_head"],
        "config_groups":{"g":{"targets":["Linear"],"weights":)" +
           weights + "}}}";
  };
  CHECK(format_in(group(R"({"num_bits":8,"type":"float","strategy":"tensor"})"), kQuery) == FormatId::kFp8Block);
  CHECK(format_in(group(R"({"num_bits":8,"strategy":"block","block_structure":[128,128]})"), kExpert) ==
        FormatId::kFp8Block);
  CHECK(format_in(group(R"({"num_bits":8,"strategy":"channel"})"), kQuery) == FormatId::kFp8Channel);
  CHECK(format_in(group(R"({"num_bits":8,"strategy":"channel"})"), kExpert) == FormatId::kFp8Channel);
  CHECK(mentions(refusal(group(R"({"num_bits":8,"strategy":"group"})")),
                 {"config_groups.g.weights.strategy", "group", "tensor, channel, block"}));
  const std::string mixed = R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{
      "a":{"targets":["re:.*attn.*"],"weights":{"strategy":"channel"}},
      "b":{"targets":["re:.*mlp.*"],"weights":{"strategy":"tensor"}}}})";
  CHECK(mentions(refusal(mixed), {"config_groups.b.weights.strategy", "tensor", "groups before"}));
  CHECK(mentions(refusal(group(R"({"num_bits":8,"strategy":"block","block_structure":[64,128]})")),
                 {"config_groups.g.weights.block_structure", "[128, 128]"}));
  CHECK(mentions(refusal(group(R"({"num_bits":8,"strategy":"block"})")), {"block_structure"}));
  CHECK(mentions(refusal(group(R"({"num_bits":4})")), {"config_groups.g.weights.num_bits", "4"}));
  CHECK(mentions(refusal(group(R"({"num_bits":8,"type":"int"})")), {"config_groups.g.weights.type", "int"}));
}

TEST_CASE("expert_dtype fp4 changes routed experts only, beside quantization_config or in it") {
  const std::string inside = R"({"quant_method":"fp8","weight_block_size":[128,128],"expert_dtype":"fp4"})";
  CHECK(format_in(inside, kExpert) == FormatId::kMxfp4);
  CHECK(format_in(inside, kQuery) == FormatId::kFp8Block);
  Json config = with(fp8("[]"));
  config["expert_dtype"] = "fp4";
  CHECK(QuantizationRules(config).format_of(kExpert) == FormatId::kMxfp4);
  config["expert_dtype"] = "fp8";
  CHECK(QuantizationRules(config).format_of(kExpert) == FormatId::kFp8Block);
  config["expert_dtype"] = "int3";
  CHECK(mentions(error_of([&] { const QuantizationRules rules(config); }), {"expert_dtype", "int3", "fp4, fp8"}));
}

TEST_CASE("fp8 skips by name, by what encloses, and by ending") {
  CHECK(format_in(fp8("[]"), kQuery) == FormatId::kFp8Block);
  CHECK(format_in(fp8(R"(["model.layers.3.self_attn.q_proj"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(fp8(R"(["model.layers.3.self_attn"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(fp8(R"(["q_proj"])"), kQuery) == FormatId::kBf16);
  CHECK(format_in(fp8(R"(["_proj"])"), kQuery) == FormatId::kFp8Block);
  const std::string layers = R"({"quant_method":"fp8","weight_block_size":[128,128],"ignored_layers":["q_proj"]})";
  CHECK(format_in(layers, kQuery) == FormatId::kBf16);
}

TEST_CASE("schemes that are not supported are named with those that are") {
  CHECK(mentions(refusal(R"({"quant_method":"gptq"})"), {"quant_method", "gptq", "modelopt, compressed-tensors, fp8"}));
  CHECK(mentions(refusal("{}"), {"quant_method", "absent"}));
  CHECK(mentions(refusal("[]"), {"quantization_config", "an object"}));
  CHECK(
      mentions(refusal(R"({"quant_method":"modelopt","quant_algo":"MXFP8"})"), {"quant_algo", "MXFP8", "NVFP4, FP8"}));
  CHECK(mentions(refusal(R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32})"), {"group_size", "32"}));
  CHECK(mentions(refusal(R"({"quant_method":"compressed-tensors","format":"pack-quantized"})"), {"format", "pack-"}));
  CHECK(mentions(refusal(R"({"quant_method":"fp8"})"), {"weight_block_size", "absent", "[128, 128]"}));
  CHECK(mentions(refusal(R"({"quant_method":"fp8","weight_block_size":[64,128]})"), {"[64,128]", "[128, 128]"}));
  CHECK(mentions(refusal(R"({"quant_method":"fp8","weight_block_size":"x"})"), {"weight_block_size", "[128, 128]"}));
}

TEST_CASE("lists and expressions are checked") {
  CHECK(mentions(refusal(modelopt("7")), {"quantization_config.ignore", "texts"}));
  CHECK(mentions(refusal(modelopt("[7]")), {"quantization_config.ignore", "texts"}));
  CHECK(refusal(modelopt("[\"" + std::string(kMaxPatternBytes, 'a') + "\"]")) == "no error");
  CHECK(mentions(refusal(modelopt("[\"" + std::string(kMaxPatternBytes + 1, 'a') + "\"]")), {"ignore", "1024 bytes"}));
  const auto repeated = [](const char* entry, size_t count) {
    std::string list = "[";
    for (size_t i = 0; i < count; ++i) {
      if (i != 0) list += ",";
      list += entry;
    }
    list += "]";
    return list;
  };
  CHECK(refusal(compressed(repeated("\"re:a\"", 256))) == "no error");
  CHECK(mentions(refusal(compressed(repeated("\"re:a\"", 257))), {"ignore", "at most 256 patterns"}));
  CHECK(refusal(modelopt(repeated("\"a*\"", 4096))) == "no error");
  CHECK(mentions(refusal(modelopt(repeated("\"a*\"", 4097))), {"ignore", "at most 4096 patterns"}));
  CHECK(refusal(modelopt(repeated("\"a\"", 100000))) == "no error");
  CHECK(mentions(refusal(modelopt(repeated("\"a\"", 100001))), {"ignore", "at most 100000"}));
  CHECK(mentions(refusal(compressed(R"(["re:("])")), {"ignore", "regular expressions"}));
  // Catastrophic backtracking ends in an error instead of a hang.
  const Json hostile = with(compressed(R"(["re:(a+)+[bc]"])"));
  const QuantizationRules rules(hostile);
  CHECK(mentions(error_of([&] { rules.format_of(std::string(60, 'a')); }), {"takes too long"}));
}
