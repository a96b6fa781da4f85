// Checked against: counts that follow from the plan's definition, a second engine in the same state, the router choices
// that came with the bundled model (routing.json), and limits written out.
#include "engine/runtime/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

LoadedModel tiny() { return model_at(data_path("tiny-moe")); }
LoadedModel small() { return model_at(data_path("golden/qwen3_moe-nvfp4_ct")); }

const std::vector<int32_t> kPrompt = {826, 263, 3300, 595, 1472, 14, 327, 263};

std::string refusal(const LoadedModel& model, const EngineConfig& config, const MemoryInputs& memory = kPlenty) {
  try {
    const Engine engine(model, config, memory);
    return "accepted";
  } catch (const Error& error) {
    return error.parts().path;
  }
}

uint64_t layers_counted(const EngineCounters& counters) {
  return std::accumulate(counters.misses_histogram.begin(), counters.misses_histogram.end(), uint64_t{0});
}

// Of tiny(): token t takes experts step * t .. step * t + 3 in every layer.
std::shared_ptr<RoutingTrace> stepping_trace(int tokens, int step) {
  auto trace = std::make_shared<RoutingTrace>();
  trace->layers = 6;
  trace->experts = 32;
  trace->top_k = 4;
  trace->tokens = tokens;
  for (int i = 0; i < tokens * 6 * 4; ++i) trace->ids.push_back(static_cast<int16_t>(i / 24 * step + i % 4));
  return trace;
}

}  // namespace

TEST_CASE("settings are refused one past their bounds") {
  const LoadedModel model = small();
  const EngineConfig good = config_for(model, Strategy::kHybrid, 12, 1, 2);
  CHECK(refusal(model, good) == "accepted");
  const auto with = [&](const auto& change) {
    EngineConfig config = good;
    change(config);
    return refusal(model, config);
  };
  CHECK(with([](EngineConfig& c) { c.threads = 0; }) == "threads");
  CHECK(with([](EngineConfig& c) { c.prefill_chunk = kMaxPrefillChunk; }) == "accepted");
  CHECK(with([](EngineConfig& c) { c.prefill_chunk = kMaxPrefillChunk + 1; }) == "prefill_chunk");
  CHECK(with([](EngineConfig& c) { c.max_batch = kMaxBatch + 1; }) == "max_batch");
  CHECK(with([](EngineConfig& c) { c.max_context = 2048; }) == "accepted");
  CHECK(with([](EngineConfig& c) { c.max_context = 2049; }) == "max_context");
  CHECK(with([](EngineConfig& c) { c.slots = 25; }) == "slots");
  CHECK(with([](EngineConfig& c) { c.device = Device::kCuda, c.numerics = Numerics::kReference; }) == "numerics");
  CHECK(with([](EngineConfig& c) { c.link_slowdown = kMaxLinkSlowdown; }) == "accepted");
  CHECK(with([](EngineConfig& c) { c.link_slowdown = kMaxLinkSlowdown + 1; }) == "link_slowdown");
  CHECK(with([](EngineConfig& c) { c.fetch_mechanism = FetchMechanism::kCopyEngine; }) == "accepted");
  CHECK(with([](EngineConfig& c) {
          c.fetch_mechanism = FetchMechanism::kCopyEngine;
          c.link_slowdown = 2;
        }) == "link_slowdown");
  CHECK(with([](EngineConfig& c) { c.isa_cap = "avx9"; }) == "isa_cap");
  CHECK(with([](EngineConfig& c) { c.fetch_of_misses.pop_back(); }) == "fetch_of_misses");
  CHECK(with([](EngineConfig& c) { c.fetch_of_misses[2] = 3; }) == "fetch_of_misses[2]");
  CHECK(with([](EngineConfig& c) { c.fetch_of_misses[2] = -1; }) == "fetch_of_misses[2]");
  CHECK(with([](EngineConfig& c) { c.strategy = Strategy::kOffload; }) == "fetch_of_misses[1]");
  CHECK(with([](EngineConfig& c) { c.strategy = Strategy::kCpu; }) == "fetch_of_misses[2]");
  CHECK(with([](EngineConfig& c) { c.strategy = Strategy::kResident; }) == "fetch_of_misses");
}

TEST_CASE(
    "sequences: as many as the batch, reopened ones start empty with the same bits, a context is used to its end") {
  const LoadedModel model = small();
  EngineConfig config = config_for(model, Strategy::kOffload, 12, 2, 2);
  config.max_context = 20;
  Engine engine(model, config, kPlenty);
  std::vector<int32_t> prompt(12, 3);
  std::iota(prompt.begin(), prompt.end(), 40);
  const Continuation first = run_greedy(engine, prompt, 9);  // 12 + 8 fed = 20 positions
  const int a = engine.open_sequence(), b = engine.open_sequence();
  CHECK(a == 0);
  CHECK(b == 1);
  CHECK(engine.open_sequence() == -1);
  const std::vector<int32_t> full(20, 9);
  engine.prefill(b, full);  // leaves other keys and values behind
  CHECK(engine.sequence_length(b) == 20);
  engine.prefill(a, full);
  engine.close_sequence(a);
  CHECK(engine.sequence_length(a) == -1);
  const Continuation again = run_greedy(engine, prompt, 9);
  CHECK(again.decode_logits == first.decode_logits);
  engine.close_sequence(b);
  CHECK(run_greedy(engine, prompt, 9).prompt_logits == first.prompt_logits);
}

TEST_CASE("counters say what each strategy did") {
  const LoadedModel model = tiny();
  const auto layers = model.family->geometry().moe_layers.size();
  const auto blob = static_cast<uint64_t>(model.weights->bank.layout(0).bytes);
  for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
    CAPTURE(std::string(strategy_name(strategy)));
    Engine engine(model, config_for(model, strategy, 40, 2), kPlenty);
    run_greedy(engine, kPrompt, 21);
    const EngineCounters counters = engine.counters();
    CHECK(counters.prefill_tokens == kPrompt.size());
    CHECK(counters.decode_steps == 20);
    CHECK(counters.decode_tokens == 20);
    CHECK(layers_counted(counters) == 20 * layers);
    CHECK(counters.expert_hits + counters.expert_fetched + counters.expert_cpu == 20 * layers * 4);
    CHECK(counters.bytes_fetched == (counters.expert_fetched + counters.expert_promoted) * blob);
    if (strategy == Strategy::kResident) CHECK(counters.misses_histogram[0] == 20 * layers);
    if (strategy == Strategy::kOffload) CHECK(counters.expert_cpu == 0);
    if (strategy == Strategy::kCpu) CHECK(counters.expert_fetched == 0);
    if (strategy == Strategy::kCpu || strategy == Strategy::kHybrid) {
      CHECK(counters.expert_promoted > 0);
      CHECK(counters.expert_promoted <= 20 * layers * 2);  // two blobs a layer
      CHECK(counters.expert_cpu > 0);
    }
    if (strategy != Strategy::kResident) {
      CHECK(counters.expert_hits > 0);
      CHECK(counters.expert_hits < 20 * layers * 4);
    }
    CHECK(counters.logits_hash.size() == 32);
    const EngagedRecord engaged = engine.engaged();
    CHECK(engaged.strategy == strategy_name(strategy));
    CHECK(engaged.threads_worked == 2);
    CHECK(engaged.slots == engine.config().slots);
    CHECK(engaged.isa == isa_name(active_isa()));
    engine.reset_counters();
    CHECK(engine.counters().decode_steps == 0);
    CHECK(engine.counters().expert_hits == 0);
    CHECK(engine.engaged().threads_worked == 0);
  }
}

TEST_CASE("prefill leaves the decode cache as it was") {
  Engine engine(tiny(), config_for(tiny(), Strategy::kHybrid, 40, 2), kPlenty);
  run_greedy(engine, kPrompt, 10);
  const SlotTable::Content before = engine.cache_content();
  const int sequence = engine.open_sequence();
  engine.prefill(sequence, std::vector<int32_t>(100, 5));
  const SlotTable::Content after = engine.cache_content();
  CHECK(after.key_of_slot == before.key_of_slot);
  CHECK(after.priority_of_key == before.priority_of_key);
  CHECK(after.plans == before.plans);
}

TEST_CASE("a restored cache goes on as the one it was taken from") {
  const EngineConfig config = config_for(tiny(), Strategy::kHybrid, 40, 2);
  Engine original(tiny(), config, kPlenty);
  run_greedy(original, kPrompt, 10);
  Engine restored(tiny(), config, kPlenty);
  restored.restore_cache(original.cache_content());
  original.reset_counters();
  const std::vector<int32_t> other = {463, 1004, 789, 336, 775, 1126};
  const Continuation a = run_greedy(original, other, 12), b = run_greedy(restored, other, 12);
  CHECK(a.decode_logits == b.decode_logits);
  CHECK(original.counters().expert_hits == restored.counters().expert_hits);
  CHECK(original.counters().misses_histogram == restored.counters().misses_histogram);
  SlotTable::Content wrong = original.cache_content();
  wrong.key_of_slot.pop_back();
  CHECK_THROWS_AS(restored.restore_cache(wrong), Error);
}

// The replay is the engine's cache: same experts, same predictions, same counters.
TEST_CASE("look-ahead: counters equal a walk of the slot table over the forced trace") {
  const ModelGeometry& geometry = tiny().family->geometry();
  const int layers = static_cast<int>(geometry.moe_layers.size()), top_k = geometry.expert.top_k;
  auto trace = std::make_shared<RoutingTrace>(
      synthetic_routing("mixed+lookahead:0.8/0.7", layers, geometry.expert.experts, top_k, 64, 3));
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
    for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLrfu}) {
      EngineConfig config = config_for(tiny(), strategy, 24, 2);
      config.cache_policy = policy;
      config.look_ahead = LookAhead::kRouter;
      config.max_prefetches_per_layer = 3;
      if (strategy == Strategy::kHybrid && policy == CachePolicy::kLru) {  // a promotion in one layer of four
        config.promote_bytes_per_layer = tiny().weights->formats.expert_bytes_max / 4;
      }
      Engine engine(tiny(), config, kPlenty);
      engine.set_routing(trace);
      run_by_steps(engine, std::vector<int32_t>{7}, 40);
      const EngineCounters got = engine.counters();

      SlotTable table(layers, geometry.expert.experts, config.slots,
                      make_slot_policy(policy, layers, config.slots, top_k));
      LayerPlan plan;
      plan.reserve(top_k);
      std::vector<ExpertSlot> copies;
      EngineCounters want;
      const auto promotions =
          PromotionRate::of_bytes(config.promote_bytes_per_layer, engine.formats().expert_bytes_max);
      for (int64_t token = 0; token < static_cast<int64_t>(got.decode_steps); ++token) {
        for (int layer = 0; layer < layers; ++layer) {
          std::vector<int> distinct(trace->at(token, layer).begin(), trace->at(token, layer).end());
          std::sort(distinct.begin(), distinct.end());
          table.plan(layer, distinct, config.fetch_of_misses, promotions, plan);
          want.expert_hits += plan.hits.size() + plan.arriving.size();
          want.expert_fetched += plan.fetches.size();
          want.expert_promoted += plan.promotions.size();
          want.prefetch_useful += static_cast<uint64_t>(plan.first_uses);
          if (layer + 1 == layers) continue;
          std::vector<int> predicted;
          for (const int16_t id : trace->predicted_at(token, layer + 1)) {
            if (id >= 0) predicted.push_back(id);
          }
          if (predicted.empty()) continue;
          table.prefetch(layer + 1, predicted, 3, copies);
          want.expert_predicted += predicted.size();
          want.expert_prefetched += copies.size();
        }
      }
      CHECK(got.decode_steps >= 40);
      CHECK(got.expert_hits == want.expert_hits);
      CHECK(got.expert_fetched == want.expert_fetched);
      CHECK(got.expert_promoted == want.expert_promoted);
      CHECK(got.expert_predicted == want.expert_predicted);
      CHECK(got.expert_prefetched == want.expert_prefetched);
      CHECK(got.prefetch_useful == want.prefetch_useful);
      CHECK(got.prefetch_late <= got.prefetch_useful);
      CHECK(got.prefetch_useful > got.expert_prefetched / 2);
      CHECK(got.bytes_fetched == (got.expert_fetched + got.expert_promoted + got.expert_prefetched) *
                                     static_cast<uint64_t>(engine.formats().expert_bytes_max));
      const SlotTable::Content content = engine.cache_content();
      CHECK(content.key_of_slot == table.content().key_of_slot);
      CHECK(content.priority_of_key == table.content().priority_of_key);
      CHECK(engine.engaged().look_ahead == "router");
      CHECK(engine.engaged().cache_policy == cache_policy_name(policy));
    }
  }
}

TEST_CASE("the next router's predictions are recorded, and are better than chance") {
  const ModelGeometry& geometry = tiny().family->geometry();
  EngineConfig config = config_for(tiny(), Strategy::kOffload, 24, 2);
  config.look_ahead = LookAhead::kRouter;
  config.max_prefetches_per_layer = 2;
  Engine engine(tiny(), config, kPlenty);
  RoutingTrace trace;
  engine.record_routing(&trace);
  run_greedy(engine, kPrompt, 30);
  engine.record_routing(nullptr);
  trace.source = "test";
  check_routing_trace(trace, "recorded");
  CHECK(trace.predictions == geometry.expert.top_k);
  const PredictionStatistics statistics = prediction_statistics(trace);
  CHECK(statistics.picks == trace.tokens * (trace.layers - 1) * trace.top_k);
  CHECK(statistics.precision() > 2.0 * geometry.expert.top_k / geometry.expert.experts);
  CHECK(statistics.precision() == statistics.recall());  // as many predictions as picks
  MESSAGE("precision of the next layer's router: " << statistics.precision());
}

TEST_CASE("look-ahead is refused where nothing is fetched, and one past its bounds") {
  const auto refused = [](auto change, const char* part) {
    EngineConfig config = config_for(tiny(), Strategy::kOffload, 24, 1);
    config.look_ahead = LookAhead::kRouter;
    config.max_prefetches_per_layer = 1;
    CHECK_NOTHROW(Engine(tiny(), config, kPlenty));
    change(config);
    CHECK_THROWS_WITH_AS(Engine(tiny(), config, kPlenty), doctest::Contains(part), Error);
  };
  refused([](EngineConfig& c) { c.max_prefetches_per_layer = 0; }, "max_prefetches_per_layer");
  refused([](EngineConfig& c) { c.max_prefetches_per_layer = kMaxPrefetchesPerLayer + 1; }, "1 to 64");
  refused([](EngineConfig& c) { c.look_ahead = LookAhead::kOff; }, "0 to 0");
  refused([](EngineConfig& c) { c.slots = 4; }, "5 or more");
  refused(
      [](EngineConfig& c) {
        c = config_for(tiny(), Strategy::kCpu, 24, 1);
        c.look_ahead = LookAhead::kRouter;
        c.max_prefetches_per_layer = 1;
      },
      "strategy cpu");
  refused([](EngineConfig& c) { c.numerics = Numerics::kReference; }, "numerics reference");
}

TEST_CASE("the routers choose what routing.json recorded on held-out text") {
  const LoadedModel model = tiny();
  const Json recorded = read_json_file(data_path("tiny-moe/routing.json"))["kjv"];  // [layer][token][pick]
  const auto tokenizer = Tokenizer::load(data_path("tiny-moe/tokenizer.json"));
  std::vector<int32_t> ids = tokenizer->encode(read_text_file(data_path("tiny-moe/heldout_kjv.txt")), false);
  ids.resize(256);
  EngineConfig config = config_for(model, Strategy::kHybrid, 96, 2);
  Engine engine(model, config, kPlenty);
  RoutingTrace trace;
  engine.record_routing(&trace);
  run_by_steps(engine, ids, 0);
  REQUIRE(trace.tokens == 256);
  int64_t same = 0, picks = 0;
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      const auto mine = trace.at(token, layer);
      for (const Json& expert : recorded[static_cast<size_t>(layer)][static_cast<size_t>(token)]) {
        same += std::count(mine.begin(), mine.end(), expert.get<int16_t>());
        ++picks;
      }
    }
  }
  const double share = static_cast<double>(same) / static_cast<double>(picks);
  MESSAGE("picks as recorded: " << share);
  CHECK(share >= 0.95);  // the rest are near ties under bf16 activations; chance would be 0.125
}

TEST_CASE("recording and forcing of expert choices") {
  const LoadedModel model = tiny();
  EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
  config.promote_bytes_per_layer = 0;
  Engine engine(model, config, kPlenty);
  RoutingTrace trace;
  engine.record_routing(&trace);
  run_by_steps(engine, kPrompt, 5);
  engine.record_routing(nullptr);
  run_by_steps(engine, kPrompt, 5);  // not recorded
  CHECK(trace.layers == 6);
  CHECK(trace.experts == 32);
  CHECK(trace.top_k == 4);
  CHECK(trace.tokens == 12);  // decode steps: 8 of the prompt, 4 of the answer
  REQUIRE(trace.ids.size() == 12u * 6 * 4);
  // The same choices forced back give the same logits: ids and their order are the router's own.
  Engine forced(model, config, kPlenty);
  forced.set_routing(std::make_shared<RoutingTrace>(trace));
  CHECK(forced.routing_is_synthetic());
  CHECK(run_by_steps(forced, kPrompt, 5).decode_logits == run_by_steps(engine, kPrompt, 5).decode_logits);
  RoutingTrace misfit = trace;
  misfit.experts = 33;
  CHECK_THROWS_AS(forced.set_routing(std::make_shared<RoutingTrace>(misfit)), Error);
}

TEST_CASE("synthetic routing decides which experts run") {
  const LoadedModel model = tiny();
  Engine engine(model, config_for(model, Strategy::kOffload, 48, 2), kPlenty);
  engine.set_routing(stepping_trace(2, 10));  // alternates between two disjoint sets
  run_greedy(engine, kPrompt, 11);
  const EngineCounters counters = engine.counters();
  CHECK(counters.expert_fetched == 2 * 6 * 4);  // each set once: 48 slots hold both
  CHECK(counters.expert_hits == 8 * 6 * 4);
}

TEST_CASE("a sequence placed in a forced routing walks on from there, and so after going back") {
  const LoadedModel model = tiny();
  Engine engine(model, config_for(model, Strategy::kOffload, 48, 2, 2), kPlenty);
  engine.set_routing(stepping_trace(7, 4));
  const int first = engine.open_sequence(), second = engine.open_sequence();
  engine.prefill(first, kPrompt);
  RoutingTrace walked;
  engine.record_routing(&walked);
  const auto step = [&](int sequence) {
    const int32_t id = 3;
    const TokenRun run{.sequence = sequence, .position = engine.sequence_length(sequence), .ids = {&id, 1}};
    engine.step({&run, 1});
    return walked.at(walked.tokens - 1, 5)[0] / 4;
  };
  for (const int sequence : {first, second}) {
    CAPTURE(sequence);
    for (const int64_t from : {5, 0, 6}) {  // before and behind where it would be
      engine.place_in_routing(sequence, from);
      for (int64_t t = from; t < from + 9; ++t) CHECK(step(sequence) == t % 7);
      engine.rewind_sequence(sequence, engine.sequence_length(sequence) - 4);
      CHECK(step(sequence) == (from + 9) % 7);
    }
  }
}

TEST_CASE("the parts for probes run, and leave no wrong weights behind") {
  const LoadedModel model = tiny();
  const EngineConfig config = config_for(model, Strategy::kHybrid, 40, 2, 2);
  Engine engine(model, config, kPlenty);
  const Continuation before = run_greedy(engine, kPrompt, 10);
  LayerPlan plan;
  plan.reserve(8);
  plan.layer = 3;
  plan.hits = {{1, 0}, {4, 1}};
  plan.fetches = {{2, 5}, {9, 6}};
  engine.run_moe_layers({&plan, 1}, 1);  // top_k experts for one token
  plan.fetches.push_back({30, 7});
  plan.cpu = {11, 12, 13};
  plan.promotions = {{11, 8}};
  engine.run_moe_layers({&plan, 1}, 2);  // 2 * top_k experts for two
  plan.clear();
  plan.layer = 0;
  engine.run_moe_layers({&plan, 1}, 1);  // no expert at all: the layer's fixed cost
  for (const int64_t context : {int64_t{1}, int64_t{100}, config.max_context}) engine.run_dense_step(2, context);
  CHECK(engine.counters().decode_steps == 9);  // probes are not counted
  CHECK(run_greedy(engine, kPrompt, 10).decode_logits == before.decode_logits);
  EngineConfig exact = config;
  exact.numerics = Numerics::kReference;
  Engine reference(model, exact, kPlenty);
  CHECK_THROWS_AS(reference.run_dense_step(1, 1), Error);
}

// Checked against: the engine that the sequence was copied from, which goes on itself. A rewound sequence has moved on
// in a forced trace, and so must its copy.
TEST_CASE("a copied sequence goes on like the one it came from, in a forced trace too") {
  const ft::LoadedModel model = ft::test::model_at(ft::test::data_path("golden/qwen3_moe-nvfp4_modelopt"));
  const ft::ModelGeometry& geometry = model.weights->geometry;
  const auto trace = std::make_shared<ft::RoutingTrace>(ft::generate_trace(
      "uniform", static_cast<int>(geometry.moe_layers.size()), geometry.expert.experts, geometry.expert.top_k, 64, 5));
  const ft::EngineConfig config = ft::test::config_for(model, ft::Strategy::kCpu, 0);
  ft::Engine first(model, config, ft::test::kPlenty), second(model, config, ft::test::kPlenty);
  first.set_routing(trace);
  second.set_routing(trace);
  const int from = first.open_sequence(), to = second.open_sequence();
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9};
  first.prefill(from, prompt);
  const auto step = [](ft::Engine& engine, int sequence, int32_t id) {
    const ft::TokenRun run{.sequence = sequence, .position = engine.sequence_length(sequence), .ids = {&id, 1}};
    const std::span<const float> logits = engine.step({&run, 1});
    return std::vector<float>(logits.begin(), logits.end());
  };
  for (const int32_t id : {2, 6, 5}) step(first, from, id);
  first.rewind_sequence(from, static_cast<int64_t>(prompt.size()));
  second.copy_sequence(to, first, from);
  for (const int32_t id : {3, 5, 8}) CHECK(step(first, from, id) == step(second, to, id));
}
