// Checked against: eval.json of the bundled model, held-out losses of its exact NVFP4 weights in float32. Serve mode
// must be within 0.5 %. Mean over the first 48 consecutive windows of 512 predictions (513 ids each, starting every 512
// ids), nothing before a window. Slow suite: 2 x 24,576 predictions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/text/tokenizer.h"
#include "kernels/base/clock.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr size_t kWindows = 48;
constexpr size_t kPredictions = 512;

// -log softmax(row)[id]
double loss_of(std::span<const float> row, int32_t id) {
  const double largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(row[static_cast<size_t>(id)]);
}

double window_loss(Engine& engine, std::span<const int32_t> ids) {
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  const auto chunk = static_cast<size_t>(engine.config().prefill_chunk);
  const int sequence = engine.open_sequence();
  double loss = 0;
  for (size_t begin = 0; begin < kPredictions; begin += chunk) {
    TokenRun run;
    run.sequence = sequence;
    run.position = static_cast<int64_t>(begin);
    run.ids = ids.subspan(begin, std::min(chunk, kPredictions - begin));
    run.logits_for_all = true;
    const std::span<const float> logits = engine.step({&run, 1});
    for (size_t i = 0; i < run.ids.size(); ++i) loss += loss_of(logits.subspan(i * vocab, vocab), ids[begin + i + 1]);
  }
  engine.close_sequence(sequence);
  return loss;
}

}  // namespace

TEST_CASE("held-out losses of the bundled model in serve mode") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  EngineConfig config = config_for(model, Strategy::kResident, 0, 2);
  config.prefill_chunk = 128;
  Engine engine(model, config, kPlenty);
  const auto tokenizer = Tokenizer::load(data_path("tiny-moe/tokenizer.json"));
  const Json losses = read_json_file(data_path("tiny-moe/eval.json"))["heldout_nats_per_token"]["nvfp4"];
  for (const std::string domain : {"kjv", "pydocs"}) {
    CAPTURE(domain);
    const double start = now_seconds();
    const std::string text = read_text_file(data_path("tiny-moe/heldout_" + domain + ".txt"));
    const std::vector<int32_t> ids = tokenizer->encode(text, false);
    REQUIRE(ids.size() > kWindows * kPredictions);
    double loss = 0;
    for (size_t window = 0; window < kWindows; ++window) {
      loss += window_loss(engine, std::span(ids).subspan(window * kPredictions, kPredictions + 1));
    }
    loss /= static_cast<double>(kWindows * kPredictions);
    const auto expected = losses[domain].get<double>();
    MESSAGE(domain << ": " << loss << " nats per token, recorded " << expected << " (" << 100 * (loss / expected - 1)
                   << " %), " << now_seconds() - start << " s");
    CHECK(std::abs(loss / expected - 1) <= 0.005);
  }
}
