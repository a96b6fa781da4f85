#include "tests/profiles/sample_profile.h"

namespace {

ft::Identity sample_identity() {
  ft::Identity identity;
  identity.host = {.cpu_model = "Example CPU",
                   .isa = "avx512_bf16",
                   .cores = 16,
                   .affinity_cores = 8,
                   .quota_cores = 7.5,
                   .numa_nodes = 2,
                   .memory_bytes = int64_t{64} << 30,
                   .gpu_uuid = "GPU-0",
                   .gpu_name = "Example GPU",
                   .gpu_driver = "1.2",
                   .gpu_link = "PCIe 5 x16"};
  identity.build = {.version = "0.1.0", .compiler = "gcc 12.2.0", .code_hash = "c0de"};
  identity.model = {.config_hash = "c0f1",
                    .index_hash = "1de8",
                    .data_sample_hash = "da7a",
                    .family = "qwen3_moe",
                    .formats = "experts nvfp4, dense bf16",
                    .weights = "synthetic:7"};
  return identity;
}

ft::Conditions sample_conditions() {
  ft::Conditions conditions;
  conditions.commit = "abc";
  conditions.dirty = true;
  conditions.created = "2024-05-06T07:08:09Z";
  conditions.budget_seconds = 120;
  conditions.spent_seconds = 61.25;
  conditions.reduced = true;
  conditions.device = "cuda";
  conditions.device_memory_limit_bytes = int64_t{1} << 30;
  conditions.contexts = {512, 4096};
  conditions.batches = {1, 4};
  conditions.routing_source = "preset qwen3-30b";
  conditions.memory = "2 MiB pages: 93 %";
  conditions.link = "PCIe 5 x16 under load";
  conditions.banks = "48 GB ready in 4 s";
  conditions.likwid = "used: topology";
  conditions.throttled_usec = 12;
  conditions.forced = {"--strategy hybrid"};
  conditions.findings = {{.id = "cpu.quota", .level = "note", .what = "a quota of 1.5 cores", .fix = "raise cpu.max"}};
  return conditions;
}

ft::Candidate sample_candidate(const char* strategy, bool chosen) {
  return {.strategy = strategy,
          .threads = 2,
          .slots = 48,
          .split = "fetch 1 of 2",
          .fetch_mechanism = "sm",
          .max_prefetches_per_layer = 2,
          .predicted_tok_s = {10, 20, 9, 18},
          .measured_tok_s = {11, 21, 8, 17},
          .measured_low = {10.5, 20, 7.5, 16},
          .measured_high = {11.5, 22, 8.5, 18},
          .predicted_hit_rate = 0.5,
          .measured_hit_rate = 0.625,
          .gap = 1.5,
          .missing_us_per_layer = 120,
          .chosen = chosen,
          .verdict = chosen ? "chosen" : "slower by 1.2",
          .parts = {{.name = "dense", .seconds = {0.02, 0.03, 0.02, 0.03}},
                    {.name = "fetch", .seconds = {0.08, 0.07, 0.08, 0.07}}},
          .replays = {{.batch = 1,
                       .hit_rate = 0.625,
                       .counts = {{.times = 6,
                                   .tokens = 1,
                                   .hits = 5,
                                   .fetched = 2,
                                   .cpu = 1,
                                   .promoted = 1,
                                   .hit_picks = 5,
                                   .fetched_picks = 2,
                                   .cpu_picks = 1,
                                   .prefetched = 3}}}}};
}

// The four points of the sample's conditions: `rate` at the first one.
std::vector<ft::ExpectedPoint> sample_expected(double rate) {
  std::vector<ft::ExpectedPoint> points;
  for (const int64_t context : {512, 4096}) {
    for (const int64_t batch : {1, 4}) {
      points.push_back(
          {.context = context,
           .batch = batch,
           .tok_s = rate * static_cast<double>(batch),
           .low_tok_s = 0.5 * rate * static_cast<double>(batch),
           .high_tok_s = 1.5 * rate * static_cast<double>(batch),
           .hit_rate = 0.5,
           .fetched_per_token = 2.5,
           .cpu_per_token = 1.25,
           .parts = {{.name = "dense", .seconds = 0.25 / rate}, {.name = "fetch", .seconds = 0.75 / rate}}});
    }
  }
  return points;
}

}  // namespace

ft::Profile sample_profile() {
  ft::Profile profile;
  profile.identity = sample_identity();
  profile.conditions = sample_conditions();
  profile.measurements = {{.probe = "expert_single",
                           .name = "nvfp4.avx512.threads=2",
                           .unit = "GB/s",
                           .values = {1.5, 0.1},
                           .discarded = 3,
                           .stop_reason = "samples",
                           .reduced = true,
                           .at = {{"threads", 2}},
                           .remarks = {"warm"}}};
  profile.skipped = {{.probe = "pcie_linear", .reason = "no GPU"}};
  profile.cost_model = {.parameters = {{.name = "s_c.threads=2",
                                        .unit = "us",
                                        .value = 1.25,
                                        .low = 1,
                                        .high = 1.5,
                                        .held_out_error_without = 0.5}},
                        .held_out_error = 0.04,
                        .held_out_error_without_fixed_costs = 0.2,
                        .cells_fitted = 40,
                        .cells_held_out = 10};
  profile.candidates = {sample_candidate("hybrid", true), sample_candidate("offload", false)};
  profile.routing = ft::RoutingRecord{
      .cache_policy = "lrfu",
      .points = {
          {.slots = 48, .batch = 1, .hit_rate = 0.5, .optimum_hit_rate = 0.75, .misses_histogram = {4, 1, 0, 1}}}};
  profile.decision = {.strategy = "hybrid",
                      .predicted_tok_s = 10,
                      .measured_tok_s = 11,
                      .runner_up = "offload",
                      .margin = 1.2,
                      .margin_low = 1.1,
                      .margin_high = 1.3,
                      .tie = true,
                      .forced = true,
                      .gap = 0.9,
                      .missing_us_per_layer = 2.5,
                      .reason = "fastest",
                      .warnings = {"quota"}};
  profile.serve = {.device = "cuda",
                   .strategy = "hybrid",
                   .model_path = "/models/x",
                   .synthetic_seed = 7,
                   .routing_preset = "qwen3-30b",
                   .threads = 2,
                   .pinning = {0, 2},
                   .slots = 48,
                   .fetch_of_misses = {0, 0, 1, 1, 2},
                   .promote_bytes_per_layer = 1 << 20,
                   .cache_policy = "lrfu",
                   .look_ahead = "router",
                   .max_prefetches_per_layer = 2,
                   .max_batch = 4,
                   .max_context = 4096,
                   .prefill_chunk = 128,
                   .device_memory_limit_bytes = int64_t{1} << 30,
                   .fetch_mechanism = "sm",
                   .link_slowdown = 3,
                   .predicted_tok_s = 10,
                   .ceiling_gbps = 21.5,
                   .expected = sample_expected(8),
                   .fallback = ft::Fallback{.strategy = "offload",
                                            .fetch_of_misses = {0, 1, 2, 3, 4},
                                            .promote_bytes_per_layer = 0,
                                            .expected = sample_expected(6)}};
  return profile;
}
