// Writes a checkpoint of any size quickly: seeded bytes in the tensors that a config.json of Qwen3-MoE asks for. For
// tests and benches of loading, which look at bytes and not at what they mean.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ft::test {

struct MadeModel {
  std::string_view format = "bf16";  // of the experts' matrices: bf16, nvfp4 (as modelopt names it) or fp8_block
  int layers = 1, experts = 8, top_k = 2;
  int64_t hidden = 256, intermediate = 128, vocab = 512;
  int heads = 4, kv_heads = 2, head_dim = 64;
};

inline constexpr int64_t kMadeFileBytes = int64_t{4} << 30;  // about, as published checkpoints are split

// Into `folder`, which is there. Returns the bytes of tensors. Throws std::runtime_error.
int64_t write_made_model(const MadeModel& model, const std::string& folder, int threads);

}  // namespace ft::test
