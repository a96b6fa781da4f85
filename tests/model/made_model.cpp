#include "tests/model/made_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/model/family.h"
#include "engine/model/weights.h"
#include "kernels/base/random.h"

namespace ft::test {
namespace {

using nlohmann::json;

constexpr int64_t kPieceBytes = 1 << 20;

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  size_t file = 0;
  int64_t offset = 0;  // in the file's data
};

json config_of(const MadeModel& m) {
  json config = {{"model_type", "qwen3_moe"},
                 {"hidden_size", m.hidden},
                 {"num_hidden_layers", m.layers},
                 {"num_attention_heads", m.heads},
                 {"num_key_value_heads", m.kv_heads},
                 {"head_dim", m.head_dim},
                 {"moe_intermediate_size", m.intermediate},
                 {"num_experts", m.experts},
                 {"num_experts_per_tok", m.top_k},
                 {"vocab_size", m.vocab},
                 {"tie_word_embeddings", false},
                 {"max_position_embeddings", 4096},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0}};
  const json ignore = {"lm_head", "*self_attn*", "*mlp.gate"};
  if (m.format == "nvfp4") {
    config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", ignore}};
  } else if (m.format == "fp8_block") {
    config["quantization_config"] = {
        {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"modules_to_not_convert", ignore}};
  }
  return config;
}

void add(std::vector<Tensor>& tensors, std::string name, const char* dtype, std::vector<int64_t> shape, int64_t size) {
  for (const int64_t n : shape) size *= n;
  tensors.push_back({std::move(name), dtype, std::move(shape), size, 0, 0});
}

void add_expert_matrix(std::vector<Tensor>& tensors, std::string_view format, const std::string& stem, int64_t rows,
                       int64_t cols) {
  if (format == "nvfp4") {
    add(tensors, stem + ".weight", "U8", {rows, cols / 2}, 1);
    add(tensors, stem + ".weight_scale", "F8_E4M3", {rows, cols / 16}, 1);
    add(tensors, stem + ".weight_scale_2", "F32", {}, 4);
  } else if (format == "fp8_block") {
    add(tensors, stem + ".weight", "F8_E4M3", {rows, cols}, 1);
    add(tensors, stem + ".weight_scale_inv", "F32", {(rows + 127) / 128, (cols + 127) / 128}, 4);
  } else {
    add(tensors, stem + ".weight", "BF16", {rows, cols}, 2);
  }
}

std::vector<Tensor> tensors_of(const MadeModel& m, const WeightList& list) {
  std::vector<Tensor> tensors;
  for (const TableSpec& t : list.tables) add(tensors, t.names.front(), "BF16", {t.rows, t.cols}, 2);
  for (const MatrixSpec& t : list.matrices) add(tensors, t.stems.front() + ".weight", "BF16", {t.rows, t.cols}, 2);
  for (const VectorSpec& t : list.vectors) add(tensors, t.names.front(), "BF16", {t.size}, 2);
  for (const ExpertLayerSpec& layer : list.expert_layers) {
    for (int e = 0; e < m.experts; ++e) {
      const std::string stem = layer.prefixes.front() + std::to_string(e) + ".";
      add_expert_matrix(tensors, m.format, stem + layer.gate, m.intermediate, m.hidden);
      add_expert_matrix(tensors, m.format, stem + layer.up, m.intermediate, m.hidden);
      add_expert_matrix(tensors, m.format, stem + layer.down, m.hidden, m.intermediate);
    }
  }
  return tensors;
}

void write_at(int fd, const char* data, int64_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t written = ::pwrite(fd, data, static_cast<size_t>(bytes), offset);
    if (written <= 0) throw std::runtime_error("cannot write the made model");
    data += written;
    bytes -= written;
    offset += written;
  }
}

// F32 tensors are scales: ones. Others are any bytes.
void write_tensor(int fd, const Tensor& tensor, int64_t data_begin, uint64_t seed, std::vector<uint64_t>& words) {
  for (int64_t at = 0; at < tensor.bytes; at += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, tensor.bytes - at);
    const auto count = static_cast<size_t>((bytes + 7) / 8);
    if (tensor.dtype == "F32") {
      std::fill_n(words.begin(), count, 0x3f8000003f800000u);
    } else {
      for (size_t i = 0; i < count; ++i) words[i] = mix64(seed + static_cast<uint64_t>(at) + i);
    }
    write_at(fd, reinterpret_cast<const char*>(words.data()), bytes, data_begin + tensor.offset + at);
  }
}

std::string file_name(size_t file, size_t files) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
  return name;
}

}  // namespace

int64_t write_made_model(const MadeModel& model, const std::string& folder, int threads) {
  const json config = config_of(model);
  std::ofstream(folder + "/config.json") << config.dump();
  std::vector<Tensor> tensors = tensors_of(model, make_family(config)->declare_weights());
  int64_t in_file = 0, total = 0;
  size_t file = 0;
  for (Tensor& tensor : tensors) {
    if (in_file > 0 && in_file + tensor.bytes > kMadeFileBytes) {
      ++file;
      in_file = 0;
    }
    tensor.file = file;
    tensor.offset = in_file;
    in_file += tensor.bytes;
    total += tensor.bytes;
  }
  std::vector<nlohmann::ordered_json> headers(file + 1, nlohmann::ordered_json::object());
  json map = json::object();
  for (const Tensor& t : tensors) {
    headers[t.file][t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {t.offset, t.offset + t.bytes}}};
    map[t.name] = file_name(t.file, headers.size());
  }
  std::ofstream(folder + "/model.safetensors.index.json") << json{{"weight_map", map}}.dump();
  std::vector<int> fds;
  std::vector<int64_t> data_begin;
  for (size_t i = 0; i < headers.size(); ++i) {
    std::string text = headers[i].dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    const std::string path = folder + "/" + file_name(i, headers.size());
    fds.push_back(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fds.back() < 0) throw std::runtime_error("cannot create " + path);
    data_begin.push_back(static_cast<int64_t>(sizeof length + text.size()));
    write_at(fds.back(), reinterpret_cast<const char*>(&length), sizeof length, 0);
    write_at(fds.back(), text.data(), static_cast<int64_t>(text.size()), sizeof length);
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<std::jthread> writers;
  for (int i = 0; i < threads; ++i) {
    writers.emplace_back([&] {
      std::vector<uint64_t> words(kPieceBytes / 8);
      for (size_t t = next++; t < tensors.size() && !failed; t = next++) {
        try {
          write_tensor(fds[tensors[t].file], tensors[t], data_begin[tensors[t].file], mix64(t), words);
        } catch (const std::runtime_error&) {
          failed = true;
        }
      }
    });
  }
  writers.clear();
  for (const int fd : fds) ::close(fd);
  if (failed) throw std::runtime_error("cannot write the made model: is the disk full?");
  return total;
}

}  // namespace ft::test
