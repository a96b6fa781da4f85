#include "tests/bench/geometry_case.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft::bench {
namespace {

constexpr GeometryCase kCases[] = {
    {"A-bf16", 2048, 768, 128, 8, 48, FormatId::kBf16},       // Qwen3-30B-A3B: 58 GB of experts
    {"A-nvfp4", 2048, 768, 128, 8, 48, FormatId::kNvfp4},     // 16 GB
    {"B-nvfp4", 2560, 640, 512, 10, 48, FormatId::kNvfp4},    // many small experts: 68 GB
    {"C-ds_fp4", 4096, 2048, 256, 6, 28, FormatId::kMxfp4},   // few large ones: 96 GB
    {"A12-nvfp4", 2048, 768, 128, 8, 12, FormatId::kNvfp4},   // beside llama.cpp, whose file must stay small
    {"A12-ds_fp4", 2048, 768, 128, 8, 12, FormatId::kMxfp4},  // likewise
    {"tiny-nvfp4", 256, 128, 32, 4, 4, FormatId::kNvfp4, true},
    {"tiny-bf16", 256, 128, 32, 4, 4, FormatId::kBf16, true},
};

}  // namespace

std::span<const GeometryCase> geometry_cases() { return kCases; }

const GeometryCase* find_geometry_case(std::string_view name) {
  for (const GeometryCase& one : kCases) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

std::string geometry_case_names() {
  std::string names;
  for (const GeometryCase& one : kCases) names += (names.empty() ? "" : ", ") + std::string(one.name);
  return names;
}

std::string config_json(const GeometryCase& geometry) {
  OrderedJson config = {
      {"architectures", {"Qwen3MoeForCausalLM"}},
      {"model_type", "qwen3_moe"},
      {"attention_bias", false},
      {"decoder_sparse_step", 1},
      {"head_dim", geometry.tiny ? 64 : 128},
      {"hidden_act", "silu"},
      {"hidden_size", geometry.hidden},
      {"intermediate_size", geometry.tiny ? 512 : 6144},
      {"max_position_embeddings", 40960},
      {"mlp_only_layers", OrderedJson::array()},
      {"moe_intermediate_size", geometry.intermediate},
      {"norm_topk_prob", true},
      {"num_attention_heads", geometry.tiny ? 4 : 32},
      {"num_experts", geometry.experts},
      {"num_experts_per_tok", geometry.top_k},
      {"num_hidden_layers", geometry.layers},
      {"num_key_value_heads", geometry.tiny ? 2 : 4},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 1e6},
      {"sliding_window", nullptr},
      {"tie_word_embeddings", false},
      {"torch_dtype", "bfloat16"},
      {"use_sliding_window", false},
      {"vocab_size", geometry.tiny ? 512 : 151936},
  };
  if (geometry.format == FormatId::kNvfp4) {
    config["quantization_config"] = {
        {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head", "*.self_attn.*", "*.mlp.gate"}}};
  }
  if (geometry.format == FormatId::kMxfp4) config["expert_dtype"] = "fp4";  // as DeepSeek-V4 says it
  return config.dump(2) + "\n";
}

std::string write_config(const GeometryCase& geometry, const std::string& folder) {
  const std::string path = folder + "/" + std::string(geometry.name);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(ErrorKind::kFailed, {.what = "cannot make a folder", .value = error.message(), .path = path});
  write_file_atomically(path + "/config.json", config_json(geometry));
  return path;
}

int64_t slots_of(const GeometryCase& geometry, double percent) {
  return std::llround(percent / 100 * static_cast<double>(geometry.experts) * geometry.layers);
}

}  // namespace ft::bench
