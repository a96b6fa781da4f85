// The decode step of Qwen3-30B's geometry, cut to a few layers, with synthetic NVFP4 experts: a resident step against
// the bytes that it reads, what each operation of a layer adds (a step that does it twice, less the plain one), and
// layers with given misses against the link. Medians of graph replays; ceilings are measured in the same run.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/experts/routing_trace.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/cuda/device_weights.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/sampler.h"
#include "kernels/base/clock.h"
#include "kernels/base/json.h"
#include "tests/device/engine_lists.h"

namespace ft::device_test {
namespace {

constexpr int kLayers = 12;
constexpr int kThreads = 16;
constexpr int64_t kContext = 4096;
constexpr int64_t kShortContext = 128;
constexpr int kRepeats = 60;

const char* const kConfig = R"({"model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 2048,
  "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
  "norm_topk_prob": true, "vocab_size": 151936, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "tie_word_embeddings": false, "quantization_config": {"quant_method": "modelopt",
  "quant_algo": "NVFP4", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"]}})";

// What a repeated operation is done twice by, in front of a backend.
enum class Twice { kNothing, kProducts, kAttention, kOutProduct, kMoe, kLogits };

class Repeating final : public Backend {
 public:
  Repeating(Backend& to, Twice twice) : to_(to), twice_(twice) {}
  void embed(const EmbedSpec& spec) override { to_.embed(spec); }
  void linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) override {
    repeat(Twice::kProducts, [&] { to_.linear(from, norm, outputs); });
  }
  void linear_add(Slot from, const Linear& output) override {
    repeat(Twice::kOutProduct, [&] { to_.linear_add(from, output); });
  }
  void attention(const AttentionSpec& spec) override {
    repeat(Twice::kAttention, [&] { to_.attention(spec); });
  }
  void glu(const GluSpec& spec) override { to_.glu(spec); }
  void moe(const MoeSpec& spec) override {
    repeat(Twice::kMoe, [&] { to_.moe(spec); });
  }
  void logits(const LogitsSpec& spec) override {
    repeat(Twice::kLogits, [&] { to_.logits(spec); });
  }

 private:
  template <class F>
  void repeat(Twice which, F&& f) {
    f();
    if (which == twice_) f();
  }
  Backend& to_;
  Twice twice_;
};

class RepeatingFamily final : public Family {
 public:
  RepeatingFamily(std::shared_ptr<const Family> family, Twice twice) : family_(std::move(family)), twice_(twice) {}
  const ModelGeometry& geometry() const override { return family_->geometry(); }
  WeightList declare_weights() const override { return family_->declare_weights(); }
  int64_t width(Slot slot) const override { return family_->width(slot); }
  std::vector<RopeTable> make_ropes(int64_t positions) const override { return family_->make_ropes(positions); }
  void forward(Backend& backend, const ModelWeights& weights, const StepBatch& batch) const override {
    Repeating repeating(backend, twice_);
    family_->forward(repeating, weights, batch);
  }

 private:
  std::shared_ptr<const Family> family_;
  Twice twice_;
};

double median_us(int repeats, const std::function<void()>& f) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) f();
  for (int i = 0; i < repeats; ++i) {
    const double begin = now_seconds();
    f();
    seconds.push_back(now_seconds() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)] * 1e6;
}

double copy_gbps(Context& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  cuda::DeviceBuffer from(kBytes), to(kBytes);
  const double us = median_us(9, [&] {
    cuda::copy_on_device(to.data(), from.data(), kBytes, context.stream.handle());
    context.stream.synchronize();
  });
  return 2 * static_cast<double>(kBytes) / us / 1e3;
}

LoadedModel load() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "ft-engine-bench";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << kConfig;
  WorkerPool pool({.threads = kThreads, .cpus = {}});
  LoadedModel model;
  model.family = make_family(Json::parse(kConfig));
  WeightSource source;
  source.model_path = folder;
  source.synthetic = true;
  source.synthetic_seed = 1;
  model.weights = load_weights(*model.family, source, pool);
  model.on_device = upload_weights(*model.weights);
  return model;
}

struct Bench {
  Context& context;
  LoadedModel model;
  int64_t blob_bytes = 0, dense_bytes = 0;
  MemoryInputs memory{Device::kCuda, int64_t{64} << 30, int64_t{64} << 30};

  EngineConfig config(Strategy strategy, int64_t slots, int max_batch) const {
    EngineConfig c = test::config_for(model, strategy, slots, kThreads - 2, max_batch);
    c.device = Device::kCuda;
    c.max_context = kContext + 64;
    return c;
  }
};

// Bytes that a step reads: all dense matrices, the experts, the KV cache.
double step_bytes(const Bench& bench, int64_t context_length) {
  const ModelGeometry& g = bench.model.family->geometry();
  const double kv = static_cast<double>(g.kv_bytes_per_token() * context_length);
  const double experts = static_cast<double>(kLayers * g.expert.top_k * bench.blob_bytes);
  return static_cast<double>(bench.dense_bytes) + experts + kv;
}

double dense_us(Bench& bench, Twice twice, int tokens, int64_t context_length,
                Strategy strategy = Strategy::kResident) {
  LoadedModel model = bench.model;
  model.family = std::make_shared<RepeatingFamily>(bench.model.family, twice);
  const int64_t slots = strategy == Strategy::kResident ? 0 : bench.model.family->geometry().total_experts();
  Engine engine(model, bench.config(strategy, slots, tokens), bench.memory);
  for (int i = 0; i < tokens; ++i) engine.open_sequence();
  return median_us(kRepeats, [&] { engine.run_dense_step(tokens, context_length); });
}

void resident_steps(Bench& bench, double gbps) {
  const double head = static_cast<double>(bench.model.family->geometry().vocab) * 2048 * 2;
  for (const int64_t length : {kShortContext, kContext}) {
    const double us = dense_us(bench, Twice::kNothing, 1, length);
    const double ideal = step_bytes(bench, length) / gbps / 1e3;
    std::printf("step, all hits, context %5lld: %7.1f us; bytes at copy rate %6.1f us; ratio %.2f\n",
                static_cast<long long>(length), us, ideal, us / ideal);
    const double layers_48 = 48.0 / kLayers;
    const double head_us = dense_us(bench, Twice::kLogits, 1, length) - us;
    const double whole = (us - head_us) * layers_48 + head_us;
    const double whole_ideal = (ideal - head / gbps / 1e3) * layers_48 + head / gbps / 1e3;
    std::printf("  head and logits %6.1f us; 48 layers would take %7.1f us against %7.1f: ratio %.2f\n", head_us, whole,
                whole_ideal, whole / whole_ideal);
    const std::pair<const char*, Twice> parts[] = {
        {"qkv", Twice::kProducts}, {"attention", Twice::kAttention}, {"out", Twice::kOutProduct}, {"moe", Twice::kMoe}};
    std::printf("  us a layer:");
    for (const auto& [name, twice] : parts) {
      std::printf("  %s %.2f", name, (dense_us(bench, twice, 1, length) - us) / kLayers);
    }
    std::printf("  all %.2f\n", (us - head_us) / kLayers);
  }
  for (const int tokens : {2, 4, 8}) {
    std::printf("step, all hits, batch %d: %7.1f us\n", tokens,
                dense_us(bench, Twice::kNothing, tokens, kShortContext));
  }
}

// What the host does between steps: the whole of a greedy step less the step.
void host_part(Bench& bench) {
  Engine engine(bench.model, bench.config(Strategy::kResident, 0, 1), bench.memory);
  const int sequence = engine.open_sequence();
  Sampler sampler({.temperature = 0}, engine.geometry().vocab, 0);
  std::vector<int32_t> id = {1};
  std::span<const float> logits;
  const double whole = median_us(kRepeats, [&] {
    const TokenRun run{sequence, engine.sequence_length(sequence), id, false, true};
    logits = engine.step({&run, 1});
    const std::span<const LargestLogit> largest = engine.largest_logits();
    id[0] = sampler.sample(logits, largest.empty() ? nullptr : largest.data());
  });
  const double sample = median_us(kRepeats, [&] { id[0] = sampler.sample(logits); });
  std::printf("greedy step with sampling %.1f us, looking for the largest on the host %.1f us\n", whole, sample);
}

void layers_with_misses(Bench& bench, Strategy strategy) {
  EngineConfig config = bench.config(strategy, kLayers * 64, 1);
  Engine engine(bench.model, config, bench.memory);
  engine.open_sequence();
  double none = 0;
  for (const int misses : {0, 1, 2, 4, 8}) {
    for (const int cpu : {0, misses / 2}) {
      if (cpu == 0 && misses > 0 && strategy == Strategy::kCpu) continue;
      std::vector<LayerPlan> plans(kLayers);
      for (int layer = 0; layer < kLayers; ++layer) {
        LayerPlan& plan = plans[static_cast<size_t>(layer)];
        plan.layer = layer;
        for (int e = 0; e < 8; ++e) {
          const ExpertSlot entry{(e * 13 + layer) % 128, layer * 64 + e};
          if (e >= misses) plan.hits.push_back(entry);
          if (e < misses - cpu) plan.fetches.push_back(entry);
          if (e >= misses - cpu && e < misses) plan.cpu.push_back(entry.expert);
        }
      }
      const double us = median_us(kRepeats, [&] { engine.run_moe_layers(plans, 1); }) / kLayers;
      if (misses == 0) none = us;
      const double bytes = static_cast<double>((misses - cpu) * bench.blob_bytes);
      std::printf("  layer with %d fetched, %d cpu: %7.2f us", misses - cpu, cpu, us);
      std::printf("  (%.1f GB/s over the whole; %.1f without the layer's %.2f)\n", bytes / us / 1e3,
                  misses > cpu ? bytes / (us - none) / 1e3 : 0.0, none);
      if (misses == 0) break;
    }
  }
}

// Decode steps over a trace, by how many of the CPU's experts may be copied into slots.
void steps_with_promotions(Bench& bench, const char* preset, int percent) {
  const ModelGeometry& g = bench.model.family->geometry();
  const auto trace =
      std::make_shared<RoutingTrace>(synthetic_routing(preset, kLayers, g.expert.experts, g.expert.top_k, 300, 1));
  for (const int promotions : {0, 1, 2}) {
    EngineConfig config = bench.config(Strategy::kHybrid, g.total_experts() * percent / 100, 1);
    config.cache_policy = CachePolicy::kLrfu;
    config.weights.synthetic = true;
    config.promote_bytes_per_layer = promotions * bench.blob_bytes;
    Engine engine(bench.model, config, bench.memory);
    engine.set_routing(trace);
    const int sequence = engine.open_sequence();
    const std::vector<int32_t> id = {1};
    double seconds = 0;
    for (int64_t token = 0; token < trace->tokens; ++token) {
      if (token == 150) engine.reset_counters();
      const double begin = now_seconds();
      const TokenRun run{sequence, token, id, false, true};
      engine.step({&run, 1});
      if (token >= 150) seconds += now_seconds() - begin;
    }
    const EngineCounters c = engine.counters();
    const double steps = static_cast<double>(trace->tokens - 150), layers = steps * kLayers;
    std::printf("  hybrid %s %d %%, %d promoted: %7.1f us a step; a layer: %.2f fetched, %.2f cpu, %.2f promoted\n",
                preset, percent, promotions, seconds / steps * 1e6, static_cast<double>(c.expert_fetched) / layers,
                static_cast<double>(c.expert_cpu) / layers, static_cast<double>(c.expert_promoted) / layers);
  }
}

// Decode steps over a trace with predictions, by how many experts may be prefetched. All engines walk the same tokens,
// one after the other, after a walk that warms the cache.
void steps_with_look_ahead(Bench& bench, Strategy strategy, CachePolicy policy, const char* preset, int percent) {
  const ModelGeometry& g = bench.model.family->geometry();
  const auto trace =
      std::make_shared<RoutingTrace>(synthetic_routing(preset, kLayers, g.expert.experts, g.expert.top_k, 400, 1));
  for (const int prefetches : {0, 1, 2, 4, 8}) {
    EngineConfig config = bench.config(strategy, g.total_experts() * percent / 100, 1);
    config.weights.synthetic = true;
    config.cache_policy = policy;
    config.look_ahead = prefetches > 0 ? LookAhead::kRouter : LookAhead::kOff;
    config.max_prefetches_per_layer = prefetches;
    Engine engine(bench.model, config, bench.memory);
    engine.set_routing(trace);
    const int sequence = engine.open_sequence();
    const std::vector<int32_t> id = {1};
    std::vector<double> us;
    for (int64_t token = 0; token < trace->tokens; ++token) {
      if (token == 200) engine.reset_counters();
      const double begin = now_seconds();
      const TokenRun run{sequence, token, id, false, true};
      engine.step({&run, 1});
      if (token >= 200) us.push_back((now_seconds() - begin) * 1e6);
    }
    double sum = 0;
    for (const double value : us) sum += value;
    const EngineCounters c = engine.counters();
    const double layers = static_cast<double>(us.size()) * kLayers;
    std::printf(
        "  %s %s %s %d %%, %d ahead: %7.1f us a step; a layer: %.2f fetched, %.2f cpu, %.2f ahead, %.2f useful\n",
        std::string(strategy_name(strategy)).c_str(), std::string(cache_policy_name(policy)).c_str(), preset, percent,
        prefetches, sum / static_cast<double>(us.size()), static_cast<double>(c.expert_fetched) / layers,
        static_cast<double>(c.expert_cpu) / layers, static_cast<double>(c.expert_prefetched) / layers,
        static_cast<double>(c.prefetch_useful) / layers);
  }
}

}  // namespace

void bench_look_ahead(Context& context) {
  Bench bench{.context = context, .model = load()};
  bench.blob_bytes = bench.model.weights->bank.layout(0).bytes;
  std::printf("step, all hits, context %lld: %.1f us; blob %.2f MB, %d layers\n", static_cast<long long>(kShortContext),
              dense_us(bench, Twice::kNothing, 1, kShortContext), static_cast<double>(bench.blob_bytes) / 1e6, kLayers);
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLrfu}) {
    steps_with_look_ahead(bench, Strategy::kOffload, policy, "mixed+lookahead:0.8/0.7", 25);
  }
  steps_with_look_ahead(bench, Strategy::kOffload, CachePolicy::kLrfu, "mixed+lookahead:0.9/0.9", 25);
  steps_with_look_ahead(bench, Strategy::kOffload, CachePolicy::kLrfu, "diverse+lookahead:0.8/0.7", 50);
  steps_with_look_ahead(bench, Strategy::kOffload, CachePolicy::kLrfu, "agentic+lookahead:0.8/0.7", 25);
  steps_with_look_ahead(bench, Strategy::kHybrid, CachePolicy::kLrfu, "mixed+lookahead:0.8/0.7", 25);
}

void bench_engine(Context& context) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // who stops it sees what there was
  const double begin = now_seconds();
  Bench bench{.context = context, .model = load()};
  bench.blob_bytes = bench.model.weights->bank.layout(0).bytes;
  for (const PackedMatrix& matrix : bench.model.weights->matrices) bench.dense_bytes += matrix.layout.bytes;
  const double gbps = copy_gbps(context);
  std::printf("device copy %.0f GB/s; blob %.2f MB, dense %.0f MB; loaded in %.1f s\n", gbps,
              static_cast<double>(bench.blob_bytes) / 1e6, static_cast<double>(bench.dense_bytes) / 1e6,
              now_seconds() - begin);
  for (const Strategy strategy : {Strategy::kResident, Strategy::kOffload, Strategy::kHybrid}) {
    std::printf("step, all hits, the nodes of %s: %7.1f us\n", std::string(strategy_name(strategy)).c_str(),
                dense_us(bench, Twice::kNothing, 1, kShortContext, strategy));
  }
  layers_with_misses(bench, Strategy::kHybrid);
  for (const char* preset : {"diverse", "mixed", "agentic"}) steps_with_promotions(bench, preset, 25);
  resident_steps(bench, gbps);
  host_part(bench);
}

}  // namespace ft::device_test
