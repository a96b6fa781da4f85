// The input of --score: refused with an Error(kUsage), or every id in the vocabulary and every length within its limit.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/runtime/score.h"
#include "kernels/base/error.h"

namespace {

constexpr int64_t kVocab = 300;
constexpr int64_t kMaxContext = 16;
constexpr int kMaxBatch = 3;

void check_ids(const std::vector<int32_t>& ids) {
  FT_CHECK(!ids.empty() && ids.size() <= static_cast<size_t>(kMaxContext));
  for (const int32_t id : ids) FT_CHECK(id >= 0 && id < kVocab);
}

void check_taken(const ft::ScoreInput& input) {
  check_ids(input.input_ids);
  const auto prompt = static_cast<int64_t>(input.input_ids.size());
  FT_CHECK(input.greedy >= 0 && prompt + input.greedy - 1 <= kMaxContext);
  FT_CHECK(input.batch_with.size() < static_cast<size_t>(kMaxBatch));
  FT_CHECK(input.warm_with.size() <= ft::kMaxWarmSequences);
  for (const std::vector<int32_t>& ids : input.batch_with) check_ids(ids);
  for (const std::vector<int32_t>& ids : input.warm_with) check_ids(ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ft::Json json;
  try {
    json = ft::parse_json({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const ft::Error&) {
    return 0;
  }
  try {
    check_taken(ft::parse_score_input(json, kVocab, kMaxContext, kMaxBatch));
  } catch (const ft::Error& error) {
    FT_CHECK(error.kind() == ft::ErrorKind::kUsage);
  }
  return 0;
}
