#include "tests/bench/made_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"
#include "kernels/base/random.h"

namespace ft::bench {
namespace {

constexpr int64_t kPatternBytes = int64_t{16} << 20;

struct Tensor {
  std::string name;
  const char* dtype = "";
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// The bytes of tensors, by dtype: what every weight of it is cut from.
class Patterns {
 public:
  Patterns() {
    for (auto* pattern : {&codes_, &scales_, &bf16_, &f32_}) pattern->resize(static_cast<size_t>(kPatternBytes));
    for (size_t i = 0; i < codes_.size(); i += 8) {
      const uint64_t bits = mix64(i);
      std::memcpy(codes_.data() + i, &bits, 8);
      const uint64_t scales = (bits & 0x0707070707070707u) | 0x2828282828282828u;  // e4m3, 2^-2 .. 2^-1
      std::memcpy(scales_.data() + i, &scales, 8);
      const uint64_t halves = (bits & 0x807f807f807f807fu) | 0x3c803c803c803c80u;  // magnitudes from 2^-6
      std::memcpy(bf16_.data() + i, &halves, 8);
      const float ones[2] = {1.0f, 1.0f};
      std::memcpy(f32_.data() + i, ones, 8);
    }
  }
  const std::string& of(std::string_view dtype) const {
    return dtype == "U8" ? codes_ : dtype == "F8_E4M3" ? scales_ : dtype == "BF16" ? bf16_ : f32_;
  }

 private:
  std::string codes_, scales_, bf16_, f32_;
};

class TensorList {
 public:
  void add(std::string name, const char* dtype, std::vector<int64_t> shape) {
    int64_t bytes = std::string_view(dtype) == "BF16" ? 2 : std::string_view(dtype) == "F32" ? 4 : 1;
    for (const int64_t side : shape) bytes *= side;
    tensors.push_back({std::move(name), dtype, std::move(shape), bytes});
  }
  void bf16(const std::string& name, std::vector<int64_t> shape) { add(name, "BF16", std::move(shape)); }
  void nvfp4(const std::string& stem, int64_t rows, int64_t cols) {
    add(stem + ".weight", "U8", {rows, cols / 2});
    add(stem + ".weight_scale", "F8_E4M3", {rows, cols / 16});
    add(stem + ".weight_scale_2", "F32", {});
  }
  std::vector<Tensor> tensors;
};

std::vector<Tensor> layer_tensors(const ModelGeometry& g, int layer) {
  TensorList list;
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const KvLayer& kv = g.kv[static_cast<size_t>(layer)];
  const int64_t heads = g.widest_heads, keys = kv.kv_heads * kv.head_dim;
  list.bf16(prefix + "input_layernorm.weight", {g.hidden});
  list.bf16(prefix + "post_attention_layernorm.weight", {g.hidden});
  list.bf16(prefix + "self_attn.q_proj.weight", {heads, g.hidden});
  list.bf16(prefix + "self_attn.k_proj.weight", {keys, g.hidden});
  list.bf16(prefix + "self_attn.v_proj.weight", {keys, g.hidden});
  list.bf16(prefix + "self_attn.o_proj.weight", {g.hidden, heads});
  list.bf16(prefix + "self_attn.q_norm.weight", {kv.head_dim});
  list.bf16(prefix + "self_attn.k_norm.weight", {kv.head_dim});
  list.bf16(prefix + "mlp.gate.weight", {g.expert.experts, g.hidden});
  for (int expert = 0; expert < g.expert.experts; ++expert) {
    const std::string stem = prefix + "mlp.experts." + std::to_string(expert) + ".";
    list.nvfp4(stem + "gate_proj", g.expert.intermediate, g.hidden);
    list.nvfp4(stem + "up_proj", g.expert.intermediate, g.hidden);
    list.nvfp4(stem + "down_proj", g.hidden, g.expert.intermediate);
  }
  return std::move(list.tensors);
}

std::vector<Tensor> other_tensors(const ModelGeometry& g) {
  TensorList list;
  list.bf16("model.embed_tokens.weight", {g.vocab, g.hidden});
  list.bf16("model.norm.weight", {g.hidden});
  list.bf16("lm_head.weight", {g.vocab, g.hidden});
  return std::move(list.tensors);
}

// Gives the size of the file.
int64_t write_file(const std::string& path, const std::vector<Tensor>& tensors, const Patterns& patterns) {
  OrderedJson header = OrderedJson::object();
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes}}};
    at += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::ofstream file(path, std::ios::binary);
  const auto size = static_cast<uint64_t>(text.size());
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& pattern = patterns.of(tensors[i].dtype);
    int64_t begin = static_cast<int64_t>(i * 997 * 4096) % kPatternBytes;  // experts differ
    for (int64_t left = tensors[i].bytes; left > 0; begin = 0) {
      const int64_t part = std::min(left, kPatternBytes - begin);
      file.write(pattern.data() + begin, static_cast<std::streamsize>(part));
      left -= part;
    }
  }
  file.close();
  if (!file)
    throw Error(ErrorKind::kFailed, {.what = "cannot write a file; is the disk full?", .value = {}, .path = path});
  return static_cast<int64_t>(sizeof size + text.size()) + at;
}

}  // namespace

MadeCheckpoint write_checkpoint(const GeometryCase& geometry, const std::string& folder, WorkerPool& pool) {
  FT_CHECK(geometry.format == FormatId::kNvfp4);
  MadeCheckpoint made;
  made.path = write_config(geometry, folder + "/checkpoint");
  const ModelGeometry model = make_family(load_model_config(made.path))->geometry();
  const Patterns patterns;
  std::vector<std::vector<Tensor>> files = {other_tensors(model)};
  for (int layer = 0; layer < model.layers; ++layer) files.push_back(layer_tensors(model, layer));
  const auto name_of = [](size_t i) { return "model-" + std::to_string(i) + ".safetensors"; };
  OrderedJson index = {{"metadata", OrderedJson::object()}, {"weight_map", OrderedJson::object()}};
  for (size_t i = 0; i < files.size(); ++i) {
    for (const Tensor& tensor : files[i]) index["weight_map"].push_back({tensor.name, name_of(i)});
  }
  write_file_atomically(made.path + "/model.safetensors.index.json", index.dump());
  std::atomic<size_t> next{0};
  std::atomic<int64_t> bytes{0};
  std::vector<std::exception_ptr> failures(files.size());
  pool.run([&](int, int) {
    for (size_t i = next++; i < files.size(); i = next++) {
      try {
        bytes += write_file(made.path + "/" + name_of(i), files[i], patterns);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  made.bytes = bytes;
  return made;
}

}  // namespace ft::bench
