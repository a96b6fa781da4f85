// Decode steps through the engine on a CUDA device. Checked against: the host device, whose logits of decode steps
// (prompts fed by steps too: prefill has its own arithmetic and test) must be the same bits over strategies, cache
// sizes, cache history and the no-wait mode; itself, for batches; Hugging Face transformers' float32 logits of the
// golden cases, within serve mode's limit; the held-out losses of the bundled model, within 0.5 %. Needs FT_TEST_DATA;
// more golden cases are run where FT_SHARED is.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"
#include "tests/device/engine_lists.h"

namespace ft::device_test {

using namespace ft::test;

namespace {

constexpr Strategy kStrategies[] = {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid};

std::string name_of(const EngineConfig& config) {
  return std::string(strategy_name(config.strategy)) + " slots " + std::to_string(config.slots) + " batch " +
         std::to_string(config.max_batch) + (config.no_wait ? " no-wait" : "");
}

std::vector<std::string> golden_cases() {
  std::vector<std::string> paths;
  std::set<std::string> names;
  for (const std::string& root : {data_path("golden"), shared_path("golden")}) {
    if (root.empty() || !std::filesystem::is_directory(root)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      const std::string name = entry.path().filename();
      if (!std::filesystem::exists(entry.path() / "golden.json") || !runs_on_device(entry.path())) continue;
      if (names.insert(name).second) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<int64_t> cache_sizes(const LoadedModel& model) {
  const ModelGeometry& geometry = model.family->geometry();
  return {geometry.expert.top_k, geometry.total_experts() / 2, geometry.total_experts()};
}

Continuation on_host(const LoadedModel& model, int64_t prompt, int64_t decode) {
  Engine engine(model, config_for(model, Strategy::kResident, 0, kEngineThreads), kPlenty);
  return run_by_steps(engine, some_ids(prompt, engine.geometry().vocab, 1), decode);
}

// A new engine with `config` answers as the host does.
void check_as_host(Context& context, const std::string& group, const std::string& what, const LoadedModel& model,
                   const EngineConfig& config, int64_t prompt, int64_t decode, const Continuation& expected) {
  const int64_t vocab = model.family->geometry().vocab;
  guarded(context, group, what, [&] {
    Engine engine(model, config, kDevicePlenty);
    return compare(run_by_steps(engine, some_ids(prompt, vocab, 1), decode), expected, vocab);
  });
}

}  // namespace

void test_strategies(Context& context) {
  std::vector<std::string> paths = golden_cases();
  paths.push_back(data_path("tiny-moe"));
  for (const std::string& path : paths) {
    LoadedModel model = model_at(path);
    const Continuation expected = on_host(model, 40, 12);
    const std::string group = "strategies " + std::filesystem::path(path).filename().string();
    for (const Strategy strategy : kStrategies) {
      for (const int64_t slots : cache_sizes(model)) {
        for (const bool no_wait : {false, true}) {
          if (no_wait && slots != model.family->geometry().total_experts() / 2) continue;
          EngineConfig config = on_device(model, strategy, slots);
          config.no_wait = no_wait;
          check_as_host(context, group, name_of(config), model, config, 40, 12, expected);
        }
      }
    }
    for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
      EngineConfig config = on_device(model, strategy, model.family->geometry().total_experts() / 2);
      config.fetch_mechanism = FetchMechanism::kCopyEngine;
      check_as_host(context, group, name_of(config) + " copy engine", model, config, 40, 12, expected);
      config.fetch_mechanism = FetchMechanism::kSm;
      config.link_slowdown = 2;
      check_as_host(context, group, name_of(config) + " slowed link", model, config, 40, 12, expected);
    }
    EngineConfig config = on_device(model, Strategy::kCpu, 0);
    config.promote_bytes_per_layer = 0;
    check_as_host(context, group, "cpu without slots", model, config, 40, 12, expected);
  }
}

// Few steps: what compute-sanitizer runs.
void test_nowait(Context& context) {
  LoadedModel model = model_at(data_path("tiny-moe"));
  const Continuation expected = on_host(model, 8, 4);
  for (const Strategy strategy : kStrategies) {
    EngineConfig config = on_device(model, strategy, 24);
    config.no_wait = true;
    check_as_host(context, "no-wait mode", name_of(config), model, config, 8, 4, expected);
  }
}

namespace {

void check_history(Context& context, const std::string& path) {
  LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  const Continuation expected = on_host(model, 40, 12);
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
    const int64_t slots = std::min<int64_t>(24, model.family->geometry().total_experts() / 2);
    const EngineConfig config = on_device(model, strategy, slots);
    guarded(context, "cold and warm cache", path + " " + name_of(config), [&]() -> std::string {
      Engine engine(model, config, kDevicePlenty);
      for (uint64_t seed = 2; seed < 5; ++seed) {
        run_greedy(engine, some_ids(20, vocab, seed), 10);
        std::string text = compare(run_by_steps(engine, some_ids(40, vocab, 1), 12), expected, vocab);
        if (!text.empty()) return text;
      }
      const SlotTable::Content content = engine.cache_content();
      engine.restore_cache(content);
      if (engine.cache_content().priority_of_key != content.priority_of_key) return "restored content differs";
      return engine.counters().expert_hits > 0 ? "" : "no hit at all";
    });
  }
}

// Prompts of different lengths in one prefill step, then decode steps together.
std::vector<std::vector<float>> decode_together(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                                                int64_t steps) {
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  std::vector<TokenRun> runs;
  std::vector<std::vector<float>> logits(prompts.size());
  std::vector<int32_t> next(prompts.size());
  for (const auto& prompt : prompts) runs.push_back({engine.open_sequence(), 0, prompt, false, true, true});
  for (int64_t step = 0; step < steps; ++step) {
    const std::span<const float> rows = engine.step(runs);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::span<const float> row = rows.subspan(i * vocab, vocab);
      logits[i].insert(logits[i].end(), row.begin(), row.end());
      next[i] = arg_max(row);
      const std::span<const LargestLogit> largest = engine.largest_logits();
      const bool given = step > 0 && engine.config().device == Device::kCuda;  // of decode steps, by the device
      if (given && (largest.size() != prompts.size() || largest[i].id != next[i] ||
                    largest[i].value != row[static_cast<size_t>(next[i])])) {
        throw Error(ErrorKind::kFailed,
                    {.what = "the device's largest logit is another one", .value = std::to_string(i)});
      }
      runs[i].position = engine.sequence_length(runs[i].sequence);
      runs[i].ids = {&next[i], 1};
      runs[i].prompt = false;
    }
  }
  for (const TokenRun& run : runs) engine.close_sequence(run.sequence);
  return logits;
}

void check_batch(Context& context, const std::string& path, int batch) {
  LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  constexpr int64_t kSteps = 10;
  for (const Strategy strategy : kStrategies) {
    const int64_t slots = std::min<int64_t>(8 * batch + 16, model.family->geometry().total_experts());
    const EngineConfig config = on_device(model, strategy, slots, batch);
    guarded(context, "alone and in a batch", path + " " + name_of(config), [&]() -> std::string {
      Engine engine(model, config, kDevicePlenty);
      std::vector<std::vector<int32_t>> prompts;
      std::vector<Continuation> alone;
      for (int i = 0; i < batch; ++i) {
        prompts.push_back(some_ids(3 + i, vocab, static_cast<uint64_t>(i) + 1));  // together one prefill step
        alone.push_back(run_greedy(engine, prompts.back(), kSteps));
      }
      const auto together = decode_together(engine, prompts, kSteps);
      for (size_t i = 0; i < prompts.size(); ++i) {
        std::string text = first_difference(together[i], alone[i].decode_logits, vocab);
        if (!text.empty()) return "sequence " + std::to_string(i) + ": " + text;
      }
      return "";
    });
  }
}

}  // namespace

void test_history(Context& context) {
  for (const std::string& path : one_of_each_family()) check_history(context, path);
}

void test_batch(Context& context) {
  for (const std::string& path : one_of_each_family()) {
    for (const int batch : {4, 8}) check_batch(context, path, batch);
  }
}

namespace {

void check_probes(Context& context, const std::string& path) {
  LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  const Continuation expected = on_host(model, 20, 8);
  const int64_t slots = std::min<int64_t>(40, model.family->geometry().total_experts());
  const EngineConfig config = on_device(model, Strategy::kHybrid, slots, 2);
  guarded(context, "parts for probes", path + " " + name_of(config), [&]() -> std::string {
    Engine engine(model, config, kDevicePlenty);
    const int layers = static_cast<int>(engine.geometry().moe_layers.size());
    for (const int tokens : {1, 2}) {
      std::vector<LayerPlan> plans(static_cast<size_t>(layers));
      for (int layer = 0; layer < layers; ++layer) {
        LayerPlan& plan = plans[static_cast<size_t>(layer)];
        plan.layer = layer;
        if (tokens * model.family->geometry().expert.top_k >= 4) plan.hits = {{1, 0}, {0, 1}};
        plan.fetches = {{2, 5}};
        plan.cpu = {3};
        plan.promotions = {{3, 8}};
      }
      for (int i = 0; i < 3; ++i) engine.run_moe_layers(plans, tokens);
      engine.run_moe_layers({plans.data() + 1, 1}, tokens);
      engine.run_dense_step(tokens, 100);
    }
    if (engine.counters().decode_steps != 0) return "probes were counted as steps";
    return compare(run_by_steps(engine, some_ids(20, vocab, 1), 8), expected, vocab);
  });
}

}  // namespace

void test_probes(Context& context) {
  for (const std::string& path : one_of_each_family()) check_probes(context, path);
}

void test_golden(Context& context) {
  for (const std::string& path : golden_cases()) {
    LoadedModel model = model_at(path);
    const Json golden = read_json_file(path + "/golden.json");
    const double limit = serve_limit(path);
    guarded(context, "golden within serve mode's limit", path, [&]() -> std::string {
      EngineConfig config = on_device(model, Strategy::kHybrid, model.family->geometry().total_experts() / 2);
      config.deepseek_arithmetic = DeepseekArithmetic::kTransformers;  // what the cases were made with
      Engine engine(model, config, kDevicePlenty);
      const auto vocab = static_cast<size_t>(engine.geometry().vocab);
      const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
      const auto greedy = golden["greedy"].get<std::vector<int32_t>>();
      const Continuation run = run_greedy(engine, prompt, static_cast<int64_t>(greedy.size()));
      std::vector<float> rows;
      for (const int64_t at : golden["prompt_logits_at"].get<std::vector<int64_t>>()) {
        const auto begin = run.prompt_logits.begin() + at * static_cast<int64_t>(vocab);
        rows.insert(rows.end(), begin, begin + static_cast<int64_t>(vocab));
      }
      const double error = relative_error(rows, read_f32(path + "/golden.safetensors", "prompt_logits"));
      size_t same = 0;
      while (same < greedy.size() && run.ids[same] == greedy[same]) ++same;
      const std::vector<float> expected = read_f32(path + "/golden.safetensors", "decode_logits");
      const size_t count = std::min(same + 1, greedy.size()) * vocab;
      const double decode = relative_error(std::span(run.decode_logits).first(count), std::span(expected).first(count));
      if (error <= limit && decode <= limit) return "";
      return "prompt " + std::to_string(error) + " decode " + std::to_string(decode) + " limit " +
             std::to_string(limit);
    });
  }
}

namespace {

// Mean -log softmax(row)[id] over the first 48 windows of 512 predictions: what eval.json records.
double heldout_loss(Engine& engine, std::span<const int32_t> ids) {
  constexpr size_t kWindows = 48, kPredictions = 512;
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  const auto chunk = static_cast<size_t>(engine.config().prefill_chunk);
  double loss = 0;
  for (size_t window = 0; window < kWindows; ++window) {
    const int sequence = engine.open_sequence();
    const auto text = ids.subspan(window * kPredictions, kPredictions + 1);
    for (size_t begin = 0; begin < kPredictions; begin += chunk) {
      const TokenRun run{sequence, static_cast<int64_t>(begin), text.subspan(begin, chunk), true, true};
      const std::span<const float> logits = engine.step({&run, 1});
      for (size_t i = 0; i < chunk; ++i) {
        const auto row = logits.subspan(i * vocab, vocab);
        const double largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
        double sum = 0;
        for (const float logit : row) sum += std::exp(static_cast<double>(logit) - largest);
        loss += largest + std::log(sum) - static_cast<double>(row[static_cast<size_t>(text[begin + i + 1])]);
      }
    }
    engine.close_sequence(sequence);
  }
  return loss / static_cast<double>(kWindows * kPredictions);
}

}  // namespace

void test_heldout(Context& context) {
  LoadedModel model = model_at(data_path("tiny-moe"));
  EngineConfig config = on_device(model, Strategy::kOffload, model.family->geometry().total_experts() / 2);
  config.prefill_chunk = 128;
  const auto tokenizer = Tokenizer::load(data_path("tiny-moe/tokenizer.json"));
  const Json losses = read_json_file(data_path("tiny-moe/eval.json"))["heldout_nats_per_token"]["nvfp4"];
  for (const std::string domain : {"kjv", "pydocs"}) {
    guarded(context, "held-out loss", domain, [&]() -> std::string {
      Engine engine(model, config, kDevicePlenty);
      const std::vector<int32_t> ids =
          tokenizer->encode(read_text_file(data_path("tiny-moe/heldout_" + domain + ".txt")), false);
      const double loss = heldout_loss(engine, ids), expected = losses[domain].get<double>();
      std::printf("held-out %s: %.5f nats per token, recorded %.5f (%+.3f %%)\n", domain.c_str(), loss, expected,
                  100 * (loss / expected - 1));
      return std::abs(loss / expected - 1) <= 0.005 ? ""
                                                    : std::to_string(loss) + " instead of " + std::to_string(expected);
    });
  }
}

// A forced trace with predictions: the logits of a run without look-ahead, and the counts of the host device.
void test_look_ahead(Context& context) {
  const LoadedModel model = model_at(data_path("golden/qwen3_moe-nvfp4_ct"));
  const ModelGeometry& geometry = model.family->geometry();
  const auto vocab = static_cast<size_t>(geometry.vocab);
  const auto trace = std::make_shared<RoutingTrace>(
      synthetic_routing("mixed+lookahead:0.8/0.7", static_cast<int>(geometry.moe_layers.size()),
                        geometry.expert.experts, geometry.expert.top_k, 64, 3));
  const auto run = [&](const EngineConfig& config, const MemoryInputs& memory, EngineCounters& counters) {
    Engine engine(model, config, memory);
    engine.set_routing(trace);
    std::vector<float> logits = decode_together(engine, {some_ids(9, geometry.vocab, 1)}, 40)[0];
    counters = engine.counters();
    return logits;
  };
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
    for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLrfu}) {
      for (const int slowdown : {1, 3}) {
        EngineConfig config = on_device(model, strategy, geometry.total_experts() / 2);
        config.weights.synthetic = true;
        config.cache_policy = policy;
        config.link_slowdown = slowdown;
        const std::string name =
            name_of(config) + " " + std::string(cache_policy_name(policy)) + " link " + std::to_string(slowdown);
        guarded(context, "look-ahead", name, [&]() -> std::string {
          EngineCounters off, on, host;
          const std::vector<float> expected = run(config, kDevicePlenty, off);
          config.look_ahead = LookAhead::kRouter;
          config.max_prefetches_per_layer = 2;
          const std::vector<float> got = run(config, kDevicePlenty, on);
          EngineConfig on_host = config;
          on_host.device = Device::kHost;
          on_host.link_slowdown = 1;
          run(on_host, kPlenty, host);
          if (got.size() != expected.size() || got.size() % vocab != 0) return "numbers of logits differ";
          if (std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0) return "logits differ";
          if (off.expert_prefetched != 0 || on.prefetch_useful == 0) return "no useful prefetch, or one when it is off";
          if (on.expert_hits != host.expert_hits || on.expert_fetched != host.expert_fetched ||
              on.expert_promoted != host.expert_promoted || on.expert_predicted != host.expert_predicted ||
              on.expert_prefetched != host.expert_prefetched || on.prefetch_useful != host.prefetch_useful) {
            return "counts are not the host device's";
          }
          return "";
        });
      }
    }
  }
}

}  // namespace ft::device_test
