// Checked against: the golden case's logits and greedy ids (transformers, float32), runs alone, and limits written out.
#include "engine/runtime/score.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

const std::string& golden_folder() {
  static const std::string path = data_path("golden/qwen3_moe-nvfp4_modelopt");
  return path;
}

// The path of the Error that a score input raises, or "accepted".
std::string refusal(const std::string& text, int64_t max_context = 8, int max_batch = 3) {
  try {
    parse_score_input(parse_json(text, "test"), 100, max_context, max_batch);
    return "accepted";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    return error.parts().path;
  }
}

}  // namespace

TEST_CASE("score input is read with its bounds") {
  CHECK(refusal(R"({"input_ids": [0, 99]})") == "accepted");
  CHECK(refusal(R"({"input_ids": [0, 100]})") == "$.input_ids[1]");
  CHECK(refusal(R"({"input_ids": [-1]})") == "$.input_ids[0]");
  CHECK(refusal(R"({"input_ids": [1.5]})") == "$.input_ids[0]");
  CHECK(refusal(R"({"input_ids": [18446744073709551615]})") == "$.input_ids[0]");
  CHECK(refusal(R"({"input_ids": []})") == "$.input_ids");
  CHECK(refusal(R"({"input_ids": 5})") == "$.input_ids");
  CHECK(refusal(R"({})") == "$.input_ids");
  CHECK(refusal(R"([1])") == "$");
  CHECK(refusal(R"({"input_ids": [1], "gredy": 1})") == "$.gredy");
  CHECK(refusal(R"({"input_ids": [1,2,3,4,5,6,7,8]})") == "accepted");
  CHECK(refusal(R"({"input_ids": [1,2,3,4,5,6,7,8,9]})") == "$.input_ids");
  // Of N greedy ids N - 1 are fed: 7 + 2 chosen ids use 8 positions.
  CHECK(refusal(R"({"input_ids": [1,2,3,4,5,6,7], "greedy": 2})") == "accepted");
  CHECK(refusal(R"({"input_ids": [1,2,3,4,5,6,7], "greedy": 3})") == "$.greedy");
  CHECK(refusal(R"({"input_ids": [1], "greedy": -1})") == "$.greedy");
  CHECK(refusal(R"({"input_ids": [1], "batch_with": [[1], [2]]})") == "accepted");
  CHECK(refusal(R"({"input_ids": [1], "batch_with": [[1], [2], [3]]})") == "$.batch_with");
  CHECK(refusal(R"({"input_ids": [1], "batch_with": [[1], []]})") == "$.batch_with[1]");
  CHECK(refusal(R"({"input_ids": [1], "batch_with": [1]})") == "$.batch_with[0]");
  CHECK(refusal(R"({"input_ids": [1], "warm_with": [[1, 2], [3, 100]]})") == "$.warm_with[1][1]");
}

TEST_CASE("scores equal the golden case and greedy decoding ignores ends") {
  const LoadedModel model = model_at(golden_folder());
  const Json golden = read_json_file(golden_folder() + "/golden.json");
  EngineConfig config = config_for(model, Strategy::kHybrid, 12, 2);
  config.numerics = Numerics::kReference;
  Engine engine(model, config, kPlenty);
  ScoreInput input;
  input.input_ids = golden["prompt"].get<std::vector<int32_t>>();
  input.greedy = static_cast<int64_t>(golden["greedy"].size());
  const ScoreOutput output = score(engine, input);
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  CHECK(output.logits.size() == input.input_ids.size() * vocab);
  CHECK(output.greedy_ids == golden["greedy"].get<std::vector<int64_t>>());
  CHECK(relative_error(output.greedy_logits, read_f32(golden_folder() + "/golden.safetensors", "decode_logits")) <=
        1e-5);
  CHECK(engine.open_sequence() == 0);  // every sequence was closed
}

TEST_CASE("serve scores are the same bits alone, batched, warmed, and up to a full context") {
  const LoadedModel model = model_at(golden_folder());
  const Json golden = read_json_file(golden_folder() + "/golden.json");
  const auto ids = golden["prompt"].get<std::vector<int32_t>>();
  EngineConfig config = config_for(model, Strategy::kHybrid, 12, 2, 3);
  config.max_context = 60;
  ScoreInput input;
  input.input_ids.assign(ids.begin(), ids.begin() + 50);
  input.greedy = 11;  // the last of them is chosen at position 59
  Engine alone(model, config, kPlenty);
  const ScoreOutput expected = score(alone, input);
  CHECK(expected.greedy_ids.size() == 11);
  input.batch_with = {{ids.begin() + 60, ids.begin() + 115}, {ids.begin(), ids.begin() + 3}};  // the first one fills up
  input.warm_with = {{ids.begin() + 100, ids.begin() + 160}, {ids.begin() + 20, ids.begin() + 30}};
  Engine shared(model, config, kPlenty);
  const ScoreOutput batched = score(shared, input);
  CHECK(batched.logits == expected.logits);
  CHECK(batched.greedy_ids == expected.greedy_ids);
  CHECK(batched.greedy_logits == expected.greedy_logits);
}

TEST_CASE("written scores hold the tensors of the contract and nothing else") {
  const std::string path = std::filesystem::temp_directory_path() / "ft_score_test.safetensors";
  ScoreOutput output;
  output.logits = {1, 2, 3, 4, 5, 6};
  write_score(path, output, 3);
  CHECK(read_f32(path, "logits") == output.logits);
  CHECK_THROWS(read_i64(path, "greedy_ids"));
  output.greedy_ids = {2};
  output.greedy_logits = {4, 5, 6};
  write_score(path, output, 3);
  CHECK(read_i64(path, "greedy_ids") == output.greedy_ids);
  CHECK(read_f32(path, "greedy_logits") == output.greedy_logits);
  std::remove(path.c_str());
}
