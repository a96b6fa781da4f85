// Checked against: code times scale from kernels/base/fp_codes.h, over tensors that the test makes: fp8 matrices with
// one scale, with one for each block or row, and with scales that are powers of two, as modelopt, compressed-tensors
// and DeepSeek-V4 name them.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/model/family.h"
#include "kernels/base/fp_codes.h"
#include "kernels/base/random.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

constexpr int64_t kHidden = 272, kIntermediate = 160, kExperts = 3;  // ragged blocks of scales

enum class Of { kMatrix, kBlocks, kRows, kRowsOfOne };  // the last: [rows, 1]
struct Scales {
  const char* ending;
  const char* dtype;
  Of of = Of::kMatrix;
  std::vector<int64_t> single_shape = {};

  bool of_rows() const { return of == Of::kRows || of == Of::kRowsOfOne; }
  std::string format() const { return of_rows() ? "fp8_channel" : "fp8_block"; }
};

const Scales kForms[] = {{".weight_scale", "F32"},
                         {".weight_scale", "F32", Of::kMatrix, {1}},
                         {".weight_scale", "BF16", Of::kMatrix, {1}},
                         {".weight_scale_inv", "F32"},
                         {".weight_scale", "F32", Of::kBlocks},
                         {".weight_scale", "BF16", Of::kBlocks},
                         {".weight_scale_inv", "BF16", Of::kBlocks},
                         {".scale", "F8_E8M0", Of::kBlocks},
                         {".weight_scale", "F32", Of::kRows},
                         {".weight_scale", "F32", Of::kRowsOfOne},
                         {".weight_scale", "BF16", Of::kRowsOfOne},
                         {".weight_scale_inv", "F32", Of::kRowsOfOne}};
constexpr size_t kE8m0Form = 7, kRowsForm = 9;

int64_t blocks_of(int64_t size) { return (size + 127) / 128; }

struct MadeMatrix {
  std::vector<float> values;
  DiskTensor codes, scales;
};

MadeMatrix make_matrix(int64_t rows, int64_t cols, const Scales& form, Random& random) {
  MadeMatrix made;
  made.codes = {"F8_E4M3", {rows, cols}, ""};
  made.scales = {form.dtype, form.single_shape, ""};
  if (form.of == Of::kBlocks) made.scales.shape = {blocks_of(rows), blocks_of(cols)};
  if (form.of_rows()) made.scales.shape = {rows};
  if (form.of == Of::kRowsOfOne) made.scales.shape.push_back(1);
  int64_t count = 1;
  for (const int64_t size : made.scales.shape) count *= size;
  std::vector<float> scales;
  for (int64_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>(110 + random.below(20));
    const float exact = static_cast<float>(random.normal());
    const std::string dtype = form.dtype;
    scales.push_back(dtype == "F8_E8M0" ? decode_e8m0(code) : dtype == "BF16" ? round_to_bf16(exact) : exact);
    if (dtype == "F8_E8M0") made.scales.bytes.push_back(static_cast<char>(code));
    const bf16 half = to_bf16(exact);
    if (dtype == "BF16") made.scales.bytes.append(reinterpret_cast<const char*>(&half), 2);
    if (dtype == "F32") made.scales.bytes.append(reinterpret_cast<const char*>(&exact), 4);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < cols; ++k) {
      auto code = static_cast<uint8_t>(random.below(256));
      if ((code & 0x7f) == 0x7f) code ^= 1;  // NaN
      made.codes.bytes.push_back(static_cast<char>(code));
      const int64_t at = form.of == Of::kBlocks ? row / 128 * blocks_of(cols) + k / 128 : form.of_rows() ? row : 0;
      made.values.push_back(decode_e4m3(code) * scales[static_cast<size_t>(at)]);
    }
  }
  return made;
}

void check_values(const PackedMatrix& matrix, const std::vector<float>& expected) {
  CHECK(matrix.global == 1.0f);
  std::vector<float> row(static_cast<size_t>(matrix.layout.cols));
  int64_t wrong = 0;
  for (int64_t r = 0; r < matrix.layout.rows; ++r) {
    format_info(matrix.layout.format).decode_row(matrix.layout, matrix.data, r, row.data());
    for (size_t k = 0; k < row.size(); ++k)
      wrong += row[k] != expected[static_cast<size_t>(r) * row.size() + k] ? 1 : 0;
  }
  CHECK(wrong == 0);
}

// One layer of Qwen3-MoE in BF16 zeros, whose q_proj and experts are fp8.
struct MadeModel {
  EditableModel model;
  MadeMatrix query;
  std::vector<MadeMatrix> experts;  // gate, up, down of each
};

MadeModel make_model(const Scales& form) {
  MadeModel made;
  made.model.config = std::make_unique<Json>(Json::parse(R"({"model_type": "qwen3_moe", "hidden_size": 272,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 40,
      "moe_intermediate_size": 160, "num_experts": 3, "num_experts_per_tok": 2, "vocab_size": 16})"));
  const WeightList list = make_family(*made.model.config)->declare_weights();
  DiskTensors& tensors = made.model.tensors;
  const auto zeros = [](std::vector<int64_t> shape, int64_t count) {
    return DiskTensor{"BF16", std::move(shape), std::string(static_cast<size_t>(count) * 2, '\0')};
  };
  for (const TableSpec& t : list.tables) tensors[t.names.front()] = zeros({t.rows, t.cols}, t.rows * t.cols);
  for (const VectorSpec& v : list.vectors) tensors[v.names.front()] = zeros({v.size}, v.size);
  for (const MatrixSpec& m : list.matrices)
    tensors[m.stems.front() + ".weight"] = zeros({m.rows, m.cols}, m.rows * m.cols);
  Random random(3);
  const auto put = [&](const std::string& stem, int64_t rows, int64_t cols) {
    MadeMatrix matrix = make_matrix(rows, cols, form, random);
    tensors[stem + ".weight"] = matrix.codes;
    tensors[stem + form.ending] = matrix.scales;
    return matrix;
  };
  made.query = put("model.layers.0.self_attn.q_proj", 160, kHidden);
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string stem = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    made.experts.push_back(put(stem + "gate_proj", kIntermediate, kHidden));
    made.experts.push_back(put(stem + "up_proj", kIntermediate, kHidden));
    made.experts.push_back(put(stem + "down_proj", kHidden, kIntermediate));
  }
  return made;
}

std::string error_with(const Scales& form, const std::function<void(DiskTensors&)>& edit) {
  TempFolder folder;
  MadeModel made = make_model(form);
  edit(made.model.tensors);
  made.model.write(folder);
  return error_of([&] { inspect_formats(*family_of(folder.path()), real_weights(folder.path())); });
}

}  // namespace

TEST_CASE("fp8 with one scale, with blocks, with e8m0 scales and with one a row: every weight, dense and of experts") {
  for (const Scales& form : kForms) {
    CAPTURE(form.ending);
    CAPTURE(form.dtype);
    CAPTURE(static_cast<int>(form.of));
    const MadeModel made = make_model(form);
    for (const size_t pad : {0, 1}) {
      TempFolder folder;
      made.model.write(folder, pad);
      const auto weights = load(folder.path());
      CHECK(weights->formats.dense == "bf16+" + form.format());
      CHECK(weights->formats.experts == form.format());
      const WeightList list = family_of(folder.path())->declare_weights();
      for (size_t i = 0; i < list.matrices.size(); ++i) {
        if (list.matrices[i].stems.front().ends_with("q_proj")) check_values(weights->matrices[i], made.query.values);
      }
      const ExpertLayout& layout = weights->bank.layout(0);
      for (int e = 0; e < kExperts; ++e) {
        const std::byte* blob = weights->bank.blob(0, e);
        const auto at = static_cast<size_t>(3 * e);
        check_values(expert_gate(layout, blob), made.experts[at].values);
        check_values(expert_up(layout, blob), made.experts[at + 1].values);
        check_values(expert_down(layout, blob), made.experts[at + 2].values);
      }
    }
  }
}

TEST_CASE("fused fp8 experts with one scale each equal split ones, whatever block their halves would share") {
  MadeModel made = make_model(kForms[1]);
  TempFolder split, fused;
  made.model.write(split);
  DiskTensors& tensors = made.model.tensors;
  const std::string prefix = "model.layers.0.mlp.experts.";
  DiskTensor gate_up{"F8_E4M3", {kExperts, 2 * kIntermediate, kHidden}, ""}, gate_up_scale{"F32", {kExperts}, ""};
  DiskTensor down{"F8_E4M3", {kExperts, kHidden, kIntermediate}, ""}, down_scale{"F32", {kExperts}, ""};
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string stem = prefix + std::to_string(e) + ".";
    const auto take = [&](const char* name) { return tensors.extract(stem + name).mapped().bytes; };
    gate_up.bytes += take("gate_proj.weight") + take("up_proj.weight");
    gate_up_scale.bytes += take("gate_proj.weight_scale");
    take("up_proj.weight_scale");
    down.bytes += take("down_proj.weight");
    down_scale.bytes += take("down_proj.weight_scale");
  }
  tensors[prefix + "gate_up_proj"] = gate_up;
  tensors[prefix + "gate_up_proj_scale_inv"] = gate_up_scale;
  tensors[prefix + "down_proj"] = down;
  tensors[prefix + "down_proj_scale_inv"] = down_scale;
  made.model.write(fused);
  const auto a = load(split.path()), b = load(fused.path());
  const ExpertLayout& layout = a->bank.layout(0);
  for (int e = 0; e < kExperts; ++e) {
    const auto same = [&](int64_t offset, int64_t bytes) {
      return std::memcmp(a->bank.blob(0, e) + offset, b->bank.blob(0, e) + offset, static_cast<size_t>(bytes)) == 0;
    };
    CHECK(same(0, layout.gate.bytes));  // up has its own scale in the split model
    CHECK(same(layout.down_offset, layout.down.bytes));
  }
}

TEST_CASE("fused fp8 experts with a scale a row equal split ones") {
  MadeModel made = make_model(kForms[kRowsForm]);
  TempFolder split;
  made.model.write(split);
  const std::string prefix = "model.layers.0.mlp.experts.";
  DiskTensors tensors = made.model.tensors;
  struct Stack {
    DiskTensor codes, scales;
  };
  Stack gate_up{{"F8_E4M3", {kExperts, 2 * kIntermediate, kHidden}, ""}, {"F32", {kExperts, 2 * kIntermediate, 1}, ""}};
  Stack down{{"F8_E4M3", {kExperts, kHidden, kIntermediate}, ""}, {"F32", {kExperts, kHidden, 1}, ""}};
  for (int64_t e = 0; e < kExperts; ++e) {
    for (const auto& [name, stack] : {std::pair{"gate_proj", &gate_up}, {"up_proj", &gate_up}, {"down_proj", &down}}) {
      const std::string stem = prefix + std::to_string(e) + "." + name;
      stack->codes.bytes += tensors.extract(stem + ".weight").mapped().bytes;
      stack->scales.bytes += tensors.extract(stem + ".weight_scale").mapped().bytes;
    }
  }
  const auto a = load(split.path());
  for (const bool flat : {false, true}) {
    TempFolder fused;
    made.model.tensors = tensors;
    for (auto& [name, stack] : {std::pair{"gate_up_proj", &gate_up}, {"down_proj", &down}}) {
      if (flat) stack->scales.shape.pop_back();
      made.model.tensors[prefix + name + ".weight"] = stack->codes;
      made.model.tensors[prefix + name + ".weight_scale"] = stack->scales;
    }
    made.model.write(fused);
    const auto b = load(fused.path());
    CHECK(b->formats.experts == "fp8_channel");
    for (int e = 0; e < kExperts; ++e) {
      CHECK(std::memcmp(a->bank.blob(0, e), b->bank.blob(0, e), static_cast<size_t>(a->bank.layout(0).bytes)) == 0);
    }
  }
}

TEST_CASE("experts of one layer with a scale a row and with blocks are refused") {
  const std::string stem = "model.layers.0.mlp.experts.1.up_proj";
  const auto message = error_with(kForms[0], [&](DiskTensors& t) {
    t[stem + ".weight_scale"] = {"F32", {kIntermediate}, std::string(static_cast<size_t>(kIntermediate) * 4, '\0')};
  });
  CHECK(mentions(message, {"different formats", stem, "fp8_channel", "fp8_block"}));
}

TEST_CASE("fp8 scales that are not understood, or of another shape or dtype") {
  const std::string stem = "model.layers.0.mlp.experts.1.up_proj", scale = stem + ".weight_scale";
  const auto put = [&](const std::string& dtype, std::vector<int64_t> shape, size_t bytes) {
    return error_with(kForms[0], [&](DiskTensors& t) { t[scale] = {dtype, shape, std::string(bytes, '\0')}; });
  };
  CHECK(error_with(kForms[0], [](DiskTensors&) {}) == "no error");
  CHECK(mentions(put("F32", {159}, 636), {scale, "F32 [159]", "F32 [2, 3]"}));
  CHECK(mentions(put("F32", {161, 1}, 644), {scale, "F32 [161, 1]"}));
  CHECK(mentions(put("F32", {1, 160}, 640), {scale, "F32 [1, 160]"}));
  CHECK(mentions(put("F16", {160}, 320), {scale, "F16", "F32"}));
  CHECK(mentions(put("F32", {2}, 8), {scale, "F32 [2]", "F32 [2, 3]"}));
  CHECK(mentions(put("F32", {3, 2}, 24), {scale, "[3, 2]", "[2, 3]"}));
  CHECK(mentions(put("F16", {}, 2), {scale, "F16", "F32"}));
  CHECK(mentions(put("U8", {160, 9}, 1440), {stem, "MXFP8"}));
  CHECK(mentions(error_with(kForms[0], [&](DiskTensors& t) { t.erase(scale); }), {stem, "fp8 without scales"}));
  CHECK(mentions(error_with(kForms[kE8m0Form],
                            [&](DiskTensors& t) {
                              t.at(stem + ".scale").shape = {3, 2};
                            }),
                 {stem + ".scale", "F8_E8M0 [3, 2]", "F8_E8M0 [2, 3]"}));
  CHECK(mentions(error_with(kForms[kE8m0Form],
                            [&](DiskTensors& t) {
                              t.at(stem + ".scale") = {"F32", {2, 3}, std::string(24, '\0')};
                            }),
                 {stem, "fp8 without scales"}));
}
