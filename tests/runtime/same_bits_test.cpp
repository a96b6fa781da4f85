// Checked against: itself. The numerics contract says that the logits of serve mode are the same bits for every
// strategy, cache size, cache history, thread count, instruction set, batch composition and prefill chunking; one hash
// of all logits is compared.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/hash.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr Strategy kStrategies[] = {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid};

std::vector<int32_t> some_ids(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(
        static_cast<int32_t>((seed * 7919 + static_cast<uint64_t>(i * i) * 31 + seed * static_cast<uint64_t>(i)) %
                             static_cast<uint64_t>(vocab)));
  }
  return ids;
}

std::string hash_of(const Continuation& run) {
  std::vector<float> all = run.prompt_logits;
  all.insert(all.end(), run.decode_logits.begin(), run.decode_logits.end());
  return hash_hex(std::as_bytes(std::span(all)));
}

std::string run_hash(const LoadedModel& model, const EngineConfig& config, int64_t prompt = 40, int64_t decode = 12) {
  Engine engine(model, config, kPlenty);
  return hash_of(run_greedy(engine, some_ids(prompt, engine.geometry().vocab, 1), decode));
}

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (int isa = 0; isa <= static_cast<int>(active_isa()); ++isa) {
    names.emplace_back(isa_name(static_cast<Isa>(isa)));
  }
  return names;
}

// Smallest count that a batch of one allows, a middle one, all.
std::vector<int64_t> cache_sizes(const LoadedModel& model) {
  const ModelGeometry& geometry = model.family->geometry();
  return {geometry.expert.top_k, geometry.total_experts() / 2, geometry.total_experts()};
}

// Every combination, or, `thinned`, every strategy and instruction set with three pairs of cache size and threads.
void check_cross(const std::string& path, bool thinned) {
  const LoadedModel model = model_at(path);
  EngineConfig base = config_for(model, Strategy::kResident, 0);
  base.isa_cap = "scalar";
  const std::string expected = run_hash(model, base);
  int runs = 0;
  for (const std::string& isa : usable_isas()) {
    for (const Strategy strategy : kStrategies) {
      const std::vector<int64_t> sizes = cache_sizes(model);
      for (size_t size = 0; size < sizes.size(); ++size) {
        for (const int threads : {1, 2, 3}) {
          if (thinned && size + static_cast<size_t>(threads) != sizes.size()) continue;
          const int64_t slots = sizes[size];
          EngineConfig config = config_for(model, strategy, slots, threads);
          config.isa_cap = isa;
          CAPTURE(isa);
          CAPTURE(std::string(strategy_name(strategy)));
          CAPTURE(slots);
          CAPTURE(threads);
          CHECK(run_hash(model, config) == expected);
          ++runs;
        }
      }
    }
  }
  MESSAGE(path << ": one hash over " << runs << " runs: " << expected);
}

// Sequences alone, and then together: prompts of different lengths in one prefill step, then decode steps.
void check_batch(Engine& engine, size_t batch) {
  constexpr int64_t kDecode = 10;
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> alone;
  for (size_t i = 0; i < batch; ++i) {
    prompts.push_back(some_ids(5 + 7 * static_cast<int64_t>(i), engine.geometry().vocab, i + 1));
    const Continuation run = run_greedy(engine, prompts.back(), kDecode);
    alone.push_back(hash_hex(std::as_bytes(std::span(run.decode_logits))));
  }
  std::vector<TokenRun> runs;
  std::vector<std::vector<float>> logits(batch);
  std::vector<int32_t> next(batch);
  for (const std::vector<int32_t>& prompt : prompts) {
    const int sequence = engine.open_sequence();
    runs.push_back({sequence, 0, prompt, false, true, true});
  }
  for (int64_t step = 0; step < kDecode; ++step) {
    const std::span<const float> rows = engine.step(runs);
    for (size_t i = 0; i < batch; ++i) {
      const std::span<const float> row = rows.subspan(i * vocab, vocab);
      logits[i].insert(logits[i].end(), row.begin(), row.end());
      next[i] = arg_max(row);
      runs[i].position = engine.sequence_length(runs[i].sequence);
      runs[i].ids = {&next[i], 1};
      runs[i].prompt = false;
    }
  }
  for (size_t i = 0; i < batch; ++i) CHECK(hash_hex(std::as_bytes(std::span(logits[i]))) == alone[i]);
}

}  // namespace

TEST_CASE("one hash over strategies, cache sizes, thread counts and instruction sets: NVFP4") {
  check_cross(data_path("golden/qwen3_moe-nvfp4_ct"), false);
}

TEST_CASE("one hash over strategies, cache sizes, thread counts and instruction sets: bf16") {
  check_cross(data_path("golden/qwen3_moe.b"), true);
}

TEST_CASE("one hash over strategies, cache sizes, thread counts and instruction sets: fp8 blocks") {
  check_cross(data_path("golden/qwen3_moe-fp8_block"), true);
}

// Cases of other families than the first: in the tree, and one of each format from the shared folder.
constexpr const char* kTreeCases[] = {"deepseek_v4.published", "gemma4.older",       "gemma4.plain",
                                      "gpt_oss.small",         "qwen3_5_moe_text.b", "qwen4_exp.published"};
constexpr const char* kSharedCases[] = {"deepseek_v4",
                                        "deepseek_v4.b",
                                        "deepseek_v4-ds_fp4",
                                        "gemma4_text",
                                        "gpt_oss",
                                        "gpt_oss-mxfp4",
                                        "qwen3_5_moe_text",
                                        "qwen3_5_moe_text-nvfp4_ct",
                                        "qwen4_exp_text.b",
                                        "qwen4_exp_text",
                                        "qwen4_exp_text-nvfp4_modelopt"};

template <class F>
void for_other_families(F&& check) {
  std::vector<std::string> paths;
  for (const char* name : kTreeCases) paths.push_back(data_path("golden/") + name);
  const std::string shared = shared_path("golden");
  if (shared.empty()) MESSAGE("FT_SHARED has no golden cases: only those of the tree are run");
  for (const char* name : kSharedCases) {
    if (!shared.empty()) paths.push_back(shared + "/" + name);
  }
  for (const std::string& path : paths) {
    CAPTURE(path);
    check(path);
  }
}

TEST_CASE("one hash over strategies, cache sizes, thread counts and instruction sets: other families") {
  for_other_families([](const std::string& path) { check_cross(path, true); });
}

TEST_CASE(
    "other families: prefill chunks, and decode after prefill, give the bits of one pass, around every boundary") {
  for_other_families([](const std::string& path) {
    const LoadedModel model = model_at(path);
    EngineConfig config = config_for(model, Strategy::kHybrid, model.family->geometry().total_experts() / 2, 2);
    // Taps of convolutions (up to 10 apart), windows (7, 24, 32), where blocks are chosen (28, 36), splits and groups
    // of attention, rings of compressed attention (88), the smallest ones of windows and its longest entries (128,
    // 256).
    for (const int64_t length :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 24, 25, 27, 28, 31, 32, 33, 35, 36, 63, 64, 65, 88, 127, 128, 129, 256}) {
      CAPTURE(length);
      config.prefill_chunk = kMaxPrefillChunk;
      const std::string expected = run_hash(model, config, length, 3);
      for (const int chunk : {1, 3, 4, 5, 31, 64}) {
        config.prefill_chunk = chunk;
        CAPTURE(chunk);
        CHECK(run_hash(model, config, length, 3) == expected);
      }
      // The last token by a decode step.
      Engine engine(model, config, kPlenty);
      const std::vector<int32_t> ids = some_ids(length + 1, engine.geometry().vocab, 1);
      const Continuation whole = run_greedy(engine, ids, 1);
      const Continuation parts =
          run_along(engine, std::span(ids).first(static_cast<size_t>(length)), std::vector<int32_t>{ids.back(), 0});
      const auto vocab = static_cast<std::ptrdiff_t>(engine.geometry().vocab);
      CHECK(
          std::equal(whole.prompt_logits.end() - vocab, whole.prompt_logits.end(), parts.decode_logits.end() - vocab));
    }
  });
}

TEST_CASE("other families: look-ahead, a history of the cache and of the sequence, and the place in a batch") {
  for_other_families([](const std::string& path) {
    const LoadedModel model = model_at(path);
    const ModelGeometry& geometry = model.family->geometry();
    const int64_t half = std::max<int64_t>(geometry.total_experts() / 2, geometry.expert.experts + 1);
    const std::string expected = run_hash(model, config_for(model, Strategy::kResident, 0, 2));
    EngineConfig config = config_for(model, Strategy::kHybrid, half, 2, 3);
    config.look_ahead = LookAhead::kRouter;
    config.max_prefetches_per_layer = 2;
    Engine engine(model, config, kPlenty);
    run_greedy(engine, some_ids(30, engine.geometry().vocab, 3), 8);
    CHECK(hash_of(run_greedy(engine, some_ids(40, engine.geometry().vocab, 1), 12)) == expected);
    // The same sequence in another place, beside two others.
    check_batch(engine, 3);
  });
}

TEST_CASE("one hash over strategies, cache sizes, thread counts and instruction sets: MXFP4 with biases") {
  check_cross(data_path("golden/gpt_oss.small"), true);
}

TEST_CASE("the bundled model gives one hash along every axis") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  const std::string expected = run_hash(model, config_for(model, Strategy::kResident, 0, 2));
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
    for (const int64_t slots : cache_sizes(model)) {
      CAPTURE(std::string(strategy_name(strategy)));
      CAPTURE(slots);
      CHECK(run_hash(model, config_for(model, strategy, slots, 2)) == expected);
    }
  }
  for (const int threads : {1, 3}) {
    CHECK(run_hash(model, config_for(model, Strategy::kHybrid, 48, threads)) == expected);
  }
  for (const std::string& isa : usable_isas()) {
    EngineConfig config = config_for(model, Strategy::kHybrid, 48, 2);
    config.isa_cap = isa;
    CAPTURE(isa);
    CHECK(run_hash(model, config) == expected);
  }
}

TEST_CASE("look-ahead and the cache policy do not change a bit") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  const std::string expected = run_hash(model, config_for(model, Strategy::kResident, 0, 2));
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
    for (const int64_t slots : {5, 12, 64}) {
      for (const int prefetches : {0, 1, 3, kMaxPrefetchesPerLayer}) {
        for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLrfu}) {
          EngineConfig config = config_for(model, strategy, slots, 2);
          config.cache_policy = policy;
          config.look_ahead = prefetches == 0 ? LookAhead::kOff : LookAhead::kRouter;
          config.max_prefetches_per_layer = prefetches;
          CAPTURE(std::string(strategy_name(strategy)));
          CAPTURE(slots);
          CAPTURE(prefetches);
          CHECK(run_hash(model, config) == expected);
        }
      }
    }
  }
}

TEST_CASE("a cpu run without any slot has the same bits") {
  const LoadedModel model = model_at(data_path("golden/qwen3_moe-nvfp4_ct"));
  EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
  config.promote_bytes_per_layer = 0;
  CHECK(run_hash(model, config) == run_hash(model, config_for(model, Strategy::kResident, 0)));
}

TEST_CASE("prefill chunking does not change a bit, decode steps included") {
  const LoadedModel model = model_at(data_path("golden/qwen3_moe-nvfp4_ct"));
  EngineConfig config = config_for(model, Strategy::kHybrid, 16, 2);
  const std::string expected = run_hash(model, config, 150);
  for (const int chunk : {1, 2, 7, 63, 65, 128, kMaxPrefillChunk}) {
    config.prefill_chunk = chunk;
    CAPTURE(chunk);
    CHECK(run_hash(model, config, 150) == expected);
  }
}

TEST_CASE("what the cache held before does not change a bit") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
    CAPTURE(std::string(strategy_name(strategy)));
    const EngineConfig config = config_for(model, strategy, 24, 2);
    const std::string cold = run_hash(model, config);
    Engine engine(model, config, kPlenty);
    for (uint64_t seed = 2; seed < 5; ++seed) {
      run_greedy(engine, some_ids(20, engine.geometry().vocab, seed), 10);
      CHECK(hash_of(run_greedy(engine, some_ids(40, engine.geometry().vocab, 1), 12)) == cold);
    }
    CHECK(engine.counters().expert_hits > 0);
  }
}

TEST_CASE("a sequence has the same bits alone and in a batch, wherever it sits in it") {
  const LoadedModel model = model_at(data_path("tiny-moe"));
  constexpr int kBatch = 4;
  for (const Strategy strategy : kStrategies) {
    CAPTURE(std::string(strategy_name(strategy)));
    Engine engine(model, config_for(model, strategy, 32, 2, kBatch), kPlenty);
    check_batch(engine, kBatch);
  }
}
