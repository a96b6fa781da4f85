#include "engine/experts/memory_plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/ops/activations.h"

namespace ft {
namespace {

// Sizes saturate here instead of overflowing: more than any machine has, so they never fit.
constexpr int64_t kTooMany = std::numeric_limits<int64_t>::max();

int64_t times(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kTooMany : result;
}

int64_t plus(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? kTooMany : result;
}

std::string bytes_text(int64_t bytes) {
  if (bytes == kTooMany) return "more than 8 EiB";
  const auto tenths = [bytes](int shift) {
    const int64_t unit = int64_t{1} << shift;
    return std::to_string(bytes / unit) + "." + std::to_string(bytes % unit * 10 / unit);
  };
  if (bytes >= int64_t{1} << 30) return tenths(30) + " GiB (" + std::to_string(bytes) + " bytes)";
  if (bytes >= int64_t{1} << 20) return tenths(20) + " MiB (" + std::to_string(bytes) + " bytes)";
  return std::to_string(bytes) + " bytes";
}

void require_range(const std::string& what, const std::string& option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw Error(ErrorKind::kUsage, {.what = what + " out of range",
                                  .value = std::to_string(value),
                                  .allowed = std::to_string(low) + " to " + std::to_string(high),
                                  .path = option});
}

void check_ranges(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config) {
  require_range("layers", "config.json", geometry.layers, 1, kMaxLayers);
  require_range("MoE layers", "config.json", static_cast<int64_t>(geometry.moe_layers.size()), 1, geometry.layers);
  require_range("experts per layer", "config.json", geometry.expert.experts, 1, kMaxExperts);
  require_range("experts per token", "config.json", geometry.expert.top_k, 1,
                std::min<int64_t>(kMaxTopK, geometry.expert.experts));
  constexpr int64_t kMaxWidth = int64_t{1} << 24;  // far above any model; keeps sums of a few widths exact
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"hidden size", geometry.hidden},
                                    {"expert hidden size", geometry.expert.hidden},
                                    {"expert intermediate size", geometry.expert.intermediate},
                                    {"vocabulary", geometry.vocab},
                                    {"query heads x head dimension", geometry.widest_heads},
                                    {"activations of a token", geometry.slot_floats}}) {
    require_range(name, "config.json", value, 0, kMaxWidth);
  }
  require_range("layers with a KV cache", "config.json", static_cast<int64_t>(geometry.kv.size()), 0, geometry.layers);
  for (const KvLayer& layer : geometry.kv) {
    require_range("KV heads", "config.json", layer.kv_heads, 0, kMaxWidth);
    require_range("head dimension", "config.json", layer.head_dim, 0, kMaxWidth);
    require_range("window of a layer", "config.json", layer.window, 0, kMaxWidth);
  }
  for (const CompressedLayer& layer : geometry.compressed) {
    require_range("head dimension", "config.json", layer.head_dim, 0, kMaxWidth);
    require_range("window of compressed attention", "config.json", layer.window, layer.blocks ? 0 : 1, kTooMany);
    require_range("ratio of compressed attention", "config.json", layer.ratio, layer.blocks ? 1 : 0, kMaxWidth);
    require_range("index dimension", "config.json", layer.index_dim, 0, kMaxWidth);
  }
  require_range("recurrent state of a sequence", "config.json", geometry.state_floats, 0, kTooMany);
  require_range("bytes of an expert", "weights", formats.expert_bytes_max, 1, kTooMany);
  require_range("bytes of the expert banks", "weights", formats.expert_bytes_total, 0, kTooMany);
  require_range("bytes of the dense weights", "weights", formats.dense_bytes, 0, kTooMany);
  require_range("bytes of embedding rows", "weights", formats.row_table_bytes, 0, kTooMany);
  require_range("batch", "--batch", config.max_batch, 1, kMaxBatch);
  require_range("context", "--context", config.max_context, 1, std::max<int64_t>(1, geometry.max_positions));
  require_range("prefill chunk", "serve.prefill_chunk", config.prefill_chunk, 1, kMaxPrefillChunk);
  require_range("threads", "--threads", config.threads, 1, kMaxThreads);
}

int64_t step_tokens(const EngineConfig& config) { return std::max(config.prefill_chunk, config.max_batch); }

int64_t kv_cache_bytes(const ModelGeometry& geometry, const EngineConfig& config) {
  int64_t elements = 0;
  for (const KvLayer& layer : geometry.kv) {
    const int64_t positions = kv_positions(layer, config.max_context, step_tokens(config));
    elements = plus(elements, times(times(times(2, layer.kv_heads), layer.head_dim), positions));
  }
  int64_t open = 0;  // fp32 whatever the numerics
  for (const CompressedLayer& layer : geometry.compressed) {
    elements = plus(elements, layer.elements(config.max_context));
    open = plus(open, times(layer.open_floats(), sizeof(float)));
  }
  const int64_t bytes = times(elements, config.numerics == Numerics::kReference ? 4 : 2);  // fp32 or bf16
  return times(plus(bytes, open), config.max_batch);
}

int64_t state_bytes(const ModelGeometry& geometry, const EngineConfig& config) {
  return times(times(geometry.state_floats, sizeof(float)), config.max_batch);
}

// What one token of a group gathers, or scores and chooses, whichever is more
// (engine/runtime/cuda/compressed_memory.cpp).
int64_t compressed_token_bytes(const ModelGeometry& geometry, int64_t max_context) {
  int64_t kv = 0, most = 0;
  for (const KvLayer& layer : geometry.kv) kv = std::max(kv, layer.elements());
  for (const CompressedLayer& layer : geometry.compressed) {
    const int64_t entries = layer.entries(max_context);
    if (layer.blocks && layer.index_top_k >= entries) continue;  // such tokens attend to the cache
    const int64_t row = times(layer.blocks ? kv : 2 * layer.head_dim, sizeof(bf16));
    const int64_t choice = layer.index_dim > 0 ? times(plus(entries, layer.index_top_k), sizeof(float)) : 0;
    most = std::max({most, times(layer.attended(max_context), row), choice});
  }
  return most;
}

// The slot table, every layer's plan and the forced choices of a step on a GPU (engine/runtime/cuda/cuda_moe.cpp),
// which are kept apart by 256 bytes.
int64_t device_table_bytes(const ModelGeometry& geometry, const EngineConfig& config) {
  constexpr int64_t kPerExpert = 48, kPerPick = 80, kPerLayer = 4096;
  const int64_t picks = times(config.max_batch, geometry.expert.top_k);
  const auto layers = static_cast<int64_t>(geometry.moe_layers.size());
  return plus(times(kPerExpert, geometry.total_experts()), times(layers, plus(times(kPerPick, picks), kPerLayer)));
}

// Two halves of a group each.
int64_t prefill_staging_bytes(const ModelGeometry& geometry, const ModelFormats& formats) {
  return times(
      2, times(prefill_group_experts(geometry.expert.experts, formats.expert_bytes_max), formats.expert_bytes_max));
}

// Everything but the slots, and how much of each kind of memory is there.
struct FixedPools {
  int64_t dense = 0, kv = 0, state = 0, activations = 0, logits = 0, banks = 0, staging = 0;
  int64_t prefill_staging = 0;  // on a GPU
  int64_t device_memory = 0, host_memory = 0;
  bool one_memory = false;
  bool host_option = false, device_option = false;  // the user's limit binds, not what the machine has

  int64_t device() const {
    return plus(plus(plus(dense, plus(kv, state)), plus(activations, logits)), prefill_staging);
  }
  int64_t host() const { return plus(banks, staging); }
};

FixedPools fixed_pools(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs) {
  check_ranges(geometry, formats, config);
  FixedPools pools;
  pools.dense = formats.dense_bytes;
  pools.kv = kv_cache_bytes(geometry, config);
  pools.state = state_bytes(geometry, config);
  pools.activations = activation_bytes(geometry, config);
  pools.logits = times(times(max_logits_rows(config), geometry.vocab), sizeof(float));
  pools.banks = formats.expert_bytes_total;
  pools.one_memory = inputs.device == Device::kHost;
  if (pools.one_memory) {
    const bool staged = config.strategy == Strategy::kOffload && config.numerics == Numerics::kServe;
    pools.staging = staged ? times(kStagingBuffers, formats.expert_bytes_max) : 0;
  } else {
    // What the CPU arm and the device exchange per step: packed activations in, one output row per pick back.
    const int64_t in = times(activation_words(geometry.expert.hidden), sizeof(uint32_t));
    const int64_t out = times(times(geometry.expert.top_k, geometry.expert.hidden), sizeof(float));
    pools.staging = times(config.max_batch, plus(in, out));
    // The choices of every layer of a prompt, where they are forced or read back.
    const int64_t picks = times(step_tokens(config), times(geometry.expert.top_k, sizeof(int32_t)));
    pools.staging = plus(pools.staging, times(picks, static_cast<int64_t>(geometry.moe_layers.size())));
    // Rows of tables that stay on disk, as fp32 of at least a byte a value.
    pools.staging = plus(pools.staging, times(step_tokens(config), times(formats.row_bytes_per_token, sizeof(float))));
    pools.prefill_staging = prefill_staging_bytes(geometry, formats);
    pools.activations = plus(pools.activations, device_table_bytes(geometry, config));
    const int64_t of_token = compressed_token_bytes(geometry, config.max_context);
    if (of_token > 0) pools.activations = plus(pools.activations, times(2, std::max(of_token, kCompressedGroupBytes)));
  }
  pools.host_memory = std::max<int64_t>(0, inputs.host_memory_bytes);
  if (config.host_memory_limit_bytes) {
    pools.host_option = *config.host_memory_limit_bytes <= pools.host_memory;
    pools.host_memory = std::min(pools.host_memory, *config.host_memory_limit_bytes);
  }
  pools.device_memory = std::max<int64_t>(0, inputs.device_memory_bytes);
  if (pools.one_memory && pools.device_memory == 0) pools.device_memory = pools.host_memory;
  if (config.device_memory_limit_bytes) {
    pools.device_option = *config.device_memory_limit_bytes <= pools.device_memory;
    pools.device_memory = std::min(pools.device_memory, *config.device_memory_limit_bytes);
  }
  return pools;
}

struct Want {
  const char* name;
  int64_t bytes;
  std::string action;
};

// Fails at the first pool, in this order, that is too large for what those before it left.
void require_fit(std::initializer_list<Want> wants, int64_t memory, const std::string& memory_name) {
  int64_t left = memory;
  for (const Want& want : wants) {
    if (want.bytes > left) {
      throw Error(ErrorKind::kFailed, {.what = std::string("not enough ") + memory_name + " for the " + want.name,
                                       .value = bytes_text(want.bytes),
                                       .allowed = bytes_text(left) + " left of " + bytes_text(memory),
                                       .action = want.action,
                                       .path = want.name});
    }
    left -= want.bytes;
  }
}

// What gives more of a memory: the option, where the user's limit binds; else the machine itself.
std::string_view more_device(const FixedPools& pools) {
  return pools.device_option ? "raise --vram-limit" : "use a device with more memory";
}
std::string_view more_host(const FixedPools& pools) {
  return pools.host_option ? "raise --host-memory" : "free memory";
}

std::string or_else(std::string_view first, std::string_view second) {
  return std::string(first) + ", or " + std::string(second);
}

void require_fixed_fit(const FixedPools& pools) {
  // On the host device slots and banks share one memory, so a device limit says something of its own only below it.
  if (!pools.one_memory || pools.device_memory < pools.host_memory) {
    const std::string_view more = more_device(pools);
    require_fit({{"dense weights", pools.dense, or_else(more, "take a smaller model")},
                 {"kv cache", pools.kv, or_else("lower --context or --batch", more)},
                 {"recurrent state", pools.state, or_else("lower --batch", more)},
                 {"activations", pools.activations, or_else("lower --batch", more)},
                 {"logits", pools.logits, or_else("lower --batch", more)},
                 {"prefill staging", pools.prefill_staging, or_else(more, "take a smaller model")}},
                pools.device_memory, "device memory");
  }
  const std::string_view more = more_host(pools);
  const std::string smaller = or_else(more, "take a smaller model");
  if (!pools.one_memory) {
    require_fit({{"expert banks", pools.banks, smaller}, {"staging", pools.staging, or_else("lower --batch", more)}},
                pools.host_memory, "host memory");
    return;
  }
  const std::string shorter = or_else("lower --context or --batch", more);
  require_fit({{"expert banks", pools.banks, smaller},
               {"dense weights", pools.dense, smaller},
               {"kv cache", pools.kv, shorter},
               {"recurrent state", pools.state, or_else("lower --batch", more)},
               {"activations", pools.activations, shorter},
               {"logits", pools.logits, shorter},
               {"staging", pools.staging, shorter}},
              pools.host_memory, "host memory");
}

SlotBounds bounds_of(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                     const FixedPools& pools) {
  int64_t left = pools.device_memory - pools.device();
  SlotBounds bounds;
  bounds.for_more = more_device(pools);
  if (pools.one_memory) {
    const int64_t left_of_host = pools.host_memory - plus(pools.device(), pools.host());
    if (left_of_host <= left) bounds.for_more = more_host(pools);
    left = std::min(left, left_of_host);
  }
  bounds.max = std::min(left / formats.expert_bytes_max, geometry.total_experts());
  bounds.min = std::min<int64_t>(geometry.expert.experts, int64_t{geometry.expert.top_k} * config.max_batch);
  if (config.look_ahead != LookAhead::kOff) ++bounds.min;  // prefetches leave a layer's experts to its fetches
  return bounds;
}

void check_slots(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                 const FixedPools& pools, const SlotBounds& bounds) {
  const int64_t all = geometry.total_experts();
  const bool resident = config.strategy == Strategy::kResident;
  if (config.slots == 0 && config.strategy == Strategy::kCpu) return;
  const int64_t low = resident ? all : bounds.min;
  if (low <= config.slots && config.slots <= bounds.max) return;

  const int64_t wanted = std::clamp(config.slots, low, all);
  if (config.slots >= low && config.slots <= all) {  // a fine count, but no room
    throw Error(ErrorKind::kFailed,
                {.what = "not enough memory for the expert slots",
                 .value = std::to_string(wanted) + " slots, " + bytes_text(times(wanted, formats.expert_bytes_max)),
                 .allowed = "at most " + std::to_string(bounds.max) + " slots beside " + bytes_text(pools.device()) +
                            " on a device of " + bytes_text(pools.device_memory),
                 .action = bounds.max >= bounds.min && !resident
                               ? or_else("lower --slots", bounds.for_more)
                               : or_else(std::string(bounds.for_more) + ", lower --batch or --context",
                                         "choose --strategy cpu"),
                 .path = "expert slots"});
  }
  throw Error(ErrorKind::kUsage,
              {.what = "expert slots out of range for the strategy " + std::string(strategy_name(config.strategy)),
               .value = std::to_string(config.slots),
               .allowed = resident ? std::to_string(all) + " (all experts)"
                                   : std::to_string(low) + " to " + std::to_string(std::max(low, bounds.max)),
               .action = resident ? "leave --slots out, or choose another --strategy"
                                  : "change --slots or --batch: one layer's distinct experts must fit",
               .path = "--slots"});
}

}  // namespace

int64_t MemoryPlan::pool_bytes(std::string_view name) const {
  for (const MemoryPool& pool : pools) {
    if (pool.name == name) return pool.bytes;
  }
  return 0;
}

namespace {

// Of attention to blocks of tokens: what each thread scores, orders and gathers for the token it works on.
int64_t block_bytes(const ModelGeometry& geometry, const EngineConfig& config) {
  int64_t kv = 0, per_thread = 0;
  for (const KvLayer& layer : geometry.kv) kv = std::max(kv, layer.elements());
  for (const CompressedLayer& layer : geometry.compressed) {
    if (!layer.blocks) return 0;
    const int64_t entries = layer.entries(config.max_context);
    const int64_t attended = layer.index_top_k < entries ? layer.attended(config.max_context) : 0;
    const int64_t choice = attended > 0 ? times(entries, sizeof(float) + sizeof(uint64_t)) : 0;
    const int64_t entry = plus(times(layer.index_dim, sizeof(float)), times(layer.ratio, sizeof(void*)));
    constexpr int64_t kAligned = int64_t{4} * 64;  // rows of four buffers
    per_thread = std::max(per_thread, plus(plus(times(times(attended, kv), 2), choice), plus(entry, kAligned)));
  }
  return plus(times(config.threads, per_thread), times(step_tokens(config), sizeof(int32_t)));
}

// Of attention to compressed entries: rows and packed groups of a token, and what each thread gathers (and, in
// reference numerics, weighs), scores and orders for the token it works on.
int64_t compressed_bytes(const ModelGeometry& geometry, const EngineConfig& config) {
  int64_t attended = 0, indexed = 0, slots = 0;
  for (const CompressedLayer& layer : geometry.compressed) {
    if (layer.blocks) return block_bytes(geometry, config);
    attended = std::max(attended, layer.attended(config.max_context));
    if (layer.index_dim > 0) indexed = std::max(indexed, layer.entries(config.max_context));
    slots = std::max(slots, layer.open_rows());
  }
  if (attended == 0) return 0;
  const int64_t row = geometry.max_head_dim() * int64_t{sizeof(float)} + int64_t{sizeof(int32_t)};
  const int64_t groups = times(geometry.output_groups, activation_words(geometry.output_group_width));
  const int64_t per_token = plus(row, times(groups, sizeof(uint32_t)));
  const int64_t per_thread = plus(
      times(attended, plus(row, sizeof(double))),
      plus(times(indexed, sizeof(float) + sizeof(uint64_t)), plus(times(3 * slots, sizeof(void*)), times(4, row))));
  return plus(times(step_tokens(config), per_token), times(config.threads, per_thread));
}

}  // namespace

int64_t activation_bytes(const ModelGeometry& geometry, const EngineConfig& config) {
  const int64_t tokens = step_tokens(config);
  const int64_t attention = geometry.widest_heads;
  int64_t keys = 0;
  for (const KvLayer& layer : geometry.kv) keys = std::max(keys, layer.kv_heads * layer.head_dim);
  const int64_t widest = std::max({geometry.hidden, attention, geometry.expert.intermediate});
  // fp32 rows: residual, normed, out and merge; query and attention; key and value; gate and up of a dense layer or
  // shared expert, for which four hidden sizes are the widest in use.
  int64_t row = 4 * geometry.hidden +
                std::max(geometry.slot_floats, 2 * attention + 2 * keys + 2 * std::max(4 * geometry.hidden, widest));
  row += geometry.expert.experts + 2 * int64_t{geometry.expert.top_k};  // router logits, picks and weights
  // Packed input of a product: of no more than a linear unit's half, which has gate and up.
  row += activation_words(std::max({4 * geometry.hidden, widest, geometry.slot_floats / 2}));
  // Per pick: the packed gate x up product and the output row that waits for the merge in slot order.
  row += geometry.expert.top_k * (activation_words(geometry.expert.intermediate) + geometry.expert.hidden);
  row += 2 * int64_t{geometry.expert.top_k};  // picks in order of experts, and tiles over them
  const int64_t per_step = times(times(tokens, row), sizeof(float));
  // Tables of cos and sin per position, and per thread one row of attention scores and one accumulator.
  const int64_t table = times(times(config.max_context, geometry.max_head_dim()), sizeof(float));
  const int64_t tables = times(table, geometry.rope_tables);
  const int64_t scratch =
      times(times(config.threads, plus(config.max_context, 2 * geometry.max_head_dim())), sizeof(float));
  return plus(plus(per_step, compressed_bytes(geometry, config)), plus(tables, scratch));
}

int64_t compressed_group_tokens(const ModelGeometry& geometry, int64_t max_context) {
  const int64_t of_token = compressed_token_bytes(geometry, max_context);
  return of_token > 0 ? std::max<int64_t>(1, kCompressedGroupBytes / of_token) : kTooMany;
}

int default_prefill_chunk(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                          const MemoryInputs& inputs) {
  if (config.device == Device::kHost) return config.prefill_chunk;
  constexpr int kLeast = 64;
  EngineConfig trial = config;
  for (trial.prefill_chunk = kDefaultPrefillChunk; trial.prefill_chunk > kLeast; trial.prefill_chunk /= 2) {
    if (trial.prefill_chunk / 2 >= config.max_context) continue;
    const FixedPools pools = fixed_pools(geometry, formats, trial, inputs);
    const int64_t left = pools.device_memory - plus(pools.dense, plus(pools.kv, pools.state));
    if (plus(pools.activations, pools.logits) <= left / kPrefillShare) break;
  }
  return trial.prefill_chunk;
}

SlotBounds slot_bounds(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs) {
  const FixedPools pools = fixed_pools(geometry, formats, config, inputs);
  require_fixed_fit(pools);
  return bounds_of(geometry, formats, config, pools);
}

MemoryPlan plan_memory(const ModelGeometry& geometry, const ModelFormats& formats, const EngineConfig& config,
                       const MemoryInputs& inputs) {
  const FixedPools pools = fixed_pools(geometry, formats, config, inputs);
  require_fixed_fit(pools);
  const SlotBounds bounds = bounds_of(geometry, formats, config, pools);
  check_slots(geometry, formats, config, pools, bounds);
  const int64_t slots = times(config.slots, formats.expert_bytes_max);
  MemoryPlan plan;
  plan.pools = {{"dense weights", pools.dense, true}, {"expert slots", slots, true},
                {"kv cache", pools.kv, true},         {"activations", pools.activations, true},
                {"logits", pools.logits, true},       {"expert banks", pools.banks, false},
                {"staging", pools.staging, false}};
  if (pools.state > 0) plan.pools.insert(plan.pools.begin() + 3, {"recurrent state", pools.state, true});
  if (!pools.one_memory) plan.pools.push_back({"prefill staging", pools.prefill_staging, true});
  if (formats.row_table_bytes > 0) {
    plan.pools.push_back({"embedding rows", formats.row_table_bytes, false, /*on_disk=*/true});
  }
  plan.device_bytes = plus(pools.device(), slots);
  plan.host_bytes = pools.host();
  plan.min_slots = bounds.min;
  plan.max_slots = bounds.max;
  return plan;
}

}  // namespace ft
