// Checked against: the real checkpoints whose config.json the synthetic weights follow, and properties of the values.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

bool same_bytes(const ModelWeights& a, const ModelWeights& b) {
  for (size_t i = 0; i < a.matrices.size(); ++i) {
    const auto bytes = static_cast<size_t>(a.matrices[i].layout.bytes);
    if (std::memcmp(a.matrices[i].data, b.matrices[i].data, bytes) != 0) return false;
  }
  const EmbeddingTable &ta = a.tables[0], &tb = b.tables[0];
  if (std::memcmp(ta.rows, tb.rows, static_cast<size_t>(ta.count * ta.width) * 2) != 0) return false;
  for (int layer = 0; layer < a.bank.layers(); ++layer) {
    for (int e = 0; e < a.bank.experts(); ++e) {
      const auto bytes = static_cast<size_t>(a.bank.layout(layer).bytes);
      if (std::memcmp(a.bank.blob(layer, e), b.bank.blob(layer, e), bytes) != 0) return false;
    }
  }
  return true;
}

// Largest |weight|, and the sum of squares, over one packed matrix; checks that all are finite.
struct Spread {
  double largest = 0, squares = 0;
};
Spread spread_of(const PackedMatrix& matrix) {
  Spread spread;
  std::vector<float> row(static_cast<size_t>(matrix.layout.cols));
  for (int64_t r = 0; r < matrix.layout.rows; ++r) {
    format_info(matrix.layout.format).decode_row(matrix.layout, matrix.data, r, row.data());
    for (const float value : row) {
      if (!std::isfinite(value * matrix.global)) FAIL("not finite");
      spread.largest = std::max(spread.largest, std::abs(static_cast<double>(value * matrix.global)));
      spread.squares += static_cast<double>(value * matrix.global) * static_cast<double>(value * matrix.global);
    }
  }
  return spread;
}

}  // namespace

TEST_CASE("synthetic weights have the formats and bytes of the real checkpoint") {
  for (const std::string& folder : all_golden_folders()) {
    CAPTURE(folder);
    const auto family = family_of(folder);
    const ModelFormats real = inspect_formats(*family, real_weights(folder));
    const ModelFormats made = inspect_formats(*family, synthetic_weights(folder));
    CHECK(made.dense == real.dense);
    CHECK(made.experts == real.experts);
    CHECK(same_formats(made, real));
    CHECK(same_formats(load_synthetic(folder, 1)->formats, real));
  }
}

TEST_CASE("config.json alone is enough, and a seed means the same weights on any number of threads") {
  TempFolder folder;
  folder.write("config.json", read_model(golden_folder("qwen3_moe-fp8_block")).config_text());
  const auto one = load_synthetic(folder.path(), 5, 1);
  CHECK(one->checkpoint == nullptr);
  CHECK(same_bytes(*one, *load_synthetic(folder.path(), 5, 3)));
  CHECK(!same_bytes(*one, *load_synthetic(folder.path(), 6, 1)));
}

TEST_CASE("no two synthetic experts are the same") {
  const auto weights = load_synthetic(golden_folder("qwen3_moe-nvfp4_ct"), 0);
  const auto bytes = static_cast<size_t>(weights->bank.layout(0).gate.bytes);
  const ExpertBank& bank = weights->bank;
  for (int other = 1; other < bank.layers() * bank.experts(); ++other) {
    CHECK(std::memcmp(bank.blob(0, 0), bank.blob(other / bank.experts(), other % bank.experts()), bytes) != 0);
  }
}

TEST_CASE("synthetic values keep activations finite") {
  for (const char* name : {"qwen3_moe.b", "qwen3_moe-fp8_block", "qwen3_moe-nvfp4_ct"}) {
    CAPTURE(name);
    const auto weights = load_synthetic(golden_folder(name), 3);
    for (const PackedMatrix& matrix : weights->matrices) {
      const Spread spread = spread_of(matrix);
      // A row's gain, sqrt(cols) times the values' size, is of the order of 1.
      const double gain = std::sqrt(spread.squares / static_cast<double>(matrix.layout.rows));
      CHECK(gain > 0.05);
      CHECK(gain < 20);
    }
    const ExpertLayout& layout = weights->bank.layout(0);
    CHECK(spread_of(expert_down(layout, weights->bank.blob(0, 1))).largest > 0);
    for (const auto& vector : weights->vectors) {
      for (const float value : vector) CHECK(value == 1.0f);
    }
    const EmbeddingTable& table = weights->tables[0];
    for (int64_t i = 0; i < table.count * table.width; ++i) {
      const float size = std::abs(to_float(table.rows[i]));
      CHECK((size >= 0x1p-5f && size < 0x1p-4f));
    }
  }
}

TEST_CASE("biases are zero") {
  TempFolder folder;
  folder.write("config.json", R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32, "vocab_size": 100, "attention_bias": true})");
  const auto family = family_of(folder.path());
  const auto weights = load_synthetic(folder.path(), 1);
  const WeightList list = family->declare_weights();
  int biases = 0;
  for (size_t i = 0; i < list.vectors.size(); ++i) {
    const bool bias = list.vectors[i].names[0].ends_with("_proj.bias");
    biases += bias;
    for (const float value : weights->vectors[i]) CHECK(value == (bias ? 0.0f : 1.0f));
  }
  CHECK(biases == 4);
}

TEST_CASE("what config.json cannot mean") {
  const auto refusal = [](const std::function<void(Json&)>& edit) {
    TempFolder folder;
    EditableModel model = read_model(golden_folder("qwen3_moe-nvfp4_modelopt"));
    edit(*model.config);
    folder.write("config.json", model.config_text());
    return error_of([&] { inspect_formats(*family_of(folder.path()), synthetic_weights(folder.path())); });
  };
  CHECK(refusal([](Json&) {}) == "no error");
  CHECK(mentions(refusal([](Json& c) { c["moe_intermediate_size"] = 72; }), {"down_proj", "72", "multiple of 16"}));
  CHECK(mentions(refusal([](Json& c) { c["quantization_config"]["ignore"].push_back("*.up_proj"); }),
                 {"different formats", "up_proj"}));
  CHECK(mentions(refusal([](Json& c) { c["quantization_config"] = {{"quant_method", "gptq"}}; }), {"gptq"}));
  CHECK(mentions(refusal([](Json& c) {
                   c["quantization_config"] = {{"quant_method", "mxfp4"}};
                   c["moe_intermediate_size"] = 80;
                 }),
                 {"down_proj", "mxfp4 with 80 columns", "multiple of 32"}));
}

TEST_CASE("configurations that make MXFP4 experts, and no more of it, and fp8 with a scale a row") {
  const auto formats = [](const Json& quantization, const char* expert_dtype) {
    TempFolder folder;
    EditableModel model = read_model(golden_folder("qwen3_moe-nvfp4_modelopt"));
    (*model.config)["quantization_config"] = quantization;
    if (expert_dtype != nullptr) (*model.config)["expert_dtype"] = expert_dtype;
    folder.write("config.json", model.config_text());
    const auto weights = load_synthetic(folder.path(), 1);
    return weights->formats.experts + " " + weights->formats.dense;
  };
  const Json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  CHECK(formats({{"quant_method", "mxfp4"}}, nullptr) == "mxfp4 bf16");
  CHECK(formats({{"quant_method", "compressed-tensors"}, {"format", "mxfp4-pack-quantized"}}, nullptr) ==
        "mxfp4 bf16+mxfp4");
  CHECK(formats(fp8, "fp4") == "mxfp4 bf16+fp8_block");
  CHECK(formats(fp8, "fp8") == "fp8_block bf16+fp8_block");
  CHECK(formats(nullptr, "fp4") == "mxfp4 bf16");
  CHECK(formats({{"quant_method", "modelopt"}, {"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}, {"ignore", {"lm_head"}}},
                nullptr) == "fp8_channel bf16+fp8_channel");
}

TEST_CASE("layers that an ignore list leaves alone are bf16") {
  TempFolder folder;
  EditableModel model = read_model(golden_folder("qwen3_moe-nvfp4_modelopt"));
  (*model.config)["quantization_config"]["ignore"].push_back("model.layers.2.mlp.experts*");
  folder.write("config.json", model.config_text());
  const ModelFormats formats = inspect_formats(*family_of(folder.path()), synthetic_weights(folder.path()));
  CHECK(formats.expert_format == std::vector{FormatId::kNvfp4, FormatId::kBf16, FormatId::kNvfp4});
}
