// Checked against: logits and greedy ids that Hugging Face transformers computed in float32 (golden cases), the bundled
// model's reference logits with its exact NVFP4 weights (nvfp4_golden.safetensors), its greedy texts (eval.json), and
// an independent NumPy form of DeepSeek-V4 with the authors' arithmetic (tests/model/deepseek_v4_form.py).
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
  config.deepseek_arithmetic = DeepseekArithmetic::kTransformers;
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

static void check_chunks(const std::string& path, DeepseekArithmetic arithmetic) {
  const Json golden = read_json_file(path + "/golden.json");
  const LoadedModel model = model_at(path);
  EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
  config.numerics = Numerics::kReference;
  config.deepseek_arithmetic = arithmetic;
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

TEST_CASE("reference numerics: chunks of a prompt, single tokens too, give what one pass gives, past every ring") {
  for (const std::string& path : golden_cases()) {
    CAPTURE(path);
    check_chunks(path, DeepseekArithmetic::kTransformers);
    if (path.find("deepseek_v4") != std::string::npos) check_chunks(path, DeepseekArithmetic::kAuthors);
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

TEST_CASE("deepseek_v4 with the authors' arithmetic: near an independent form in both numerics, and what is served") {
  const std::string path = data_path("golden/deepseek_v4.published");
  const Json golden = read_json_file(path + "/golden.json");
  const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
  const auto ids = golden["greedy"].get<std::vector<int32_t>>();
  const std::vector<int64_t> rows = read_i64(path + "/authors.safetensors", "rows");
  const std::vector<float> authors = read_f32(path + "/authors.safetensors", "logits");
  const LoadedModel model = model_at(path);
  const auto vocab = static_cast<size_t>(model.family->geometry().vocab);
  REQUIRE(authors.size() == rows.size() * vocab);
  const auto logits = [&](Numerics numerics, std::optional<DeepseekArithmetic> arithmetic, int chunk) {
    EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
    config.numerics = numerics;
    config.deepseek_arithmetic = arithmetic;
    config.prefill_chunk = chunk;
    Engine engine(model, config, kPlenty);
    const Continuation run = run_along(engine, prompt, ids);
    std::vector<float> at;
    for (const int64_t row : rows) {
      const auto decoded = row - static_cast<int64_t>(prompt.size()) + 1;  // row 0 of these is the prompt's last
      const std::vector<float>& from = decoded < 0 ? run.prompt_logits : run.decode_logits;
      const auto begin = from.begin() + (decoded < 0 ? row : decoded) * static_cast<int64_t>(vocab);
      at.insert(at.end(), begin, begin + static_cast<int64_t>(vocab));
    }
    return at;
  };
  const auto kAuthors = DeepseekArithmetic::kAuthors, kTransformers = DeepseekArithmetic::kTransformers;
  const std::vector<float> plain = logits(Numerics::kReference, std::nullopt, 64);
  CHECK(plain == logits(Numerics::kReference, kTransformers, 64));
  const double sides = relative_error(plain, authors);
  CHECK(sides > 0.02);  // what follows tells them apart
  for (const int chunk : {64, 1}) {
    const std::vector<float> exact = logits(Numerics::kReference, kAuthors, chunk);
    std::vector<double> errors;
    for (size_t row = 0; row < rows.size(); ++row) {
      errors.push_back(relative_error({exact.data() + row * vocab, vocab}, {authors.data() + row * vocab, vocab}));
    }
    std::sort(errors.begin(), errors.end());
    MESSAGE("authors in reference numerics, chunks of " << chunk << ": median " << errors[errors.size() / 2]
                                                        << ", most " << errors.back() << "; transformers " << sides);
    // Sums are made in another order: a value on the edge between two codes may end as the other one.
    CHECK(errors[errors.size() / 2] < 1e-5);
    CHECK(relative_error(exact, authors) < sides / 20);
  }
  const std::vector<float> served = logits(Numerics::kServe, std::nullopt, 64);
  const std::vector<float> other = logits(Numerics::kServe, kTransformers, 64);
  CHECK(served == logits(Numerics::kServe, kAuthors, 64));
  MESSAGE("served: authors " << relative_error(served, authors) << " from their form and "
                             << relative_error(served, plain) << " from transformers; transformers "
                             << relative_error(other, plain) << " and " << relative_error(other, authors));
  CHECK(relative_error(served, authors) < relative_error(served, plain));
  CHECK(relative_error(other, plain) < relative_error(other, authors));
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
