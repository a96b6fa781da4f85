// Checked against: dequantization written here from the formats' definitions (kernels/base/fp_codes.h) over bytes that
// an independent reader took from the files; every weight of every golden case, exactly.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "engine/model/detect.h"
#include "kernels/base/fp_codes.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

template <class T>
T value_at(const DiskTensor& tensor, size_t index) {
  T value{};
  if ((index + 1) * sizeof(T) > tensor.bytes.size()) FAIL("outside the tensor");
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

float float_at(const DiskTensor& tensor, size_t index) {
  return tensor.dtype == "BF16" ? to_float(value_at<bf16>(tensor, index)) : value_at<float>(tensor, index);
}

// code * scale of every weight of `stem`, and the global multiplier.
struct Expected {
  std::vector<float> values;
  float global = 1.0f;
};

Expected dequantize(const DiskTensors& tensors, const std::string& stem, size_t rows, size_t cols) {
  Expected expected;
  const bool packed = tensors.contains(stem + ".weight_packed");
  const DiskTensor& codes = tensors.at(stem + (packed ? ".weight_packed" : ".weight"));
  const bool nvfp4 = codes.dtype == "U8";
  if (nvfp4) {
    expected.global = packed ? 1.0f / value_at<float>(tensors.at(stem + ".weight_global_scale"), 0)
                             : value_at<float>(tensors.at(stem + ".weight_scale_2"), 0);
  }
  const bool fp8 = codes.dtype == "F8_E4M3";
  const DiskTensor* scales = nullptr;
  if (nvfp4 || fp8) scales = &tensors.at(stem + (nvfp4 ? ".weight_scale" : ".weight_scale_inv"));
  expected.values.reserve(rows * cols);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t k = 0; k < cols; ++k) {
      if (nvfp4) {
        const auto byte = value_at<uint8_t>(codes, r * (cols / 2) + k / 2);
        const auto scale = value_at<uint8_t>(*scales, r * (cols / 16) + k / 16);
        expected.values.push_back(decode_e2m1(k % 2 == 0 ? byte & 15u : byte >> 4) * decode_e4m3(scale));
      } else if (fp8) {
        const size_t block = (r / 128) * ((cols + 127) / 128) + k / 128;
        expected.values.push_back(decode_e4m3(value_at<uint8_t>(codes, r * cols + k)) * float_at(*scales, block));
      } else {
        expected.values.push_back(float_at(codes, r * cols + k));
      }
    }
  }
  return expected;
}

void check_matrix(const PackedMatrix& matrix, const DiskTensors& tensors, const std::string& stem, int64_t rows,
                  int64_t cols) {
  CAPTURE(stem);
  REQUIRE(matrix.layout.rows == rows);
  REQUIRE(matrix.layout.cols == cols);
  const Expected expected = dequantize(tensors, stem, static_cast<size_t>(rows), static_cast<size_t>(cols));
  CHECK(matrix.global == expected.global);
  std::vector<float> row(static_cast<size_t>(cols));
  size_t wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    format_info(matrix.layout.format).decode_row(matrix.layout, matrix.data, r, row.data());
    for (size_t k = 0; k < row.size(); ++k) wrong += row[k] != expected.values[static_cast<size_t>(r * cols) + k];
  }
  CHECK(wrong == 0);
}

// Every weight of a loaded folder against its files.
void check_model(const std::string& folder) {
  CAPTURE(folder);
  const DiskTensors tensors = read_tensors(folder + "/model.safetensors");
  const auto family = family_of(folder);
  const auto weights = load(folder);
  const WeightList list = family->declare_weights();
  REQUIRE(weights->matrices.size() == list.matrices.size());
  for (size_t i = 0; i < list.matrices.size(); ++i) {
    const MatrixSpec& spec = list.matrices[i];
    check_matrix(weights->matrices[i], tensors, spec.stems.front(), spec.rows, spec.cols);
  }
  REQUIRE(weights->vectors.size() == list.vectors.size());
  for (size_t i = 0; i < list.vectors.size(); ++i) {
    const DiskTensor& tensor = tensors.at(list.vectors[i].names.front());
    REQUIRE(static_cast<int64_t>(weights->vectors[i].size()) == list.vectors[i].size);
    for (size_t k = 0; k < weights->vectors[i].size(); ++k) CHECK(weights->vectors[i][k] == float_at(tensor, k));
  }
  REQUIRE(weights->tables.size() == list.tables.size());
  for (size_t i = 0; i < list.tables.size(); ++i) {
    const EmbeddingTable& table = weights->tables[i];
    const std::string& bytes = tensors.at(list.tables[i].names.front()).bytes;
    REQUIRE(static_cast<size_t>(table.count * table.width) * sizeof(bf16) == bytes.size());
    CHECK(std::memcmp(table.rows, bytes.data(), bytes.size()) == 0);
  }
  const ExpertGeometry& expert = weights->geometry.expert;
  REQUIRE(weights->bank.layers() == static_cast<int>(weights->geometry.moe_layers.size()));
  for (int layer = 0; layer < weights->bank.layers(); ++layer) {
    const std::string prefix = list.expert_layers[static_cast<size_t>(layer)].prefixes.front();
    const ExpertLayout& layout = weights->bank.layout(layer);
    for (int e = 0; e < expert.experts; ++e) {
      const std::byte* blob = weights->bank.blob(layer, e);
      const std::string stem = prefix + std::to_string(e) + ".";
      check_matrix(expert_gate(layout, blob), tensors, stem + "gate_proj", expert.intermediate, expert.hidden);
      check_matrix(expert_up(layout, blob), tensors, stem + "up_proj", expert.intermediate, expert.hidden);
      check_matrix(expert_down(layout, blob), tensors, stem + "down_proj", expert.hidden, expert.intermediate);
    }
  }
}

bool same_bank(const ExpertBank& a, const ExpertBank& b) {
  if (a.layers() != b.layers() || a.experts() != b.experts()) return false;
  for (int layer = 0; layer < a.layers(); ++layer) {
    for (int e = 0; e < a.experts(); ++e) {
      const auto bytes = static_cast<size_t>(a.layout(layer).bytes);
      if (a.layout(layer).bytes != b.layout(layer).bytes) return false;
      if (std::memcmp(a.blob(layer, e), b.blob(layer, e), bytes) != 0) return false;
    }
  }
  return true;
}

// Replaces the per-expert tensors called expert + part + ending by one stack: [E, parts * rows, ...].
void fuse(DiskTensors& tensors, const std::string& prefix, int experts, const std::vector<std::string>& parts,
          const std::string& ending, const std::string& name) {
  DiskTensor stack;
  for (int e = 0; e < experts; ++e) {
    for (const std::string& part : parts) {
      const auto node = tensors.extract(prefix + std::to_string(e) + "." + part + ending);
      REQUIRE(!node.empty());
      stack.dtype = node.mapped().dtype;
      stack.shape = node.mapped().shape;
      stack.bytes += node.mapped().bytes;
    }
  }
  if (stack.shape.empty()) {
    stack.shape = {experts};
  } else {
    stack.shape[0] *= static_cast<int64_t>(parts.size());
    stack.shape.insert(stack.shape.begin(), experts);
  }
  tensors[prefix + name] = stack;
}

std::vector<std::string> expert_prefixes(const std::string& folder) {
  std::vector<std::string> prefixes;
  for (const ExpertLayerSpec& spec : family_of(folder)->declare_weights().expert_layers)
    prefixes.push_back(spec.prefixes.front());
  return prefixes;
}

}  // namespace

TEST_CASE("every weight of every golden case") {
  for (const std::string& folder : all_golden_folders()) check_model(folder);
}

TEST_CASE("every weight of the bundled model") {
  const std::string folder = bundled_model_folder();
  check_model(folder);
  const auto family = family_of(folder);
  CHECK(family->geometry().total_experts() == 6 * 32);
  CHECK(same_formats(inspect_formats(*family, real_weights(folder)),
                     inspect_formats(*family, synthetic_weights(folder))));
}

TEST_CASE("inspect_formats and loading agree, and both with what is in memory") {
  for (const std::string& folder : all_golden_folders()) {
    CAPTURE(folder);
    const auto family = family_of(folder);
    const auto weights = load(folder);
    CHECK(same_formats(inspect_formats(*family, real_weights(folder)), weights->formats));
    int64_t dense = 0, experts = 0;
    for (const PackedMatrix& matrix : weights->matrices) dense += matrix.layout.bytes;
    for (const auto& vector : weights->vectors) dense += static_cast<int64_t>(vector.size_bytes());
    int64_t per_token = dense;
    for (const EmbeddingTable& table : weights->tables) {
      dense += table.count * table.width * 2;
      per_token += table.width * 2;
    }
    for (int layer = 0; layer < weights->bank.layers(); ++layer) {
      experts += weights->bank.layout(layer).bytes * weights->bank.experts();
      CHECK(weights->formats.expert_format[static_cast<size_t>(layer)] == weights->bank.layout(layer).gate.format);
    }
    CHECK(weights->formats.dense_bytes == dense);
    CHECK(weights->formats.dense_bytes_per_token == per_token);
    CHECK(weights->formats.expert_bytes_total == experts);
    CHECK(weights->formats.expert_bytes_max == weights->bank.slot_bytes());
  }
  CHECK(load(golden_folder("qwen3_moe-fp8_block"))->formats.dense == "bf16+fp8_block");
  CHECK(load(golden_folder("qwen3_moe-fp8_block"))->formats.experts == "fp8_block");
  CHECK(load(golden_folder("qwen3_moe-nvfp4_ct"))->formats.experts == "nvfp4");
  CHECK(load(golden_folder("qwen3_moe.b"))->formats.dense == "bf16");
}

TEST_CASE("blobs are aligned, and the number of threads changes nothing") {
  const std::string folder = golden_folder("qwen3_moe-nvfp4_ct");
  const auto one = load(folder, 1), three = load(folder, 3);
  CHECK(same_bank(one->bank, three->bank));
  CHECK(reinterpret_cast<uintptr_t>(one->bank.blob(1, 3)) % static_cast<uintptr_t>(kBlobAlign) == 0);
  for (const PackedMatrix& matrix : one->matrices) {
    CHECK(reinterpret_cast<uintptr_t>(matrix.data) % static_cast<uintptr_t>(kPackedAlign) == 0);
  }
}

TEST_CASE("data at odd addresses, and fp8 scales in BF16") {
  for (const char* name : {"qwen3_moe.b", "qwen3_moe-fp8_block", "qwen3_moe-nvfp4_ct"}) {
    TempFolder folder;
    EditableModel model = read_model(golden_folder(name));
    for (auto& [tensor_name, tensor] : model.tensors) {
      if (!tensor_name.ends_with("weight_scale_inv")) continue;
      DiskTensor rounded{"BF16", tensor.shape, ""};
      for (size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
        const bf16 value = to_bf16(value_at<float>(tensor, i));
        rounded.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      tensor = rounded;
    }
    model.write(folder, /*header_pad=*/1);
    check_model(folder.path());
  }
}

TEST_CASE("every weight of MXFP4 matrices, dense and of experts, in both namings and at odd addresses") {
  for (const Mxfp4Names names : {Mxfp4Names::kCompressedTensors, Mxfp4Names::kDeepseek}) {
    CAPTURE(static_cast<int>(names));
    EditableModel model = read_model(golden_folder("qwen3_moe.b"));
    to_mxfp4(model.tensors, "_proj.", names);
    TempFolder folder, as_bf16;
    model.write(folder, /*header_pad=*/1);
    mxfp4_to_bf16(model.tensors);
    model.write(as_bf16);
    const auto weights = load(folder.path()), expected = load(as_bf16.path());
    CHECK(weights->formats.experts == "mxfp4");
    CHECK(weights->formats.dense == "bf16+mxfp4");
    REQUIRE(weights->matrices.size() == expected->matrices.size());
    const auto check_same = [](const PackedMatrix& got, const PackedMatrix& want) {
      CHECK(got.global == 1.0f);
      std::vector<float> a(static_cast<size_t>(want.layout.cols)), b(a.size());
      for (int64_t row = 0; row < want.layout.rows; ++row) {
        format_info(got.layout.format).decode_row(got.layout, got.data, row, a.data());
        format_info(want.layout.format).decode_row(want.layout, want.data, row, b.data());
        CHECK(a == b);
      }
    };
    for (size_t i = 0; i < weights->matrices.size(); ++i) check_same(weights->matrices[i], expected->matrices[i]);
    for (int layer = 0; layer < weights->bank.layers(); ++layer) {
      const ExpertLayout &got = weights->bank.layout(layer), &want = expected->bank.layout(layer);
      CHECK(got.gate.format == FormatId::kMxfp4);
      for (int e = 0; e < weights->bank.experts(); ++e) {
        const std::byte *a = weights->bank.blob(layer, e), *b = expected->bank.blob(layer, e);
        check_same(expert_gate(got, a), expert_gate(want, b));
        check_same(expert_up(got, a), expert_up(want, b));
        check_same(expert_down(got, a), expert_down(want, b));
      }
    }
  }
}

TEST_CASE("fused MXFP4 experts equal split ones") {
  const std::string golden = golden_folder("qwen3_moe.b");
  EditableModel model = read_model(golden);
  to_mxfp4(model.tensors, ".experts.", Mxfp4Names::kDeepseek);
  TempFolder split, fused;
  model.write(split);
  for (const std::string& prefix : expert_prefixes(golden)) {
    for (const char* ending : {".weight", ".scale"}) {
      fuse(model.tensors, prefix, 8, {"gate_proj", "up_proj"}, ending, std::string("gate_up_proj") + ending);
      fuse(model.tensors, prefix, 8, {"down_proj"}, ending, std::string("down_proj") + ending);
    }
  }
  model.write(fused);
  CHECK(same_bank(load(fused.path())->bank, load(split.path())->bank));
}

TEST_CASE("vectors may be F32 or F16") {
  TempFolder folder;
  EditableModel model = read_model(golden_folder("qwen3_moe.b"));
  DiskTensor& norm = model.tensors.at("model.norm.weight");
  // 1, -2, the largest half, the smallest subnormal half, zero, -0, a subnormal, infinity
  const uint16_t halves[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0, 0x8000, 0x03ff, 0x7c00};
  const float values[] = {1.0f, -2.0f, 65504.0f, 0x1p-24f, 0.0f, -0.0f, 0x1.ff8p-15f, INFINITY};
  norm = {"F16", {64}, ""};
  for (int i = 0; i < 8; ++i) norm.bytes.append(reinterpret_cast<const char*>(halves), sizeof halves);
  DiskTensor& other = model.tensors.at("model.layers.0.input_layernorm.weight");
  other = {"F32", {64}, ""};
  for (int i = 0; i < 8; ++i) other.bytes.append(reinterpret_cast<const char*>(values), sizeof values);
  model.write(folder);
  const auto weights = load(folder.path());
  for (const size_t index : {size_t{0}, weights->vectors.size() - 1}) {  // the first and the last that are declared
    for (size_t i = 0; i < 64; ++i) {
      CHECK(std::bit_cast<uint32_t>(weights->vectors[index][i]) == std::bit_cast<uint32_t>(values[i % 8]));
    }
  }
}

TEST_CASE("fused bf16 experts equal split ones, with and without .weight") {
  const std::string golden = golden_folder("qwen3_moe.b");
  const auto split = load(golden);
  for (const char* ending : {"", ".weight"}) {
    TempFolder folder;
    EditableModel model = read_model(golden);
    for (const std::string& prefix : expert_prefixes(golden)) {
      fuse(model.tensors, prefix, 8, {"gate_proj", "up_proj"}, ".weight", std::string("gate_up_proj") + ending);
      fuse(model.tensors, prefix, 8, {"down_proj"}, ".weight", std::string("down_proj") + ending);
    }
    model.write(folder);
    CHECK(same_bank(load(folder.path())->bank, split->bank));
  }
}

TEST_CASE("fused NVFP4 experts equal split ones") {
  const std::string golden = golden_folder("qwen3_moe-nvfp4_modelopt");
  EditableModel model = read_model(golden);
  const std::vector<std::string> prefixes = expert_prefixes(golden);
  for (const std::string& prefix : prefixes) {  // one global scale for gate and up: a stack has no more
    for (int e = 0; e < 8; ++e) {
      const std::string stem = prefix + std::to_string(e) + ".";
      model.tensors.at(stem + "up_proj.weight_scale_2") = model.tensors.at(stem + "gate_proj.weight_scale_2");
    }
  }
  TempFolder split, fused;
  model.write(split);
  for (const std::string& prefix : prefixes) {
    for (const char* ending : {".weight", ".weight_scale"}) {
      fuse(model.tensors, prefix, 8, {"gate_proj", "up_proj"}, ending, std::string("gate_up_proj") + ending);
      fuse(model.tensors, prefix, 8, {"down_proj"}, ending, std::string("down_proj") + ending);
    }
    fuse(model.tensors, prefix, 8, {"gate_proj"}, ".weight_scale_2", "gate_up_proj.weight_scale_2");
    fuse(model.tensors, prefix, 8, {"down_proj"}, ".weight_scale_2", "down_proj.weight_scale_2");
  }
  model.write(fused);
  CHECK(same_bank(load(fused.path())->bank, load(split.path())->bank));
}

TEST_CASE("fused fp8 experts: equal where blocks end between gate and up, refused where they do not") {
  const std::string golden = golden_folder("qwen3_moe-fp8_block");
  EditableModel model = read_model(golden);
  (*model.config)["moe_intermediate_size"] = 128;  // cut from 160 rows or columns
  const std::vector<std::string> prefixes = expert_prefixes(golden);
  for (auto& [name, tensor] : model.tensors) {
    if (name.find(".experts.") == std::string::npos) continue;
    const bool scales = name.ends_with("weight_scale_inv");
    const bool down = name.find("down_proj") != std::string::npos;
    const size_t unit = scales ? 4 : 1, kept = scales ? 1 : 128, full = scales ? 2 : 160;
    std::string bytes;
    if (down) {
      for (int64_t r = 0; r < tensor.shape[0]; ++r) {
        bytes += tensor.bytes.substr(static_cast<size_t>(r) * full * unit, kept * unit);
      }
    } else {
      bytes = tensor.bytes.substr(0, kept * static_cast<size_t>(tensor.shape[1]) * unit);
    }
    tensor.shape[down ? 1 : 0] = static_cast<int64_t>(kept);
    tensor.bytes = bytes;
  }
  TempFolder split;
  model.write(split);
  for (const std::vector<const char*>& endings :
       {std::vector<const char*>{".weight", ".weight_scale_inv"}, std::vector<const char*>{"", "_scale_inv"}}) {
    EditableModel copy{std::make_unique<Json>(*model.config), model.tensors};
    for (const std::string& prefix : prefixes) {
      for (const size_t i : {0, 1}) {
        const char* from = i == 0 ? ".weight" : ".weight_scale_inv";
        fuse(copy.tensors, prefix, 8, {"gate_proj", "up_proj"}, from, std::string("gate_up_proj") + endings[i]);
        fuse(copy.tensors, prefix, 8, {"down_proj"}, from, std::string("down_proj") + endings[i]);
      }
    }
    TempFolder fused;
    copy.write(fused);
    CHECK(same_bank(load(fused.path())->bank, load(split.path())->bank));
  }
}

TEST_CASE("progress goes from 0 to 1 and never back") {
  const std::string folder = golden_folder("qwen3_moe.b");
  WorkerPool pool(pool_of(2));
  std::vector<double> seen;
  load_weights(*family_of(folder), real_weights(folder), pool,
               {.progress = [&](const LoadProgress& progress) { seen.push_back(progress.fraction()); }});
  REQUIRE(seen.size() >= 3);
  CHECK(seen.front() == 0.0);
  CHECK(seen.back() == 1.0);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
}
