// Turns of a decode run. Checked against: an engine that is fed the same tokens from an empty sequence for every turn,
// with and without a recurrent state, whose bits say where a turn went on from.
#include "probes/decode_run.h"

#include <doctest/doctest.h>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr int64_t kContext = 52;
constexpr int64_t kFilled = kContext - kMaxSettleSteps - kTimedSteps;

std::vector<int32_t> text() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 211; ++i) ids.push_back((i * i * 7 + 3 * i + 5) % 96);
  return ids;
}

// The logits that a run's first turns end with, by an engine that starts anew for each.
class Anew {
 public:
  Anew(const LoadedModel& model, const EngineConfig& config) : engine_(model, config, kPlenty) {}

  // Prompt, then `count` tokens of the text from `at` on.
  std::string answer(int64_t filled, int64_t at, int count) {
    const std::vector<int32_t> ids = text();
    const int sequence = engine_.open_sequence();
    if (filled > 0) engine_.prefill(sequence, std::span(ids).first(static_cast<size_t>(filled)));
    for (int i = 0; i < count; ++i) {
      const int32_t id = ids[static_cast<size_t>(at + i)];
      const TokenRun run{.sequence = sequence, .position = filled + i, .ids = {&id, 1}};
      engine_.step({&run, 1});
    }
    engine_.close_sequence(sequence);
    return engine_.counters().logits_hash;
  }

 private:
  Engine engine_;
};

void check_turns(const std::string& path) {
  CAPTURE(path);
  const LoadedModel model = model_at(path);
  const EngineConfig config = config_for(model, Strategy::kHybrid, 12, 2);
  Anew anew(model, config);
  Engine engine(model, config, kPlenty), other(model, config, kPlenty);
  const std::vector<int32_t> ids = text();
  DecodeRun run(engine, ids), copied(other, ids);
  for (const int64_t filled : {kFilled, int64_t{11}, int64_t{0}, kFilled}) {  // on, back, to the start
    CAPTURE(filled);
    run.fill(filled);
    copied.copy_from(run);
    for (DecodeRun* one : {&run, &copied}) {
      one->start({}, 1, {});
      one->settle_with(kMaxSettleSteps);
      int64_t at = filled + kDiscardedTurns * kTimedSteps;
      for (int turn = 0; turn < 3; ++turn) {
        CAPTURE(turn);
        one->tokens_per_second();
        CHECK(one->answer() == anew.answer(filled, at, kMaxSettleSteps + kTimedSteps));
        at += kMaxSettleSteps + kTimedSteps;
      }
    }
  }
}

}  // namespace

TEST_CASE("every turn goes on from the filled context: as from an empty sequence") {
  check_turns(data_path("golden/qwen3_moe.b"));
}

TEST_CASE("with a recurrent state too") { check_turns(data_path("golden/qwen3_5_moe_text.b")); }
