// device_test_engine [--bench [look-ahead | families | families-profile]] [LIST ...]: the engine on a CUDA device; the
// lists are below.
#include <algorithm>
#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/model/family.h"
#include "kernels/base/json.h"
#include "tests/device/engine_lists.h"

namespace ft::device_test {

EngineConfig on_device(const LoadedModel& model, Strategy strategy, int64_t slots, int max_batch) {
  EngineConfig config = test::config_for(model, strategy, slots, kEngineThreads, max_batch);
  config.device = Device::kCuda;
  return config;
}

std::vector<int32_t> some_ids(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    ids.push_back(static_cast<int32_t>((seed * 7919 + n * n * 31 + seed * n) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

std::string first_difference(std::span<const float> got, std::span<const float> expected, int64_t vocab) {
  if (got.size() != expected.size()) return "sizes differ";
  size_t different = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return {};
  return std::to_string(different) + " of " + std::to_string(got.size()) + " logits differ, first at row " +
         std::to_string(first / static_cast<size_t>(vocab)) + ": " + std::to_string(got[first]) + " instead of " +
         std::to_string(expected[first]);
}

std::string compare(const test::Continuation& got, const test::Continuation& expected, int64_t vocab) {
  std::string prompt = first_difference(got.prompt_logits, expected.prompt_logits, vocab);
  if (!prompt.empty()) return "prompt: " + prompt;
  std::string decode = first_difference(got.decode_logits, expected.decode_logits, vocab);
  return decode.empty() ? decode : "decode: " + decode;
}

bool runs_on_device(const std::string& path) {
  const std::string type = read_json_file(path + "/config.json").value("model_type", "");
  const std::span<const FamilyDesc> all = families();
  return std::any_of(all.begin(), all.end(),
                     [&](const FamilyDesc& family) { return family.on_cuda && family.model_type == type; });
}

std::vector<std::string> one_of_each_family() {
  std::vector<std::string> paths = {test::data_path("tiny-moe")};
  for (const char* name :
       {"gpt_oss.small", "gemma4.older", "qwen3_5_moe_text.b", "deepseek_v4.published", "qwen4_exp.published"}) {
    const std::string path = test::data_path("golden/" + std::string(name));
    if (runs_on_device(path)) paths.push_back(path);
  }
  return paths;
}

double serve_limit(const std::string& path) {
  const std::string file = path + "/golden.json";
  if (!std::filesystem::exists(file)) return 0.03;
  const Json limit = read_json_file(file)["rel_bf16_vs_fp32"];
  return limit.is_null() ? 0.05 : 1.5 * limit.get<double>();
}

}  // namespace ft::device_test

int main(int argc, char** argv) {
  using namespace ft::device_test;
  constexpr TestList kTests[] = {{"strategies", test_strategies},
                                 {"nowait", test_nowait},
                                 {"history", test_history},
                                 {"batch", test_batch},
                                 {"probes", test_probes},
                                 {"lookahead", test_look_ahead},
                                 {"golden", test_golden},
                                 {"heldout", test_heldout},
                                 {"prompt-chunks", test_prompt_chunks},
                                 {"prompt-cache", test_prompt_cache},
                                 {"prompt-batches", test_prompt_batches},
                                 {"prompt-choices", test_prompt_choices},
                                 {"sequences", test_sequences},
                                 {"compressed-sequences", test_compressed_sequences}};
  const auto asked = [&](std::string_view name) { return std::find(argv, argv + argc, name) != argv + argc; };
  return run_tests(argc, argv, kTests,
                   asked("look-ahead")         ? bench_look_ahead
                   : asked("families")         ? bench_families
                   : asked("families-profile") ? bench_families_profile
                                               : bench_engine);
}
