#include "tests/runtime/model_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "engine/model/safetensors.h"
#include "kernels/host/host_memory.h"

namespace ft::test {
namespace {

std::string folder_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string() : std::string(value);
}

template <class Element>
std::vector<Element> read_tensor(const std::string& path, const std::string& name, DType dtype) {
  const MappedFile file(path);
  const TensorMap tensors = parse_safetensors(file.bytes(), path);
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.dtype != dtype) throw std::runtime_error(path + " lacks " + name);
  std::vector<Element> values(static_cast<size_t>(found->second.elements()));
  std::memcpy(values.data(), found->second.bytes.data(), found->second.bytes.size());
  return values;
}

}  // namespace

std::string data_path(const std::string& name) {
  const std::string root = folder_of("FT_TEST_DATA");
  if (root.empty()) throw std::runtime_error("set FT_TEST_DATA to the folder tests/data");
  return root + "/" + name;
}

std::string shared_path(const std::string& name) {
  const std::string path = folder_of("FT_SHARED") + "/" + name;
  return std::filesystem::exists(path) ? path : std::string();
}

LoadedModel model_at(const std::string& path) {
  static std::map<std::string, LoadedModel> loaded;
  LoadedModel& model = loaded[path];
  if (model.weights == nullptr) {
    WorkerPool pool(WorkerPoolOptions{.threads = 2, .cpus = {}});
    WeightSource source;
    source.model_path = path;
    source.synthetic = !std::filesystem::exists(path + "/model.safetensors");
    model.family = make_family(load_model_config(path));
    model.weights = load_weights(*model.family, source, pool);
  }
  return model;
}

EngineConfig config_for(const LoadedModel& model, Strategy strategy, int64_t slots, int threads, int max_batch) {
  const ModelGeometry& geometry = model.family->geometry();
  EngineConfig config;
  config.strategy = strategy;
  config.threads = threads;
  config.max_batch = max_batch;
  config.max_context = std::min<int64_t>(geometry.max_positions, 640);
  config.slots = slots;
  if (strategy == Strategy::kResident) {
    config.slots = geometry.total_experts();
    return config;
  }
  const int distinct = std::min(geometry.expert.experts, geometry.expert.top_k * max_batch);
  for (int misses = 0; misses <= distinct; ++misses) {
    config.fetch_of_misses.push_back(strategy == Strategy::kOffload  ? misses
                                     : strategy == Strategy::kHybrid ? misses / 2
                                                                     : 0);
  }
  if (strategy != Strategy::kOffload) {
    config.promote_bytes_per_layer = 2 * model.weights->formats.expert_bytes_max;
  }
  return config;
}

std::vector<float> read_f32(const std::string& safetensors, const std::string& tensor) {
  return read_tensor<float>(safetensors, tensor, DType::kF32);
}

std::vector<int64_t> read_i64(const std::string& safetensors, const std::string& tensor) {
  return read_tensor<int64_t>(safetensors, tensor, DType::kI64);
}

double relative_error(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return std::nan("");
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(difference / norm);
}

int32_t arg_max(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

namespace {

// `along`: the ids to feed, or empty for those that the logits choose.
Continuation run_in_chunks(Engine& engine, std::span<const int32_t> prompt, int64_t count, size_t chunk, bool as_prompt,
                           std::span<const int32_t> along = {}) {
  Continuation result;
  const int sequence = engine.open_sequence();
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    TokenRun run;
    run.sequence = sequence;
    run.position = engine.sequence_length(sequence);
    run.ids = prompt.subspan(begin, std::min(chunk, prompt.size() - begin));
    run.logits_for_all = true;
    run.prompt = as_prompt;
    const std::span<const float> logits = engine.step({&run, 1});
    result.prompt_logits.insert(result.prompt_logits.end(), logits.begin(), logits.end());
  }
  std::vector<float> row(result.prompt_logits.end() - static_cast<std::ptrdiff_t>(vocab), result.prompt_logits.end());
  for (int64_t i = 0; i < count; ++i) {
    result.ids.push_back(arg_max(row));
    const int32_t id = along.empty() ? result.ids.back() : along[static_cast<size_t>(i)];
    result.decode_logits.insert(result.decode_logits.end(), row.begin(), row.end());
    if (i + 1 == count) break;
    TokenRun run;
    run.sequence = sequence;
    run.position = engine.sequence_length(sequence);
    run.ids = {&id, 1};
    const std::span<const float> logits = engine.step({&run, 1});
    row.assign(logits.begin(), logits.end());
  }
  engine.close_sequence(sequence);
  return result;
}

}  // namespace

Continuation run_greedy(Engine& engine, std::span<const int32_t> prompt, int64_t count) {
  const int chunk = std::min(engine.config().prefill_chunk, kMaxLogitsRows);
  return run_in_chunks(engine, prompt, count, static_cast<size_t>(chunk), true);
}

std::vector<float> one_step(Engine& engine, int sequence, int32_t id) {
  const TokenRun run{.sequence = sequence, .position = engine.sequence_length(sequence), .ids = {&id, 1}};
  const std::span<const float> logits = engine.step({&run, 1});
  return {logits.begin(), logits.end()};
}

Continuation run_along(Engine& engine, std::span<const int32_t> prompt, std::span<const int32_t> ids) {
  const int chunk = std::min(engine.config().prefill_chunk, kMaxLogitsRows);
  return run_in_chunks(engine, prompt, static_cast<int64_t>(ids.size()), static_cast<size_t>(chunk), true, ids);
}

Continuation run_by_steps(Engine& engine, std::span<const int32_t> prompt, int64_t count) {
  return run_in_chunks(engine, prompt, count, 1, false);
}

}  // namespace ft::test
