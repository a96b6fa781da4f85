// A model with recurrent layers. Checked against: the engine that a sequence was copied from, and the bytes of its
// state counted by hand. (Its logits: golden_test.cpp; its bits: same_bits_test.cpp; chunks and going back:
// sequences_test.cpp.)
#include <doctest/doctest.h>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

LoadedModel recurrent() { return model_at(data_path("golden/qwen3_5_moe_text.b")); }

std::vector<int32_t> ids_of(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 7 + 3 * i + 5) % 96));
  return ids;
}

}  // namespace

TEST_CASE("a sequence is copied with its state, into another place of another engine") {
  const LoadedModel model = recurrent();
  Engine first(model, config_for(model, Strategy::kCpu, 0, 1, 2), kPlenty);
  Engine second(model, config_for(model, Strategy::kHybrid, 8, 2, 3), kPlenty);
  const int from = first.open_sequence();
  int to = second.open_sequence();
  second.prefill(to, ids_of(9));  // what stood in the other place does not matter
  second.close_sequence(to);
  second.open_sequence();
  to = second.open_sequence();
  first.prefill(from, ids_of(40));
  second.copy_sequence(to, first, from);
  for (const int32_t id : {3, 5, 8, 13}) CHECK(one_step(first, from, id) == one_step(second, to, id));
}

TEST_CASE("a reopened sequence starts from an empty state, after probes too") {
  const LoadedModel model = recurrent();
  Engine engine(model, config_for(model, Strategy::kHybrid, 8, 2, 2), kPlenty);
  const Continuation before = run_greedy(engine, ids_of(20), 6);
  for (const int64_t context : {1, 50, 200}) engine.run_dense_step(2, context);
  CHECK(run_greedy(engine, ids_of(20), 6).decode_logits == before.decode_logits);
}

TEST_CASE("the state is in the memory plan: two layers' taps and their heads, a copy a sequence") {
  const LoadedModel model = recurrent();
  const int64_t history = 512;        // 3 taps of 168 channels, whole lines: 2 key heads of 12, 6 value heads of 20
  const int64_t heads = 6 * 12 * 32;  // columns in whole blocks of 16
  CHECK(model.family->geometry().state_floats == 2 * (history + heads));
  const Engine engine(model, config_for(model, Strategy::kCpu, 0, 1, 3), kPlenty);
  CHECK(engine.memory_plan().pool_bytes("recurrent state") == 3 * 4 * 2 * (history + heads));
}
