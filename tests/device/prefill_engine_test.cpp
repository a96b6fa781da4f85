// device_test_prefill_engine [chunks] [batches] [cache] [choices] | --bench FOLDER ...
//
// Prompts through the engine on a CUDA device. Checked against itself, bit for bit: other chunk sizes, other prompts
// beside them, another content of the expert cache, choices known beforehand or not; and against the host device, whose
// arithmetic is another order of the same sums, within serve mode's limit of the golden cases. Needs FT_TEST_DATA.
// --bench: milliseconds of a 4096-token prompt with synthetic weights of the config.json in each folder, experts in
// host memory and, as far as they fit, on the device.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/experts/memory_plan.h"
#include "engine/experts/routing_trace.h"
#include "engine/model/checkpoint.h"
#include "engine/runtime/cuda/device_weights.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"
#include "kernels/host/topology.h"
#include "tests/device/harness.h"
#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::device_test;
using namespace ft::test;

namespace {

constexpr MemoryInputs kDevicePlenty{Device::kCuda, int64_t{16} << 30, int64_t{16} << 30};
constexpr int kThreads = 4;
constexpr int64_t kPrompt = 150, kDecoded = 6;

EngineConfig on_device(const LoadedModel& model, Strategy strategy, int64_t slots, int chunk, int max_batch = 1) {
  EngineConfig config = config_for(model, strategy, slots, kThreads, max_batch);
  config.device = Device::kCuda;
  config.prefill_chunk = chunk;
  return config;
}

std::vector<int32_t> some_ids(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    ids.push_back(static_cast<int32_t>((seed * 7919 + n * n * 31 + seed * n) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

std::string different(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return "sizes differ";
  size_t count = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return {};
  return std::to_string(count) + " of " + std::to_string(got.size()) + " logits differ, first " +
         std::to_string(first) + ": " + std::to_string(got[first]) + " instead of " + std::to_string(expected[first]);
}

std::string compare(const Continuation& got, const Continuation& expected) {
  std::string text = different(got.prompt_logits, expected.prompt_logits);
  if (!text.empty()) return "prompt: " + text;
  text = different(got.decode_logits, expected.decode_logits);
  return text.empty() ? text : "decode: " + text;
}

template <class F>
void guarded(Context& context, const std::string& group, const std::string& what, F&& f) {
  std::string text;
  try {
    text = f();
  } catch (const Error& error) {
    text = error.what();
  }
  context.report.check(group, text.empty() ? text : what + ": " + text);
}

std::vector<std::string> models() {
  std::vector<std::string> paths;
  for (const char* name : {"tiny-moe", "golden/qwen3_moe-nvfp4_ct", "golden/qwen3_moe-fp8_block", "golden/qwen3_moe"}) {
    for (const std::string& path : {data_path(name), shared_path(name)}) {
      if (path.empty() || !std::filesystem::exists(path)) continue;
      paths.push_back(path);
      break;
    }
  }
  return paths;
}

Continuation run(const LoadedModel& model, const EngineConfig& config, int64_t prompt = kPrompt) {
  Engine engine(model, config, kDevicePlenty);
  return run_greedy(engine, some_ids(prompt, engine.geometry().vocab, 1), kDecoded);
}

void test_chunks(Context& context) {
  for (const std::string& path : models()) {
    LoadedModel model = model_at(path);
    const int64_t half = model.family->geometry().total_experts() / 2;
    const Continuation expected = run(model, on_device(model, Strategy::kResident, 0, 256));
    for (const int chunk : {1, 2, 7, 63, 65, 128}) {
      guarded(context, "prompts in other chunks", path + " chunk " + std::to_string(chunk),
              [&] { return compare(run(model, on_device(model, Strategy::kHybrid, half, chunk)), expected); });
    }
    guarded(context, "the host's prompts, within serve mode's limit", path, [&]() -> std::string {
      Engine engine(model, config_for(model, Strategy::kResident, 0, kThreads), kPlenty);
      const Continuation host = run_greedy(engine, some_ids(kPrompt, engine.geometry().vocab, 1), 1);
      const double error = relative_error(expected.prompt_logits, host.prompt_logits);
      std::printf("device against host, %s: %.2e\n", path.c_str(), error);
      const double limit = 1.5 * read_json_file(path + "/golden.json")["rel_bf16_vs_fp32"].get<double>();
      return error <= limit ? "" : "error " + std::to_string(error) + ", limit " + std::to_string(limit);
    });
  }
}

void test_cache(Context& context) {
  for (const std::string& path : models()) {
    LoadedModel model = model_at(path);
    const int64_t all = model.family->geometry().total_experts();
    const Continuation expected = run(model, on_device(model, Strategy::kResident, 0, 64));
    for (const Strategy strategy : {Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid}) {
      for (const int64_t slots : {all / 4, all / 2, all}) {
        const std::string what = path + " " + std::string(strategy_name(strategy)) + " slots " + std::to_string(slots);
        guarded(context, "prompts after other prompts", what, [&]() -> std::string {
          Engine engine(model, on_device(model, strategy, slots, 64), kDevicePlenty);
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
            std::string text =
                compare(run_greedy(engine, some_ids(kPrompt, engine.geometry().vocab, 1), kDecoded), expected);
            if (!text.empty()) return text;
          }
          return "";
        });
      }
    }
  }
}

void test_batches(Context& context) {
  for (const std::string& path : models()) {
    LoadedModel model = model_at(path);
    const int64_t half = model.family->geometry().total_experts() / 2;
    guarded(context, "prompts beside others", path, [&]() -> std::string {
      Engine engine(model, on_device(model, Strategy::kOffload, half, 256, 4), kDevicePlenty);
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
      return different(engine.step(runs), expected);
    });
  }
}

// Choices that are known beforehand bring other experts over the link than unknown ones; long chunks bring all.
void test_choices(Context& context) {
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
                Engine engine(model, on_device(model, strategy, geometry.total_experts() / 2, chunk), kDevicePlenty);
                engine.set_routing(trace);
                Continuation got = run_greedy(engine, some_ids(kPrompt, geometry.vocab, 1), kDecoded);
                if (!expected) expected = std::move(got);
                return compare(got.ids.empty() ? *expected : got, *expected);
              });
    }
  }
}

double prefill_milliseconds(Engine& engine, std::span<const int32_t> ids) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const int sequence = engine.open_sequence();
    const double start = now_seconds();
    engine.prefill(sequence, ids);
    best = std::min(best, now_seconds() - start);
    engine.close_sequence(sequence);
  }
  return best * 1e3;
}

// Experts in host memory with the fewest slots, then all of them on the device.
void bench_folder(const std::string& path) {
  LoadedModel model;
  model.family = make_family(load_model_config(path));
  const ModelGeometry& geometry = model.family->geometry();
  WeightSource source;
  source.model_path = path;
  source.synthetic = true;
  const int cores = std::max(1, detect_cpu_budget(detect_topology()).usable_cores);
  const double start = now_seconds();
  {
    WorkerPool pool({.threads = cores, .cpus = {}});
    model.weights = load_weights(*model.family, source, pool);
  }
  model.on_device = upload_weights(*model.weights);
  const double bytes = static_cast<double>(model.weights->formats.expert_bytes_total);
  std::printf("%s: %.1f GB of experts, loaded in %.1f s; one pass at 55 GB/s %.0f ms\n", path.c_str(), bytes * 1e-9,
              now_seconds() - start, bytes / 55e9 * 1e3);
  std::fflush(stdout);
  const MemoryInputs memory{Device::kCuda, int64_t{120} << 30, int64_t{400} << 30};
  for (const Strategy strategy : {Strategy::kOffload, Strategy::kResident}) {
    EngineConfig config;
    config.weights = source;
    config.device = Device::kCuda;
    config.strategy = strategy;
    config.threads = 1;
    config.max_context = 8192;
    config.slots = strategy == Strategy::kResident ? geometry.total_experts() : geometry.expert.experts;
    for (int m = 0; m <= geometry.expert.top_k && strategy == Strategy::kOffload; ++m) {
      config.fetch_of_misses.push_back(m);
    }
    config.prefill_chunk = default_prefill_chunk(geometry, model.weights->formats, config, memory);
    Engine engine(model, config, memory);
    engine.set_routing(std::make_shared<const RoutingTrace>(
        synthetic_routing("q38-diverse", static_cast<int>(geometry.moe_layers.size()), geometry.expert.experts,
                          geometry.expert.top_k, 4096, 1)));
    std::printf("  %-9s chunk %d:", strategy_name(strategy).data(), config.prefill_chunk);
    for (const int64_t tokens : {4096, 2048, 1024, 512, 128, 16, 1}) {
      std::printf("  %ld: %.1f ms", tokens, prefill_milliseconds(engine, some_ids(tokens, geometry.vocab, 3)));
      std::fflush(stdout);
    }
    engine.set_routing(nullptr);
    std::printf("  4096 by the router: %.1f ms\n", prefill_milliseconds(engine, some_ids(4096, geometry.vocab, 3)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr TestList kTests[] = {
      {"chunks", test_chunks}, {"cache", test_cache}, {"batches", test_batches}, {"choices", test_choices}};
  if (argc > 2 && std::string_view(argv[1]) == "--bench") {
    for (int i = 2; i < argc; ++i) bench_folder(argv[i]);
    return 0;
  }
  return run_tests(argc, argv, kTests);
}
