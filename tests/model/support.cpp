#include "tests/model/support.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/model/checkpoint.h"
#include "kernels/base/error.h"

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
