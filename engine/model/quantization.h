// What config.json's quantization_config says: the block size of fp8 scales, and, for synthetic weights, which format
// each matrix would have. For real weights the tensors decide (detect.h), never this.
//
// Understood: modelopt NVFP4, FP8 and FP8_PER_CHANNEL_PER_TOKEN (ignore / exclude_modules: globs), compressed-tensors
// nvfp4-pack-quantized, mxfp4-pack-quantized and float-quantized with one scale, one a row or 128x128 blocks (ignore
// and targets: names or "re:" patterns), fp8 with 128x128 blocks (modules_to_not_convert / ignored_layers: names),
// mxfp4 (routed experts only; modules_to_not_convert: globs). With any of them, or none, expert_dtype "fp4", as
// DeepSeek-V4 has it, makes the routed experts MXFP4.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/json.h"
#include "kernels/formats/format.h"

namespace ft {

inline constexpr size_t kMaxModulePatterns = 100'000;
inline constexpr size_t kMaxPatternBytes = 1024;

// Shell-style pattern over a whole name: * ? [abc] [!a-z]; dots are ordinary. Linear in pattern times text.
bool glob_match(std::string_view pattern, std::string_view text);

class QuantizationRules {
 public:
  // `config` as load_model_config gives it; no or null quantization_config: everything is bf16.
  // Throws Error naming the key when the scheme is not supported or a list is malformed.
  explicit QuantizationRules(const Json& config);
  ~QuantizationRules();
  QuantizationRules(const QuantizationRules&) = delete;
  QuantizationRules& operator=(const QuantizationRules&) = delete;

  // Of the linear layer called `module` ("model.layers.0.self_attn.q_proj").
  FormatId format_of(std::string_view module) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Throws Error unless the scale blocks of an fp8 checkpoint are [128, 128] (absent counts as that).
void check_fp8_block_size(const Json& config);

}  // namespace ft
