#include "tests/model/support.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/model/checkpoint.h"
#include "kernels/base/bf16.h"
#include "kernels/base/error.h"
#include "kernels/base/fp_codes.h"

namespace ft::test {
namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

float bf16_at(const std::string& bytes, size_t index) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * sizeof bits, sizeof bits);
  return to_float(bf16{bits});
}

uint8_t nearest_e2m1(float x) {
  const auto distance = [&](int code) { return std::abs(decode_e2m1(static_cast<uint8_t>(code)) - x); };
  int best = 0;
  for (int code = 1; code < 16; ++code) best = distance(code) < distance(best) ? code : best;
  return static_cast<uint8_t>(best);
}

constexpr size_t kMxfp4Group = 32;

struct Mxfp4Bytes {
  std::string codes, scales;
};
Mxfp4Bytes round_to_mxfp4(const std::string& bf16_bytes) {
  Mxfp4Bytes result;
  for (size_t first = 0; first * 2 < bf16_bytes.size(); first += kMxfp4Group) {
    float largest = 0x1p-100f;  // a group of zeros has a scale too
    for (size_t i = 0; i < kMxfp4Group; ++i) largest = std::max(largest, std::abs(bf16_at(bf16_bytes, first + i)));
    const auto scale = static_cast<uint8_t>(127 + std::ilogb(largest) - 2);
    result.scales.push_back(static_cast<char>(scale));
    for (size_t i = 0; i < kMxfp4Group; i += 2) {
      const int even = nearest_e2m1(bf16_at(bf16_bytes, first + i) / decode_e8m0(scale));
      const int odd = nearest_e2m1(bf16_at(bf16_bytes, first + i + 1) / decode_e8m0(scale));
      result.codes.push_back(static_cast<char>(even | odd << 4));
    }
  }
  return result;
}

}  // namespace

std::string raw_image(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

std::string safetensors_image(const DiskTensors& tensors, size_t header_pad) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8 + header_pad, ' ');
  return raw_image(text, data);
}

DiskTensors read_tensors(const std::string& path) {
  const std::string file = read_file(path);
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  const auto header = nlohmann::json::parse(file.substr(8, size));
  DiskTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], file.substr(8 + size + begin, end - begin)};
  }
  return tensors;
}

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "ft_model_test_XXXXXX").string();
  REQUIRE(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void TempFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream file(path_ + "/" + name, std::ios::binary);
  file << content;
  REQUIRE(file.good());
}

std::string EditableModel::config_text() const { return config->dump(); }

void EditableModel::write(const TempFolder& folder, size_t header_pad) const {
  folder.write("config.json", config_text());
  folder.write("model.safetensors", safetensors_image(tensors, header_pad));
}

EditableModel read_model(const std::string& directory) {
  EditableModel model;
  model.config = std::make_unique<Json>(Json::parse(read_file(directory + "/config.json")));
  model.tensors = read_tensors(directory + "/model.safetensors");
  return model;
}

void to_mxfp4(DiskTensors& tensors, std::string_view part, Mxfp4Names names) {
  const bool packed = names == Mxfp4Names::kCompressedTensors;
  DiskTensors made;
  for (const auto& [name, tensor] : tensors) {
    if (name.find(part) == std::string::npos) continue;
    REQUIRE((tensor.dtype == "BF16" && tensor.shape.size() == 2 && tensor.shape[1] % int64_t{kMxfp4Group} == 0));
    REQUIRE(name.ends_with(".weight"));
    const std::string stem = name.substr(0, name.size() - std::strlen(".weight"));
    const Mxfp4Bytes bytes = round_to_mxfp4(tensor.bytes);
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    made[stem + (packed ? ".weight_packed" : ".weight")] = {packed ? "U8" : "I8", {rows, cols / 2}, bytes.codes};
    made[stem + (packed ? ".weight_scale" : ".scale")] = {
        packed ? "U8" : "F8_E8M0", {rows, cols / int64_t{kMxfp4Group}}, bytes.scales};
  }
  REQUIRE(!made.empty());
  std::erase_if(tensors, [&](const auto& entry) { return entry.first.find(part) != std::string::npos; });
  tensors.merge(made);
}

void mxfp4_to_bf16(DiskTensors& tensors) {
  for (const auto& [codes_ending, scales_ending] :
       {std::pair{".weight_packed", ".weight_scale"}, std::pair{".weight", ".scale"}}) {
    std::vector<std::string> stems;
    for (const auto& [name, tensor] : tensors) {
      if (name.ends_with(scales_ending)) stems.push_back(name.substr(0, name.size() - std::strlen(scales_ending)));
    }
    for (const std::string& stem : stems) {
      const DiskTensor scales = tensors.extract(stem + scales_ending).mapped();
      const DiskTensor codes = tensors.extract(stem + codes_ending).mapped();
      DiskTensor values{"BF16", {codes.shape[0], codes.shape[1] * 2}, ""};
      for (size_t i = 0; i < codes.bytes.size() * 2; ++i) {
        const auto byte = static_cast<uint8_t>(codes.bytes[i / 2]);
        const float code = decode_e2m1(static_cast<uint8_t>(i % 2 == 0 ? byte & 15u : byte >> 4));
        const bf16 value = to_bf16(code * decode_e8m0(static_cast<uint8_t>(scales.bytes[i / kMxfp4Group])));
        values.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      tensors[stem + ".weight"] = values;
    }
  }
}

std::vector<std::string> golden_folders(std::initializer_list<std::string_view> names) {
  std::vector<std::string> folders;
  for (const std::string_view name : names) {
    bool found = false;
    for (const char* variable : {"FT_TEST_DATA", "FT_SHARED"}) {
      const char* root = std::getenv(variable);
      if (root == nullptr || found) continue;
      const fs::path folder = fs::path(root) / "golden" / name;
      found = fs::exists(folder / "model.safetensors");
      if (found) folders.push_back(folder.string());
    }
    if (!found) MESSAGE("skipped: golden case " << std::string(name) << " is not there (FT_SHARED)");
  }
  return folders;
}

std::string golden_folder(std::string_view name) {
  const std::vector<std::string> folders = golden_folders({name});
  REQUIRE(folders.size() == 1);
  return folders.front();
}

std::vector<std::string> all_golden_folders() {
  return golden_folders({"qwen3_moe", "qwen3_moe.b", "qwen3_moe-fp8_block", "qwen3_moe-nvfp4_ct",
                         "qwen3_moe-nvfp4_modelopt", "qwen3_moe-nvfp4_modelopt.z"});
}

std::string bundled_model_folder() {
  const char* root = std::getenv("FT_TEST_DATA");
  REQUIRE(root != nullptr);
  return std::string(root) + "/tiny-moe";
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool mentions(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (message.find(part) == std::string::npos) return false;
  }
  return true;
}

std::unique_ptr<Family> family_of(const std::string& directory) { return make_family(load_model_config(directory)); }

Json config_of(const char* base, const char* changes) {
  Json config = Json::parse(base);
  config.merge_patch(Json::parse(changes));
  return config;
}

std::string refusal_of(const Json& config) {
  return error_of([&] { make_family(config)->declare_weights(); });
}

WeightSource real_weights(const std::string& directory) {
  WeightSource source;
  source.model_path = directory;
  return source;
}

WeightSource synthetic_weights(const std::string& directory, uint64_t seed) {
  WeightSource source;
  source.model_path = directory;
  source.synthetic = true;
  source.synthetic_seed = seed;
  return source;
}

WorkerPoolOptions pool_of(int threads) {
  WorkerPoolOptions options;
  options.threads = threads;
  return options;
}

std::shared_ptr<const ModelWeights> load(const std::string& directory, int threads) {
  WorkerPool pool(pool_of(threads));
  return load_weights(*family_of(directory), real_weights(directory), pool);
}

std::shared_ptr<const ModelWeights> load_synthetic(const std::string& directory, uint64_t seed, int threads) {
  WorkerPool pool(pool_of(threads));
  return load_weights(*family_of(directory), synthetic_weights(directory, seed), pool);
}

bool same_formats(const ModelFormats& a, const ModelFormats& b) {
  return a.expert_format == b.expert_format && a.dense == b.dense && a.experts == b.experts &&
         a.dense_bytes == b.dense_bytes && a.dense_bytes_per_token == b.dense_bytes_per_token &&
         a.expert_bytes_max == b.expert_bytes_max && a.expert_bytes_total == b.expert_bytes_total;
}

}  // namespace ft::test
