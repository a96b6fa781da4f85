// Loads small models for the runtime tests and makes engine configurations for them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "kernels/base/json.h"

namespace ft::test {

// FT_TEST_DATA / name; always there.
std::string data_path(const std::string& name);
// FT_SHARED / name, or empty when that folder is not there.
std::string shared_path(const std::string& name);

// Loaded once per path and process. A folder with a configuration alone: synthetic weights.
LoadedModel model_at(const std::string& path);

inline constexpr MemoryInputs kPlenty{Device::kHost, int64_t{8} << 30, int64_t{8} << 30};

// A configuration that starts: all slots for resident and 0 for cpu, otherwise `slots`; hybrid fetches half its misses.
EngineConfig config_for(const LoadedModel& model, Strategy strategy, int64_t slots, int threads = 1, int max_batch = 1);

std::vector<float> read_f32(const std::string& safetensors, const std::string& tensor);
std::vector<int64_t> read_i64(const std::string& safetensors, const std::string& tensor);

// norm(got - expected) / norm(expected) in double; NaN if either holds one.
double relative_error(std::span<const float> got, std::span<const float> expected);
int32_t arg_max(std::span<const float> row);  // ties to the lowest id

// The logits of one decode step of a sequence.
std::vector<float> one_step(Engine& engine, int sequence, int32_t id);

// One sequence: prefill with all logits (in chunks of the engine's), then `count` greedy decode steps. Closes it.
struct Continuation {
  std::vector<float> prompt_logits;  // (prompt, vocab)
  std::vector<int32_t> ids;          // (count)
  std::vector<float> decode_logits;  // (count, vocab): row i chose id i
};
Continuation run_greedy(Engine& engine, std::span<const int32_t> prompt, int64_t count);
// The same along `ids`, whatever the logits would choose; the result's ids are what they choose at each step.
Continuation run_along(Engine& engine, std::span<const int32_t> prompt, std::span<const int32_t> ids);
// The same with the prompt fed in decode steps of one token: decode's arithmetic throughout, which is the same bits on
// every device, and recorded as routing.
Continuation run_by_steps(Engine& engine, std::span<const int32_t> prompt, int64_t count);

}  // namespace ft::test
