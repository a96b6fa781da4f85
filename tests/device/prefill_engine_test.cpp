// Prompts through the engine on a CUDA device. Checked against itself, bit for bit: other chunk sizes, other prompts
// beside them, another content of the expert cache, choices known beforehand or not; and against the host device, whose
// arithmetic is another order of the same sums, within serve mode's limit of the golden cases. Needs FT_TEST_DATA.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "engine/experts/routing_trace.h"
#include "tests/device/engine_lists.h"

namespace ft::device_test {

using namespace ft::test;

namespace {

constexpr int64_t kPrompt = 150, kDecoded = 6;

std::vector<std::string> models() {
  std::vector<std::string> paths;
  for (const char* name : {"tiny-moe", "golden/qwen3_moe-nvfp4_ct", "golden/qwen3_moe-fp8_block", "golden/qwen3_moe"}) {
    for (const std::string& path : {data_path(name), shared_path(name)}) {
      if (path.empty() || !std::filesystem::exists(path)) continue;
      paths.push_back(path);
      break;
    }
  }
  for (const std::string& path : one_of_each_family()) {
    if (path != paths.front()) paths.push_back(path);
  }
  return paths;
}

EngineConfig in_chunks(const LoadedModel& model, Strategy strategy, int64_t slots, int chunk, int max_batch = 1) {
  EngineConfig config = on_device(model, strategy, slots, max_batch);
  config.prefill_chunk = chunk;
  return config;
}

Continuation run(const LoadedModel& model, const EngineConfig& config, int64_t prompt = kPrompt) {
  Engine engine(model, config, kDevicePlenty);
  return run_greedy(engine, some_ids(prompt, engine.geometry().vocab, 1), kDecoded);
}

}  // namespace

void test_prompt_chunks(Context& context) {
  for (const std::string& path : models()) {
    LoadedModel model = model_at(path);
    const int64_t half = model.family->geometry().total_experts() / 2, vocab = model.family->geometry().vocab;
    const Continuation expected = run(model, in_chunks(model, Strategy::kResident, 0, 256));
    for (const int chunk : {1, 2, 7, 63, 65, 128}) {
      guarded(context, "prompts in other chunks", path + " chunk " + std::to_string(chunk),
              [&] { return compare(run(model, in_chunks(model, Strategy::kHybrid, half, chunk)), expected, vocab); });
    }
    guarded(context, "the host's prompts, within serve mode's limit", path, [&]() -> std::string {
      Engine engine(model, config_for(model, Strategy::kResident, 0, kEngineThreads), kPlenty);
      const Continuation host = run_greedy(engine, some_ids(kPrompt, engine.geometry().vocab, 1), 1);
      const double error = relative_error(expected.prompt_logits, host.prompt_logits);
      std::printf("device against host, %s: %.2e\n", path.c_str(), error);
      const double limit = serve_limit(path);
      return error <= limit ? "" : "error " + std::to_string(error) + ", limit " + std::to_string(limit);
    });
  }
}

void test_prompt_cache(Context& context) {
  for (const std::string& path : models()) {
    LoadedModel model = model_at(path);
    const int64_t all = model.family->geometry().total_experts(), vocab = model.family->geometry().vocab;
    const Continuation expected = run(model, in_chunks(model, Strategy::kResident, 0, 64));
    for (const Strategy strategy : {Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
      for (const int64_t slots : {all / 4, all / 2, all}) {
        const std::string what = path + " " + std::string(strategy_name(strategy)) + " slots " + std::to_string(slots);
        guarded(context, "prompts after other prompts", what, [&]() -> std::string {
          Engine engine(model, in_chunks(model, strategy, slots, 64), kDevicePlenty);
          for (uint64_t seed = 2; seed < 4; ++seed) {
            run_greedy(engine, some_ids(20, engine.geometry().vocab, seed), 10);
            const SlotTable::Content before = engine.cache_content();
            const int sequence = engine.open_sequence();
            engine.prefill(sequence, some_ids(kPrompt, engine.geometry().vocab, 1));
            engine.close_sequence(sequence);
            const SlotTable::Content after = engine.cache_content();
            if (after.key_of_slot != before.key_of_slot) return "a prompt changed the slots";
            if (after.priority_of_key != before.priority_of_key || after.plans != before.plans) {
              return "a prompt was noted as a use of experts";
            }
            std::string text = compare(run_greedy(engine, some_ids(kPrompt, vocab, 1), kDecoded), expected, vocab);
            if (!text.empty()) return text;
          }
          return "";
        });
      }
    }
  }
}

void test_prompt_batches(Context& context) {
  for (const std::string& path : models()) {
    LoadedModel model = model_at(path);
    const int64_t half = model.family->geometry().total_experts() / 2;
    guarded(context, "prompts beside others", path, [&]() -> std::string {
      Engine engine(model, in_chunks(model, Strategy::kOffload, half, 256, 4), kDevicePlenty);
      const int64_t vocab = engine.geometry().vocab;
      std::vector<std::vector<int32_t>> prompts;
      std::vector<Continuation> alone;
      std::vector<TokenRun> runs;
      for (int i = 0; i < 4; ++i) {
        prompts.push_back(some_ids(1 + 37 * i, vocab, static_cast<uint64_t>(i) + 1));
        alone.push_back(run_greedy(engine, prompts.back(), 1));
      }
      for (const auto& prompt : prompts) runs.push_back({engine.open_sequence(), 0, prompt, true, true, true});
      std::vector<float> expected;
      for (const Continuation& one : alone) {
        expected.insert(expected.end(), one.prompt_logits.begin(), one.prompt_logits.end());
      }
      return first_difference(engine.step(runs), expected, vocab);
    });
  }
}

// Choices that are known beforehand bring other experts over the link than unknown ones; long chunks bring all.
void test_prompt_choices(Context& context) {
  LoadedModel model = model_at(models().at(0));
  const ModelGeometry& geometry = model.family->geometry();
  const auto trace =
      std::make_shared<const RoutingTrace>(synthetic_routing("q38-mixed", static_cast<int>(geometry.moe_layers.size()),
                                                             geometry.expert.experts, geometry.expert.top_k, 400, 1));
  std::optional<Continuation> expected;
  for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kHybrid}) {
    for (const int chunk : {256, 64, 3}) {
      guarded(context, "prompts with given choices", std::string(strategy_name(strategy)) + " " + std::to_string(chunk),
              [&]() -> std::string {
                Engine engine(model, in_chunks(model, strategy, geometry.total_experts() / 2, chunk), kDevicePlenty);
                engine.set_routing(trace);
                Continuation got = run_greedy(engine, some_ids(kPrompt, geometry.vocab, 1), kDecoded);
                if (!expected) expected = std::move(got);
                return compare(got.ids.empty() ? *expected : got, *expected, geometry.vocab);
              });
    }
  }
}

}  // namespace ft::device_test
