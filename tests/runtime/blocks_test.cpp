// Attention to chosen blocks and embeddings of n-grams. Checked against: brute force over all entries, the engine that
// a sequence was copied from, and bytes counted by hand. (Logits: golden_test.cpp; bits: same_bits_test.cpp; chunks and
// going back: sequences_test.cpp.)
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/runtime/entry_choice.h"
#include "kernels/base/random.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

LoadedModel with_blocks() { return model_at(data_path("golden/qwen4_exp.published")); }

constexpr int32_t kEnd = 5;  // of a segment, in this model

std::vector<int32_t> ids_of(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(i % 11 == 4 ? kEnd : static_cast<int32_t>((i * i * 7 + 3 * i + 11) % 160));
  }
  return ids;
}

}  // namespace

TEST_CASE("the best entries: as sorting all of them gives, ties to the lower entry, NaN last, for any thread count") {
  Random random(3);
  for (const int64_t entries : {1, 2, 5, 63, 64, 65, 300}) {
    std::vector<float> scores(static_cast<size_t>(entries));
    for (float& score : scores) score = std::max(0.0f, std::round(static_cast<float>(4 * random.normal())) / 4);
    if (entries > 4) scores[1] = NAN, scores[2] = -0.0f, scores[4] = -3.0f, scores[3] = INFINITY;
    for (const int64_t kept : {int64_t{1}, entries / 2, entries - 1}) {
      if (kept < 1) continue;
      std::vector<int64_t> order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
        return std::isnan(y) ? !std::isnan(x) : x > y;
      });
      std::sort(order.begin(), order.begin() + kept);
      for (const int workers : {1, 3}) {
        EntryChoice choice(2, entries, nullptr);
        const auto competing = [&](int64_t place) { return place == 1 ? entries : 0; };
        for (int worker = 0; worker < workers; ++worker) {
          choice.score(2, entries, worker, workers, competing,
                       [&](int64_t place, int64_t begin, int64_t end, float* to) {
                         CHECK(place == 1);
                         std::copy(scores.begin() + begin, scores.begin() + end, to);
                       });
        }
        for (int worker = 0; worker < workers; ++worker) choice.choose(2, kept, worker, workers, competing);
        for (int64_t i = 0; i < kept; ++i) CHECK(choice.chosen(1, i) == order[static_cast<size_t>(i)]);
      }
    }
  }
}

TEST_CASE("a sequence is copied with its index, n-grams and state, into another place of another engine") {
  const LoadedModel model = with_blocks();
  Engine first(model, config_for(model, Strategy::kCpu, 0, 1, 2), kPlenty);
  Engine second(model, config_for(model, Strategy::kHybrid, 8, 2, 3), kPlenty);
  for (const int64_t length : {1, 30, 41, 42, 43, 44}) {
    CAPTURE(length);
    const int from = first.open_sequence();
    int to = second.open_sequence();
    second.prefill(to, ids_of(9));  // what stood in the other place does not matter
    second.close_sequence(to);
    const int other = second.open_sequence();
    to = second.open_sequence();
    first.prefill(from, ids_of(length));
    second.copy_sequence(to, first, from);
    for (const int32_t id : {3, 8, kEnd, 13, 21, 34}) CHECK(one_step(first, from, id) == one_step(second, to, id));
    first.close_sequence(from);
    second.close_sequence(to);
    second.close_sequence(other);
  }
}

TEST_CASE("a reopened sequence starts from an empty state, after probes too") {
  const LoadedModel model = with_blocks();
  Engine engine(model, config_for(model, Strategy::kHybrid, 8, 2, 2), kPlenty);
  const Continuation before = run_greedy(engine, ids_of(40), 6);
  for (const int64_t context : {1, 27, 28, 50, 200}) engine.run_dense_step(2, context);
  CHECK(run_greedy(engine, ids_of(40), 6).decode_logits == before.decode_logits);
}

TEST_CASE("the memory plan: state, index and keys of a sequence; tables on disk are listed and in no sum") {
  const LoadedModel model = with_blocks();
  const EngineConfig config = config_for(model, Strategy::kCpu, 0, 1, 3);
  const Engine engine(model, config, kPlenty);
  const MemoryPlan& plan = engine.memory_plan();
  const int64_t net = 4 * (2 * 12 + 2 * 20) + 2 * 12 * 32;  // four taps; columns in blocks of 16
  const int64_t ngrams = 2 * 3 * 96 + 16;                   // two taps before, 3 apart; last tokens
  CHECK(plan.pool_bytes("recurrent state") == 3 * 4 * (3 * net + 2 * ngrams));
  const int64_t context = config.max_context;
  CHECK(plan.pool_bytes("kv cache") ==
        3 * (2 * (2 * 2 * 32 * context + 16 * (context / 4)) + 4 * 16 * (4 + kRewindPositions)));
  const ModelFormats& formats = model.weights->formats;
  CHECK(plan.pool_bytes("embedding rows") == formats.row_table_bytes);
  CHECK(formats.row_table_bytes == 8 * (model.weights->row_tables[0].rows() + model.weights->row_tables[1].rows()));
  CHECK(formats.row_bytes_per_token == 2 * 4 * 8);
  int64_t device = 0, host = 0;
  for (const MemoryPool& pool : plan.pools) {
    CHECK(pool.on_disk == (pool.name == "embedding rows"));
    if (!pool.on_disk) (pool.on_device ? device : host) += pool.bytes;
  }
  CHECK(plan.device_bytes == device);
  CHECK(plan.host_bytes == host);
}
