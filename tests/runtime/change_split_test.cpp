// Checked against: an engine that never changes. A change of the split between steps must leave every bit of the
// following logits as it is, take effect at the next step, and refuse what the engine has no memory for.
#include <doctest/doctest.h>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr int64_t kSteps = 24;

SplitTable fetch_all(const SplitTable& like) {
  SplitTable split = like;
  for (size_t misses = 0; misses < split.size(); ++misses) split[misses] = static_cast<int>(misses);
  return split;
}

std::vector<int32_t> prompt_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 31 + 7) % 500));
  return ids;
}

// Two sequences decoded together, greedily; `before(step)` runs between steps. Hashes of each step's logits.
template <class F>
std::vector<std::string> decode(Engine& engine, F&& before) {
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  const int sequences[] = {engine.open_sequence(), engine.open_sequence()};
  std::vector<int32_t> ids;
  for (const int sequence : sequences) ids.push_back(arg_max(engine.prefill(sequence, prompt_ids(20 + sequence))));
  std::vector<std::string> hashes;
  for (int64_t step = 0; step < kSteps; ++step) {
    before(step);
    std::vector<TokenRun> runs;
    for (size_t i = 0; i < ids.size(); ++i) {
      runs.push_back({sequences[i], engine.sequence_length(sequences[i]), {&ids[i], 1}});
    }
    const std::span<const float> logits = engine.step(runs);
    hashes.push_back(hash_hex(std::as_bytes(logits)));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = arg_max(logits.subspan(i * vocab, vocab));
  }
  // Prefill goes on as before, too.
  const auto last = engine.prefill(sequences[0], prompt_ids(30));
  hashes.push_back(hash_hex(std::as_bytes(last)));
  for (const int sequence : sequences) engine.close_sequence(sequence);
  return hashes;
}

}  // namespace

TEST_CASE("the same bits across a change to offload, and only fetches from then on") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  for (const Strategy strategy : {Strategy::kCpu, Strategy::kHybrid}) {
    EngineConfig config = config_for(model, strategy, 48, 2, 2);
    config.slots = 48;
    Engine steady(model, config, kPlenty);
    const auto expected = decode(steady, [](int64_t) {});
    Engine changing(model, config, kPlenty);
    EngineCounters at_change;
    const auto got = decode(changing, [&](int64_t step) {
      if (step != kSteps / 2) return;
      at_change = changing.counters();
      changing.change_split(Strategy::kOffload, fetch_all(config.fetch_of_misses), 0);
    });
    CHECK(got == expected);
    const EngineCounters end = changing.counters();
    CHECK(at_change.expert_cpu > 0);
    CHECK(end.expert_cpu == at_change.expert_cpu);
    CHECK(end.expert_promoted == at_change.expert_promoted);
    CHECK(end.expert_fetched > at_change.expert_fetched);
    CHECK(changing.engaged().strategy == "offload");
    CHECK(changing.engaged().slots == 48);
    CHECK(changing.config().strategy == Strategy::kOffload);
  }
}

TEST_CASE("back and forth, with look-ahead") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  EngineConfig config = config_for(model, Strategy::kHybrid, 64, 2, 2);
  Engine steady(model, config, kPlenty);
  const auto expected = decode(steady, [](int64_t) {});
  config.look_ahead = LookAhead::kRouter;
  config.max_prefetches_per_layer = 4;
  Engine changing(model, config, kPlenty);
  const auto got = decode(changing, [&](int64_t step) {
    const bool offload = step % 4 >= 2;
    changing.change_split(offload ? Strategy::kOffload : Strategy::kHybrid,
                          offload ? fetch_all(config.fetch_of_misses) : config.fetch_of_misses,
                          offload ? 0 : config.promote_bytes_per_layer);
  });
  CHECK(got == expected);
}

TEST_CASE("what the engine has no room for is refused and changes nothing") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  const EngineConfig config = config_for(model, Strategy::kHybrid, 48, 1);
  const SplitTable all = fetch_all(config.fetch_of_misses);
  Engine engine(model, config, kPlenty);
  CHECK_THROWS_WITH_AS(engine.change_split(Strategy::kResident, {}, 0),
                       doctest::Contains("hybrid with 48 slots, to resident"), Error);
  SplitTable short_one = all;
  short_one.pop_back();
  CHECK_THROWS_WITH_AS(engine.change_split(Strategy::kOffload, short_one, 0), doctest::Contains("wrong size"), Error);
  CHECK_THROWS_WITH_AS(engine.change_split(Strategy::kOffload, config.fetch_of_misses, 0),
                       doctest::Contains("split out of range"), Error);
  CHECK(engine.engaged().strategy == "hybrid");
  CHECK(engine.config().fetch_of_misses == config.fetch_of_misses);

  EngineConfig none = config_for(model, Strategy::kCpu, 0, 1);
  Engine without_slots(model, none, kPlenty);
  CHECK_THROWS_WITH_AS(without_slots.change_split(Strategy::kOffload, all, 0), doctest::Contains("cpu with 0 slots"),
                       Error);
  Engine resident(model, config_for(model, Strategy::kResident, 0), kPlenty);
  CHECK_THROWS_AS(resident.change_split(Strategy::kOffload, all, 0), Error);
  EngineConfig reference = config;
  reference.numerics = Numerics::kReference;
  Engine no_cache(model, reference, kPlenty);
  CHECK_THROWS_WITH_AS(no_cache.change_split(Strategy::kOffload, all, 0), doctest::Contains("needs serve numerics"),
                       Error);
}

TEST_CASE("what the watch of the service reads is counted in decode steps alone") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  Engine engine(model, config_for(model, Strategy::kOffload, 48, 2, 2), kPlenty);
  const int sequence = engine.open_sequence();
  engine.prefill(sequence, prompt_ids(200));
  EngineCounters counters = engine.counters();
  CHECK(counters.attention_seconds == 0);
  CHECK(counters.cpu_wait_seconds == 0);
  CHECK(counters.decode_link_wait_seconds == 0);
  const double link_wait_of_prefill = counters.link_wait_seconds;
  engine.close_sequence(sequence);
  // A copy may be there before it is asked for, on a busy machine many in a row.
  for (int attempt = 0; attempt < 200 && counters.decode_link_wait_seconds == 0; ++attempt) {
    decode(engine, [](int64_t) {});
    counters = engine.counters();
  }
  CHECK(counters.attention_seconds > 0);
  CHECK(counters.cpu_wait_seconds > 0);
  CHECK(counters.decode_link_wait_seconds > 0);
  CHECK(counters.attention_seconds + counters.decode_link_wait_seconds < counters.decode_seconds);
  CHECK(counters.cpu_wait_seconds < counters.decode_seconds);
  CHECK(counters.decode_link_wait_seconds <= counters.link_wait_seconds - link_wait_of_prefill + 1e-9);
  engine.reset_counters();
  counters = engine.counters();
  CHECK(counters.attention_seconds + counters.cpu_wait_seconds + counters.decode_link_wait_seconds == 0);
}
