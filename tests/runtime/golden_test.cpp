// Checked against: logits and greedy ids that Hugging Face transformers computed in float32 (golden cases), the bundled
// model's reference logits with its exact NVFP4 weights (nvfp4_golden.safetensors), and its greedy texts (eval.json).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr std::string_view kFamilies[] = {"deepseek_v4",      "gemma4",    "gemma4_text", "gpt_oss",
                                          "qwen3_5_moe_text", "qwen3_moe", "qwen4_exp",   "qwen4_exp_text"};

// "gpt_oss", "gpt_oss.b" and "gpt_oss-mxfp4" are cases of gpt_oss.
bool is_case(const std::string& name) {
  return std::any_of(std::begin(kFamilies), std::end(kFamilies), [&](std::string_view family) {
    return name.starts_with(family) &&
           (name.size() == family.size() || name[family.size()] == '.' || name[family.size()] == '-');
  });
}

// Folders of all cases of these families: those of the tree, and the others where the shared folder is there.
std::set<std::string> golden_cases() {
  std::set<std::string> names, paths;
  for (const std::string& root : {data_path("golden"), shared_path("golden")}) {
    if (root.empty()) {
      MESSAGE("FT_SHARED has no golden cases: only those of the tree are run");
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      const std::string name = entry.path().filename();
      if (is_case(name) && names.insert(name).second) paths.insert(entry.path());
    }
  }
  return paths;
}

struct Errors {
  double prompt = 0, decode = 0;
  std::vector<int32_t> greedy;
};

// The decode logits are compared along the recorded greedy ids: a run that chooses another token would be judged on
// another text.
Errors run_case(const std::string& path, const Json& golden, Numerics numerics) {
  const LoadedModel model = model_at(path);
  EngineConfig config = config_for(model, Strategy::kHybrid, model.family->geometry().total_experts() / 2, 2);
  config.numerics = numerics;
  Engine engine(model, config, kPlenty);
  const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
  const auto expected_ids = golden["greedy"].get<std::vector<int32_t>>();
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  Continuation run = run_along(engine, prompt, expected_ids);
  std::vector<float> at;
  for (const size_t position : golden["prompt_logits_at"].get<std::vector<size_t>>()) {
    const auto row = run.prompt_logits.begin() + static_cast<std::ptrdiff_t>(position * vocab);
    at.insert(at.end(), row, row + static_cast<std::ptrdiff_t>(vocab));
  }
  Errors errors;
  const std::string file = path + "/golden.safetensors";
  errors.prompt = relative_error(at, read_f32(file, "prompt_logits"));
  errors.decode = relative_error(run.decode_logits, read_f32(file, "decode_logits"));
  errors.greedy = std::move(run.ids);
  return errors;
}

}  // namespace

TEST_CASE("reference numerics agree with transformers in float32, greedy ids included") {
  for (const std::string& path : golden_cases()) {
    CAPTURE(path);
    const Json golden = read_json_file(path + "/golden.json");
    const double limit = std::max(1e-5, 10 * golden["rel_cached_vs_uncached"].get<double>());
    const Errors errors = run_case(path, golden, Numerics::kReference);
    MESSAGE("reference " << path << " prompt " << errors.prompt << " decode " << errors.decode << " limit " << limit);
    CHECK(errors.prompt <= limit);
    CHECK(errors.decode <= limit);
    CHECK(errors.greedy == golden["greedy"].get<std::vector<int32_t>>());
  }
}

TEST_CASE("reference numerics: chunks of a prompt, single tokens too, give what one pass gives, past every ring") {
  for (const std::string& path : golden_cases()) {
    CAPTURE(path);
    const Json golden = read_json_file(path + "/golden.json");
    const LoadedModel model = model_at(path);
    EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
    config.numerics = Numerics::kReference;
    const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
    const auto ids = golden["greedy"].get<std::vector<int32_t>>();
    std::vector<float> one_pass;
    for (const int chunk : {kMaxPrefillChunk, 1, 31, 64}) {
      config.prefill_chunk = chunk;
      Engine engine(model, config, kPlenty);
      const Continuation run = run_along(engine, prompt, ids);
      std::vector<float> logits = run.prompt_logits;
      logits.insert(logits.end(), run.decode_logits.begin(), run.decode_logits.end());
      if (one_pass.empty()) one_pass = logits;
      CAPTURE(chunk);
      CHECK(relative_error(logits, one_pass) <= 1e-5);
    }
  }
}

TEST_CASE("serve numerics stay within 1.5 times a bf16 run's distance from float32") {
  for (const std::string& path : golden_cases()) {
    CAPTURE(path);
    const Json golden = read_json_file(path + "/golden.json");
    const Json& distance = golden["rel_bf16_vs_fp32"];  // null: not measured
    const double limit = distance.is_null() ? 0.05 : 1.5 * distance.get<double>();
    const Errors errors = run_case(path, golden, Numerics::kServe);
    MESSAGE("serve " << path << " prompt " << errors.prompt << " decode " << errors.decode << " limit " << limit);
    CHECK(errors.prompt <= limit);
    CHECK(errors.decode <= limit);
  }
}

TEST_CASE("the bundled model reproduces its reference logits with the exact NVFP4 weights") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
  config.numerics = Numerics::kReference;
  Engine engine(model, config, kPlenty);
  const std::string file = data_path("tiny-moe/nvfp4_golden.safetensors");
  const std::vector<int64_t> ids = read_i64(file, "ids");
  const std::vector<float> expected = read_f32(file, "logits");
  const Continuation run = run_greedy(engine, std::vector<int32_t>(ids.begin(), ids.end()), 0);
  REQUIRE(run.prompt_logits.size() >= expected.size());
  const std::span<const float> last = std::span(run.prompt_logits).last(expected.size());
  CHECK(relative_error(last, expected) <= 1e-5);
}

TEST_CASE("the bundled model continues its two prompts as recorded") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  const Json eval = read_json_file(data_path("tiny-moe/eval.json"));
  for (const Numerics numerics : {Numerics::kReference, Numerics::kServe}) {
    EngineConfig config = config_for(model, Strategy::kHybrid, 64, 2);
    config.numerics = numerics;
    Engine engine(model, config, kPlenty);
    for (const std::string domain : {"kjv", "pydocs"}) {
      const Json& text = eval["greedy"][domain];
      CAPTURE(domain);
      const auto expected = text["greedy"].get<std::vector<int32_t>>();
      const Continuation run =
          run_greedy(engine, text["prompt_ids"].get<std::vector<int32_t>>(), static_cast<int64_t>(expected.size()));
      const auto differs = std::mismatch(run.ids.begin(), run.ids.end(), expected.begin());
      const auto same = differs.first - run.ids.begin();
      MESSAGE(domain << std::string(numerics == Numerics::kServe ? " serve" : " reference") << ": first " << same
                     << " of " << expected.size() << " ids as recorded");
      // Serve mode rounds activations to bf16 and may leave the text where two tokens are close (min_margin 0.01).
      if (numerics == Numerics::kReference) CHECK(run.ids == expected);
      if (numerics == Numerics::kServe) CHECK(same >= 8);
    }
  }
}
