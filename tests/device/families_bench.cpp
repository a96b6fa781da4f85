// What a layer of each kind costs in the geometry of the families' models: decode steps with every expert in a slot,
// and prompts. Synthetic weights, 64 experts a layer; a layer is the difference between models of six and of two. And
// which kernels the time of a decode step and of a prompt goes to (families-profile), traced through CUPTI.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/runtime/cuda/device_weights.h"
#include "kernels/base/clock.h"
#include "kernels/formats/format.h"
#include "tests/bench/step_profile.h"
#include "tests/bench/step_trace.h"
#include "tests/device/engine_lists.h"

namespace ft::device_test {
namespace {

constexpr int kThreads = 16;
constexpr int kFewLayers = 2, kLayers = 6, kMore = kLayers - kFewLayers;
constexpr int64_t kContext = 8192;
constexpr int kPromptTokens = 2048;

struct Kind {
  const char* name;
  const char* config;
  const char* layers_key;  // a list of `layer` for each
  Json layer;
};

const char* const kNvfp4 = R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
  "ignore": ["lm_head", "re:.*attn.*", "re:.*gate$", "re:.*router.*"]})";

std::vector<Kind> kinds() {
  const char* const qwen3 = R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": true, "rope_theta": 1000000.0})";
  const char* const qwen = R"({"model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "num_experts": 64, "num_experts_per_tok": 8})";
  const char* const oss = R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 64,
    "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": true, "rope_theta": 150000,
    "rms_norm_eps": 1e-05, "quantization_config": {"quant_method": "mxfp4"}})";
  const char* const gemma = R"({"model_type": "gemma4_text", "hidden_size": 2816, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
    "attention_k_eq_v": true, "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 64,
    "top_k_experts": 8, "enable_moe_block": true, "sliding_window": 1024, "final_logit_softcapping": 30.0,
    "tie_word_embeddings": true, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0})";
  const char* const deepseek = R"({"model_type": "deepseek_v4", "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8,
    "o_lora_rank": 1024, "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
    "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
    "scoring_func": "sqrtsoftplus", "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "num_hash_layers": 0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "hidden_act": "silu", "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128]}})";
  const char* const next = R"({"model_type": "qwen4_exp_text", "hidden_size": 2560, "num_attention_heads": 24,
    "num_key_value_heads": 2, "head_dim": 256, "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640,
    "num_experts": 64, "num_experts_per_tok": 10, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "output_gate_type": "sigmoid", "hc_count": 4, "hc_lowrank": 320, "indexer_n_heads": 4, "indexer_kv_heads": 1,
    "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4, "partial_rotary_factor": 0.25})";
  return {{"Qwen3-30B-A3B", qwen3, "layer_types", "full_attention"},
          {"Qwen3.6-35B-A3B delta net", qwen, "layer_types", "linear_attention"},
          {"Qwen3.6-35B-A3B attention", qwen, "layer_types", "full_attention"},
          {"gpt-oss-120b sliding", oss, "layer_types", "sliding_attention"},
          {"gpt-oss-120b full", oss, "layer_types", "full_attention"},
          {"Gemma-4-26B-A4B sliding", gemma, "layer_types", "sliding_attention"},
          {"Gemma-4-26B-A4B full", gemma, "layer_types", "full_attention"},
          {"DeepSeek-V4-Flash window", deepseek, "compress_ratios", 0},
          {"DeepSeek-V4-Flash ratio 4", deepseek, "compress_ratios", 4},
          {"DeepSeek-V4-Flash ratio 128", deepseek, "compress_ratios", 128},
          {"Qwen3.8-Flash-Next delta net", next, "layer_types", "linear_attention"},
          {"Qwen3.8-Flash-Next attention", next, "layer_types", "full_attention"}};
}

LoadedModel load(const Kind& kind, int layers) {
  Json config = Json::parse(kind.config);
  config["num_hidden_layers"] = layers;
  config[kind.layers_key] = Json(std::vector<Json>(static_cast<size_t>(layers), kind.layer));
  config["vocab_size"] = 32768;
  config["max_position_embeddings"] = 131072;
  if (!config.contains("quantization_config")) config["quantization_config"] = Json::parse(kNvfp4);
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "ft-families-bench";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  WorkerPool pool({.threads = kThreads, .cpus = {}});
  LoadedModel model;
  model.family = make_family(config);
  WeightSource source;
  source.model_path = folder;
  source.synthetic = true;
  source.synthetic_seed = 1;
  model.weights = load_weights(*model.family, source, pool);
  model.on_device = upload_weights(*model.weights);
  return model;
}

template <class F>
double median_us(int repeats, F&& f) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats + 2; ++i) {
    const double begin = now_seconds();
    f();
    if (i >= 2) seconds.push_back(now_seconds() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)] * 1e6;
}

std::unique_ptr<Engine> engine_of(const LoadedModel& model) {
  EngineConfig config = test::config_for(model, Strategy::kResident, 0, kThreads - 2, 4);
  config.device = Device::kCuda;
  config.max_context = kContext;
  config.prefill_chunk = kPromptTokens;
  return std::make_unique<Engine>(model, config, MemoryInputs{Device::kCuda, int64_t{64} << 30, int64_t{64} << 30});
}

struct Times {
  double short_step = 0, long_step = 0, four_steps = 0, prompt = 0;
};

void run_prompt(Engine& engine, const std::vector<int32_t>& ids) {
  const int sequence = engine.open_sequence();
  engine.prefill(sequence, ids);
  engine.close_sequence(sequence);
}

Times times_of(const Kind& kind, int layers) {
  const LoadedModel model = load(kind, layers);
  const std::unique_ptr<Engine> made = engine_of(model);
  Engine& engine = *made;
  Times times;
  times.short_step = median_us(40, [&] { engine.run_dense_step(1, 128); });
  times.long_step = median_us(40, [&] { engine.run_dense_step(1, kContext); });
  times.four_steps = median_us(40, [&] { engine.run_dense_step(4, 1024); });
  const std::vector<int32_t> ids = some_ids(kPromptTokens, engine.geometry().vocab, 1);
  times.prompt = median_us(5, [&] { run_prompt(engine, ids); });
  return times;
}

// Where a decode step of one token at context 128 goes.
void profile_decode(const Kind& kind, bench::StepTrace& trace, Engine& engine) {
  constexpr int kSteps = 24;
  constexpr uint64_t kGapNs = 20'000;  // between steps
  trace.restart();
  for (int i = 0; i < kSteps; ++i) engine.run_dense_step(1, 128);
  const bench::StepProfile profile = bench::profile_steps(trace.kernels(), kGapNs);
  std::printf("%s, %d layers and the head: %.0f us a step\n", kind.name, kLayers, profile.span_us);
  for (const bench::ProfileRow& row : profile.rows) {
    const double us = row.exposed_us + row.idle_before_us;
    if (us < 1) break;
    std::printf("  %-28s %5.0f launches of %8.2f us: %8.1f us a step\n", row.name.c_str(), row.launches,
                row.duration_us, us);
  }
}

bench::StepProfile trace_prompts(bench::StepTrace& trace, Engine& engine) {
  constexpr int kPrompts = 3;
  const std::vector<int32_t> ids = some_ids(kPromptTokens, engine.geometry().vocab, 1);
  run_prompt(engine, ids);  // loads the kernels
  std::vector<std::vector<bench::KernelSpan>> prompts;
  for (int i = 0; i < kPrompts; ++i) {
    trace.restart();
    run_prompt(engine, ids);
    prompts.push_back(trace.kernels());
  }
  return bench::profile_apart(std::move(prompts));
}

// us: a token and layer, in the order of the kernels' starts: what of each is not under an earlier one, and what
// nothing runs before it.
void print_prompt(const Kind& kind, const bench::StepProfile& few, const bench::StepProfile& many) {
  if (few.steps == 0 || many.steps == 0) {
    std::printf("%s, a prompt: the tracer saw no kernels\n", kind.name);
    return;
  }
  const bench::LayerProfile layer = bench::profile_layer(few, many, kMore);
  std::printf("%s, a prompt of %d: %d layers %.0f us, %d layers %.0f us; a layer %.0f launches, %.3f us a token\n",
              kind.name, kPromptTokens, kFewLayers, few.span_us, kLayers, many.span_us, layer.launches,
              layer.us / kPromptTokens);
  const auto print = [&](const char* name, double us) {
    std::printf("  %-40s %7.3f us a token %5.1f %%", name, us / kPromptTokens, 100 * us / layer.us);
  };
  for (const bench::LayerRow& row : layer.rows) {
    print(row.name.c_str(), row.us);
    std::printf("  %5.1f launches of %8.2f us\n", row.launches, row.duration_us);
  }
  print("(kernels that layers do not launch)", layer.rest_us);
  std::printf("\n");
}

}  // namespace

void bench_families(Context&) {
  std::printf("%-28s | us of a layer: ctx 128 x1, ctx %lld x1, ctx 1024 x4 | prompt of %d, us a token and layer\n", "",
              static_cast<long long>(kContext), kPromptTokens);
  for (const Kind& kind : kinds()) {
    try {
      const double begin = now_seconds();
      const Times two = times_of(kind, kFewLayers), six = times_of(kind, kLayers);
      std::printf("%-28s | %7.1f %7.1f %7.1f | %.3f   (%.1f s)\n", kind.name, (six.short_step - two.short_step) / kMore,
                  (six.long_step - two.long_step) / kMore, (six.four_steps - two.four_steps) / kMore,
                  (six.prompt - two.prompt) / kMore / kPromptTokens, now_seconds() - begin);
    } catch (const Error& error) {
      std::printf("%-28s | %s\n", kind.name, error.what());
    }
    std::fflush(stdout);  // who stops it sees what there was
  }
}

void bench_families_profile(Context&) {
  bench::StepTrace trace;
  if (!trace.why_not().empty()) {
    std::printf("not run: %s\n", trace.why_not().c_str());
    return;
  }
  std::printf("traced, which slows steps and prompts. Enumerators are numbers: of a product_kernel the format");
  for (const FormatInfo& format : all_formats()) {
    std::printf(" %d %s,", static_cast<int>(format.id), std::string(format.name).c_str());
  }
  std::printf(" then Kind of kernels/cuda/prefill_products.cu\n");
  for (const Kind& kind : kinds()) {
    try {
      bench::StepProfile many;
      {
        const LoadedModel model = load(kind, kLayers);
        const std::unique_ptr<Engine> engine = engine_of(model);
        profile_decode(kind, trace, *engine);
        many = trace_prompts(trace, *engine);
      }
      const LoadedModel model = load(kind, kFewLayers);
      print_prompt(kind, trace_prompts(trace, *engine_of(model)), many);
    } catch (const Error& error) {
      std::printf("%s: %s\n", kind.name, error.what());
    }
    std::fflush(stdout);  // who stops it sees what there was
  }
}

}  // namespace ft::device_test
