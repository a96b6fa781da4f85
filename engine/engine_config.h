// Everything the engine needs to start, as plain data. ft-engine fills it from a profile, the tuner per candidate; the
// engine reads no environment and no file that is not named here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/experts/cache_policy.h"
#include "kernels/ops/rows.h"

namespace ft {

enum class Strategy : uint8_t { kResident, kOffload, kCpu, kHybrid };
std::string_view strategy_name(Strategy strategy);  // "resident", "offload", "cpu", "hybrid"
std::optional<Strategy> strategy_by_name(std::string_view name);

enum class Device : uint8_t { kHost, kCuda };
std::string_view device_name(Device device);

// Who brings fetched experts to a CUDA device.
enum class FetchMechanism : uint8_t {
  kSm,          // the kernel that computes them, as it reads them over the link
  kCopyEngine,  // the copy engine, asked by a thread of its own that spins during steps: one core more than `threads`
};
std::string_view fetch_mechanism_name(FetchMechanism mechanism);  // "sm", "copy_engine"
std::optional<FetchMechanism> fetch_mechanism_by_name(std::string_view name);

enum class Numerics : uint8_t {
  kServe,      // DESIGN section 3: same bits on every strategy, cache, thread count, ISA and batch
  kReference,  // fp32 activations, host only: what is compared with Hugging Face transformers in float32
};
std::optional<Numerics> numerics_by_name(std::string_view name);

// What DeepSeek-V4 does beside its weights.
enum class DeepseekArithmetic : uint8_t {
  // Rows and entries of attention on the grid of FP8, index vectors turned by a Hadamard matrix and on the grid of FP4
  // (kernels/ops/cache_grid.h), as the model was trained. Inputs of products stay bf16 (DESIGN section 3).
  kAuthors,
  kTransformers,  // rows, entries and index vectors in bf16
};
std::optional<DeepseekArithmetic> deepseek_arithmetic_by_name(std::string_view name);  // "authors", "transformers"

struct WeightSource {
  std::string model_path;  // folder with config.json
  bool synthetic = false;  // geometry from config.json alone
  uint64_t synthetic_seed = 0;
  std::string routing_preset;  // synthetic only: preset name, or the path of a recorded trace
  std::string packed_cache;    // checkpoint only: folder of packed files (engine/model/packed_cache.h); empty: none
};

// How a layer's misses are shared: fetch_of_misses[m] of m misses are fetched over the link, the rest is computed on
// the CPU from the bank. Size is max distinct experts of a layer + 1; [0] is 0. offload: [m] = m; cpu: all 0.
using SplitTable = std::vector<int>;

inline constexpr int kMaxBatch = 64;           // sequences decoded together
inline constexpr int kMaxPrefillChunk = 8192;  // tokens of one prefill step
inline constexpr int kMaxLogitsRows = 256;     // of a prefill step; a decode step has one for each sequence
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxExperts = 4096;  // experts of a layer; kMaxTopK of them per token: kernels/ops/rows.h
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxLinkSlowdown = 64;  // from PCIe 5 x16 down to less than 1 GB/s

struct EngineConfig {
  WeightSource weights;
  Device device = Device::kHost;
  Numerics numerics = Numerics::kServe;
  // Empty: the authors' in serve numerics, that of transformers in reference numerics.
  std::optional<DeepseekArithmetic> deepseek_arithmetic;
  Strategy strategy = Strategy::kOffload;
  int threads = 1;             // compute threads, the calling thread included
  int64_t slots = 0;           // experts over all layers that slots hold; resident: all of them
  SplitTable fetch_of_misses;  // see above; empty only with resident
  // CPU-computed misses copied into slots: so many bytes a layer in the mean (kernels/base/promotion_rate.h).
  int64_t promote_bytes_per_layer = 0;
  CachePolicy cache_policy = CachePolicy::kLrfu;
  LookAhead look_ahead = LookAhead::kOff;
  int max_prefetches_per_layer = 0;  // experts copied ahead of need, for one layer of one step; 0 with look-ahead off
  int max_batch = 1;
  int64_t max_context = 0;  // tokens of one sequence, prompt and answer
  int prefill_chunk = 64;
  std::optional<int64_t> device_memory_limit_bytes;  // --vram-limit
  std::optional<int64_t> host_memory_limit_bytes;
  FetchMechanism fetch_mechanism = FetchMechanism::kSm;  // cuda
  int link_slowdown = 1;                                 // tests: the link moves every blob so many times (cuda, kSm)
  bool no_wait = false;                // cuda: CPU experts between launches instead of beside them; for sanitizers
  std::vector<int> pinning;            // OS index per thread; empty: not pinned
  std::optional<std::string> isa_cap;  // isa_name() of the best kernels to use; empty: all that active_isa() allows
};

constexpr DeepseekArithmetic deepseek_arithmetic_of(const EngineConfig& config) {
  const bool serves = config.numerics == Numerics::kServe;
  return config.deepseek_arithmetic.value_or(serves ? DeepseekArithmetic::kAuthors : DeepseekArithmetic::kTransformers);
}

// Rows of logits that one step can give.
constexpr int64_t max_logits_rows(const EngineConfig& config) {
  const int prompt_rows = config.prefill_chunk < kMaxLogitsRows ? config.prefill_chunk : kMaxLogitsRows;
  return config.max_batch > prompt_rows ? config.max_batch : prompt_rows;
}

// A base configuration asks for look-ahead; strategies without a link that fetches go without.
void drop_unusable_look_ahead(EngineConfig& config);

}  // namespace ft
