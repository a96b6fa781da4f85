// Checked against: properties that hold for every machine and model (the largest slot count starts and one more does
// not, the pools add up, every refusal names pool, bytes and what to change), and one plan added up by hand.
#include "engine/experts/memory_plan.h"

#include <doctest/doctest.h>

#include <limits>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMiB = int64_t{1} << 20;

struct Case {
  ModelGeometry geometry;
  ModelFormats formats;
  EngineConfig config;
  MemoryInputs inputs;
};

ModelGeometry geometry_of(int layers, int experts, int top_k, int64_t hidden) {
  ModelGeometry geometry;
  geometry.layers = layers;
  for (int layer = 0; layer < layers; ++layer) geometry.moe_layers.push_back(layer);
  geometry.expert = {hidden, hidden / 4, experts, top_k};
  geometry.hidden = hidden;
  geometry.vocab = 32000;
  geometry.max_positions = 32768;
  geometry.kv.assign(static_cast<size_t>(layers), {4, 64});
  geometry.widest_heads = 16 * 64;
  return geometry;
}

Case plain_case() {
  Case c;
  c.geometry = geometry_of(8, 32, 4, 1024);
  c.formats.dense_bytes = 64 * kMiB;
  c.formats.expert_bytes_max = kMiB;
  c.formats.expert_bytes_total = 8 * 32 * kMiB;
  c.config.max_context = 1024;
  c.config.slots = 16;
  c.inputs.host_memory_bytes = 4 * kGiB;
  return c;
}

Case random_case(Random& random) {
  Case c;
  const int experts = 2 + static_cast<int>(random.below(127));
  const int top_k = 1 + static_cast<int>(random.below(static_cast<uint64_t>(std::min(experts, 10))));
  c.geometry = geometry_of(1 + static_cast<int>(random.below(60)), experts, top_k,
                           256 * (1 + static_cast<int64_t>(random.below(20))));
  c.formats.dense_bytes = static_cast<int64_t>(random.below(4 * kGiB));
  c.formats.expert_bytes_max = 4096 * (1 + static_cast<int64_t>(random.below(4000)));
  c.formats.expert_bytes_total = c.formats.expert_bytes_max * c.geometry.total_experts();
  c.config.max_batch = 1 + static_cast<int>(random.below(8));
  c.config.max_context = 1 + static_cast<int64_t>(random.below(32768));
  c.config.prefill_chunk = 1 + static_cast<int>(random.below(kMaxPrefillChunk));
  c.config.threads = 1 + static_cast<int>(random.below(64));
  constexpr Strategy kStrategies[] = {Strategy::kResident, Strategy::kOffload, Strategy::kCpu, Strategy::kHybrid};
  c.config.strategy = kStrategies[random.below(4)];
  c.inputs.device = random.below(2) == 0 ? Device::kHost : Device::kCuda;
  c.inputs.device_memory_bytes = static_cast<int64_t>(random.below(64 * kGiB));
  c.inputs.host_memory_bytes = static_cast<int64_t>(random.below(256 * kGiB));
  if (random.below(2) == 0) c.config.device_memory_limit_bytes = static_cast<int64_t>(random.below(32 * kGiB));
  if (random.below(4) == 0) c.config.host_memory_limit_bytes = static_cast<int64_t>(random.below(256 * kGiB));
  return c;
}

MemoryPlan plan_with(const Case& c, int64_t slots) {
  EngineConfig config = c.config;
  config.slots = slots;
  return plan_memory(c.geometry, c.formats, config, c.inputs);
}

// The error of a plan with so many slots, or none.
std::optional<Error> refusal(const Case& c, int64_t slots) {
  try {
    plan_with(c, slots);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

int64_t host_memory(const Case& c) {
  return std::min(c.inputs.host_memory_bytes, c.config.host_memory_limit_bytes.value_or(c.inputs.host_memory_bytes));
}

int64_t device_memory(const Case& c) {
  const int64_t memory = c.inputs.device_memory_bytes == 0 ? host_memory(c) : c.inputs.device_memory_bytes;
  return std::min(memory, c.config.device_memory_limit_bytes.value_or(memory));
}

void check_fits(const Case& c, const MemoryPlan& plan) {
  int64_t device = 0, host = 0;
  for (const MemoryPool& pool : plan.pools) {
    CHECK(pool.bytes >= 0);
    (pool.on_device ? device : host) += pool.bytes;
  }
  CHECK(device == plan.device_bytes);
  CHECK(host == plan.host_bytes);
  CHECK(device <= device_memory(c));
  CHECK(host <= host_memory(c));
  if (c.inputs.device == Device::kHost) CHECK(device + host <= host_memory(c));
}

bool has_number_and_advice(const Error& error) {
  const std::string message = error.what();
  const auto says = [&](const char* words) { return message.find(words) != std::string::npos; };
  // An option where there is one to change, else what only the machine can change.
  const bool advice = says("--") || says("free memory") || says("a device with more memory");
  return says(" bytes") && advice && !error.parts().path.empty();
}

}  // namespace

TEST_CASE("over random machines and models the largest slot count starts and one more does not") {
  Random random(71);
  int started = 0, refused_fixed = 0, refused_slots = 0;
  for (int i = 0; i < 4000; ++i) {
    CAPTURE(i);
    const Case c = random_case(random);
    SlotBounds bounds;
    try {
      bounds = slot_bounds(c.geometry, c.formats, c.config, c.inputs);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kFailed);
      CHECK_MESSAGE(has_number_and_advice(error), error.what());
      CHECK(refusal(c, 0).has_value());
      ++refused_fixed;
      continue;
    }
    const int64_t all = c.geometry.total_experts();
    CHECK(bounds.min == std::min<int64_t>(c.geometry.expert.experts, c.geometry.expert.top_k * c.config.max_batch));
    CHECK(bounds.max <= all);
    CHECK(bounds.max >= 0);
    const int64_t low = c.config.strategy == Strategy::kResident ? all : bounds.min;
    const std::optional<Error> over = refusal(c, std::max(low, bounds.max + 1));
    CHECK((over.has_value() || bounds.max >= all));
    if (bounds.max >= low) {
      const MemoryPlan plan = plan_with(c, bounds.max);
      CHECK(plan.max_slots == bounds.max);
      CHECK(plan.min_slots == bounds.min);
      check_fits(c, plan);
      check_fits(c, plan_with(c, low));
      if (low > 1) CHECK(refusal(c, low - 1)->kind() == ErrorKind::kUsage);
      CHECK(refusal(c, all + 1)->kind() == ErrorKind::kUsage);
      ++started;
    } else {
      REQUIRE(over.has_value());
      CHECK_MESSAGE(has_number_and_advice(*over), over->what());
      CHECK(over->parts().path == "expert slots");
      ++refused_slots;
    }
    CHECK(refusal(c, 0).has_value() == (c.config.strategy != Strategy::kCpu));
    CHECK(refusal(c, -1).has_value());
  }
  CHECK(started > 300);  // the cases reach all three outcomes
  CHECK(refused_fixed > 300);
  CHECK(refused_slots > 100);
}

TEST_CASE("a plan added up by hand") {
  Case c = plain_case();
  const MemoryPlan plan = plan_with(c, 16);
  CHECK(plan.pool_bytes("dense weights") == 64 * kMiB);
  CHECK(plan.pool_bytes("expert slots") == 16 * kMiB);
  CHECK(plan.pool_bytes("kv cache") == 2 * 8 * 4 * 64 * 2 * 1024);
  CHECK(plan.pool_bytes("logits") == 64 * 32000 * 4);
  CHECK(plan.pool_bytes("expert banks") == 256 * kMiB);
  CHECK(plan.pool_bytes("staging") == 2 * kMiB);  // offload streams a prompt's experts through two blobs
  CHECK(plan.pool_bytes("no such pool") == 0);
  CHECK(plan.pool_bytes("activations") == activation_bytes(c.geometry, c.config));
  CHECK(plan.max_slots == 256);
  CHECK(plan.min_slots == 4);
  c.inputs.device = Device::kCuda;
  c.inputs.device_memory_bytes = kGiB;
  // 1024 wide in, 4 picks out; 4 picks of 64 tokens in each of the layers
  const auto layers = static_cast<int64_t>(c.geometry.moe_layers.size());
  CHECK(plan_with(c, 16).pool_bytes("staging") == 4 * (4 * 128) + 4 * 4 * 1024 + layers * 64 * 4 * 4);
}

TEST_CASE("a recurrent state is a pool of its own, a copy a sequence, and takes room from slots") {
  Case c = plain_case();
  CHECK(plan_with(c, 16).pools.size() == 7);
  CHECK(plan_with(c, 16).pool_bytes("recurrent state") == 0);
  c.config.max_batch = 3;
  const int64_t batch_bytes = plan_with(c, 16).device_bytes;
  c.geometry.state_floats = 1000;
  CHECK(plan_with(c, 16).pool_bytes("recurrent state") == 3 * 1000 * 4);
  CHECK(plan_with(c, 16).device_bytes == batch_bytes + 3 * 1000 * 4);
  c.geometry.state_floats = kGiB;  // all that the host has
  REQUIRE(refusal(c, 16).has_value());
  CHECK(refusal(c, 16)->parts().path == "recurrent state");
}

TEST_CASE("on the host device only offload stages blobs; they come out of the slots' memory") {
  Case c = plain_case();
  const int64_t fixed = plan_with(c, 16).device_bytes - 16 * kMiB + 256 * kMiB + 2 * kMiB;
  c.inputs.host_memory_bytes = fixed + 20 * kMiB;
  CHECK(slot_bounds(c.geometry, c.formats, c.config, c.inputs).max == 20);
  for (const Strategy strategy : {Strategy::kResident, Strategy::kCpu, Strategy::kHybrid}) {
    c.config.strategy = strategy;
    CHECK(slot_bounds(c.geometry, c.formats, c.config, c.inputs).max == 22);
  }
  c.config.strategy = Strategy::kHybrid;
  CHECK(plan_with(c, 22).pool_bytes("staging") == 0);
  CHECK(refusal(c, 23).has_value());
  c.config.strategy = Strategy::kOffload;
  CHECK(refusal(c, 22).has_value());
  c.inputs.host_memory_bytes = fixed - 1;  // all but the blobs fits
  REQUIRE(refusal(c, 4).has_value());
  CHECK(std::string(refusal(c, 4)->what()).find("staging") != std::string::npos);
}

TEST_CASE("reference numerics keep keys and values in fp32 and stage nothing") {
  Case c = plain_case();
  const int64_t bf16_bytes = plan_with(c, 16).pool_bytes("kv cache");
  c.config.numerics = Numerics::kReference;
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == 2 * bf16_bytes);
  CHECK(plan_with(c, 16).pool_bytes("staging") == 0);
}

TEST_CASE("a window bounds a layer's cache") {
  Case c = plain_case();
  for (size_t layer = 0; layer < 6; ++layer) c.geometry.kv[layer].window = 100;
  c.config.max_batch = 2;
  c.config.prefill_chunk = 130;             // 100 + 130 positions: four splits of 64
  const int64_t position = 2 * 4 * 64 * 2;  // keys and values, bf16
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == position * 2 * (6 * 256 + 2 * 1024));
  c.config.prefill_chunk = 1;
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == position * 2 * (6 * 192 + 2 * 1024));
  c.config.max_context = 192;
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == position * 2 * 8 * 192);
  c.inputs.device = Device::kCuda;
  c.inputs.device_memory_bytes = kGiB;
  c.config.max_context = 1024;
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == position * 2 * (6 * 192 + 2 * 1024));
}

TEST_CASE("compressed caches count: rings, entries, index entries, and open tokens in fp32") {
  Case c = plain_case();
  c.geometry.kv.clear();
  c.geometry.compressed = {
      {.head_dim = 64, .window = 100},
      {.head_dim = 64, .window = 100, .ratio = 4, .overlap = true, .index_dim = 16, .index_heads = 2, .index_top_k = 8},
      {.head_dim = 64, .window = 100, .ratio = 128}};
  c.config.max_batch = 3;
  c.config.max_context = 1030;
  const int64_t ring = (100 + kRewindPositions) * 64;
  const int64_t elements = 3 * ring + 257 * (64 + 16) + 8 * 64;
  const int64_t open = (8 + kRewindPositions) * 2 * 2 * (64 + 16) + (128 + kRewindPositions) * 2 * 64;
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == 3 * (elements * 2 + open * 4));
  c.config.numerics = Numerics::kReference;
  CHECK(plan_with(c, 16).pool_bytes("kv cache") == 3 * (elements + open) * 4);
  const int64_t activations = activation_bytes(c.geometry, c.config);
  c.config.max_context = 2060;  // more entries to gather, score and order
  CHECK(activation_bytes(c.geometry, c.config) > activations);
}

TEST_CASE("on a GPU groups of tokens gather the blocks that they choose, where any may choose") {
  Case c = plain_case();
  c.inputs.device = Device::kCuda;
  c.inputs.device_memory_bytes = kGiB;
  const auto beside_host = [&](int64_t top_k) {
    c.geometry.compressed.assign(c.geometry.kv.size(),
                                 {.ratio = 4, .index_dim = 16, .index_heads = 2, .index_top_k = top_k, .blocks = true});
    return plan_with(c, 16).pool_bytes("activations") - activation_bytes(c.geometry, c.config);
  };
  const int64_t tables = beside_host(256);  // 1024 positions are 256 blocks
  CHECK(compressed_group_tokens(c.geometry, c.config.max_context) >= kMaxPrefillChunk);
  CHECK(beside_host(255) == tables + 2 * kCompressedGroupBytes);
  const int64_t row = 2 * 4 * 64 * 2;
  CHECK(compressed_group_tokens(c.geometry, c.config.max_context) == kCompressedGroupBytes / ((255 * 4 + 3) * row));
  CHECK(beside_host(1) == tables + 2 * kCompressedGroupBytes);  // scores and choice are less than 7 rows
  CHECK(compressed_group_tokens(c.geometry, c.config.max_context) == kCompressedGroupBytes / (7 * row));
  c.config.max_context = c.geometry.max_positions;
  const int64_t entries = c.config.max_context / 4;
  REQUIRE((entries + 1) * 4 > 7 * row);
  CHECK(compressed_group_tokens(c.geometry, c.config.max_context) == kCompressedGroupBytes / ((entries + 1) * 4));
}

TEST_CASE("on a GPU rows that stay on disk cross in pinned memory, as fp32") {
  Case c = plain_case();
  c.inputs.device = Device::kCuda;
  c.inputs.device_memory_bytes = kGiB;
  const int64_t without = plan_with(c, 16).pool_bytes("staging");
  c.formats.row_table_bytes = kGiB;
  c.formats.row_bytes_per_token = 96;
  CHECK(plan_with(c, 16).pool_bytes("staging") == without + 64 * 96 * 4);
}

TEST_CASE("every table of cos and sin counts") {
  Case c = plain_case();
  const int64_t one = activation_bytes(c.geometry, c.config);
  c.geometry.rope_tables = 3;
  CHECK(activation_bytes(c.geometry, c.config) == one + 2 * c.config.max_context * 64 * int64_t{sizeof(float)});
}

TEST_CASE("on the host device banks and slots share one memory; a device limit bounds the slots alone") {
  Case c = plain_case();
  const int64_t fixed = plan_with(c, 16).device_bytes - 16 * kMiB + 256 * kMiB + 2 * kMiB;
  c.inputs.host_memory_bytes = fixed + 20 * kMiB;
  CHECK(slot_bounds(c.geometry, c.formats, c.config, c.inputs).max == 20);
  c.inputs.host_memory_bytes = fixed + 21 * kMiB - 1;
  CHECK(slot_bounds(c.geometry, c.formats, c.config, c.inputs).max == 20);
  c.inputs.host_memory_bytes = 4 * kGiB;
  c.config.device_memory_limit_bytes = fixed - 258 * kMiB + 33 * kMiB;
  CHECK(slot_bounds(c.geometry, c.formats, c.config, c.inputs).max == 33);
}

TEST_CASE("every pool that does not fit is named with the option to change") {
  const auto expect = [](Case c, const char* pool, const char* option) {
    const std::optional<Error> error = refusal(c, c.config.slots);
    REQUIRE(error.has_value());
    CHECK(error->parts().path == pool);
    CHECK(std::string(error->what()).find(option) != std::string::npos);
    CHECK(has_number_and_advice(*error));
  };
  Case c = plain_case();
  const MemoryPlan plan = plan_with(c, 16);
  const auto limit = [&](int64_t bytes) {
    Case limited = c;
    limited.config.device_memory_limit_bytes = bytes;
    return limited;
  };
  int64_t sum = plan.pool_bytes("dense weights");
  expect(limit(sum - 1), "dense weights", "--vram-limit");
  sum += plan.pool_bytes("kv cache");
  expect(limit(sum - 1), "kv cache", "--context");
  sum += plan.pool_bytes("activations");
  expect(limit(sum - 1), "activations", "--batch");
  sum += plan.pool_bytes("logits");
  expect(limit(sum - 1), "logits", "--batch");
  expect(limit(sum), "expert slots", "--vram-limit");
  expect(limit(sum + 16 * kMiB - 1), "expert slots", "--slots");
  CHECK(!refusal(limit(sum + 16 * kMiB), 16).has_value());
  Case small = c;
  small.config.device_memory_limit_bytes = 200 * kMiB;
  small.config.host_memory_limit_bytes = 256 * kMiB - 1;
  small.inputs.device_memory_bytes = kGiB;
  expect(small, "expert banks", "--host-memory");
  small.inputs.device = Device::kCuda;
  expect(small, "expert banks", "--host-memory");
  small.config.host_memory_limit_bytes = 256 * kMiB;
  expect(small, "staging", "--host-memory");
}

TEST_CASE("advice names the limit that binds, and none that was not given") {
  const auto advice = [](const Case& c, int64_t slots) {
    const std::optional<Error> error = refusal(c, slots);
    REQUIRE(error.has_value());
    return error->parts().action;
  };
  const auto names = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
  Case c = plain_case();
  c.inputs.device = Device::kHost;
  c.inputs.device_memory_bytes = 0;
  const MemoryPlan plan = plan_with(c, 16);
  const int64_t fixed = plan.device_bytes - plan.pool_bytes("expert slots") + plan.host_bytes;
  const int64_t dense = plan.pool_bytes("dense weights");
  for (const int64_t host : {dense - 1, fixed - 1, fixed + 16 * kMiB - 1}) {
    CAPTURE(host);
    Case limited = c;  // as the tuner passes it: the limit is in both
    limited.config.host_memory_limit_bytes = limited.inputs.host_memory_bytes = limited.inputs.device_memory_bytes =
        host;
    CHECK(names(advice(limited, 16), "raise --host-memory"));
    CHECK(!names(advice(limited, 16), "--vram-limit"));
    limited.config.host_memory_limit_bytes.reset();  // the machine has no more
    CHECK(names(advice(limited, 16), "free memory"));
    CHECK(!names(advice(limited, 16), "raise"));
    limited.inputs.host_memory_bytes = kGiB;
    limited.config.device_memory_limit_bytes = dense - 1;
    CHECK(names(advice(limited, 16), "raise --vram-limit"));
    CHECK(!names(advice(limited, 16), "--host-memory"));
  }
}

TEST_CASE("numbers out of range are refused at the bound and one past it") {
  const auto refused = [](auto change) {
    Case c = plain_case();
    change(c);
    const std::optional<Error> error = refusal(c, c.geometry.expert.experts);
    return error.has_value() && error->kind() == ErrorKind::kUsage;
  };
  CHECK(!refused([](Case& c) { c.config.max_batch = kMaxBatch; }));
  CHECK(refused([](Case& c) { c.config.max_batch = kMaxBatch + 1; }));
  CHECK(refused([](Case& c) { c.config.max_batch = 0; }));
  CHECK(!refused([](Case& c) { c.config.max_context = c.geometry.max_positions; }));
  CHECK(refused([](Case& c) { c.config.max_context = c.geometry.max_positions + 1; }));
  CHECK(refused([](Case& c) { c.config.max_context = 0; }));
  CHECK(!refused([](Case& c) { c.config.prefill_chunk = kMaxPrefillChunk; }));
  CHECK(refused([](Case& c) { c.config.prefill_chunk = kMaxPrefillChunk + 1; }));
  CHECK(refused([](Case& c) { c.config.prefill_chunk = 0; }));
  CHECK(!refused([](Case& c) { c.config.threads = kMaxThreads; }));
  CHECK(refused([](Case& c) { c.config.threads = kMaxThreads + 1; }));
  CHECK(refused([](Case& c) { c.config.threads = 0; }));
  CHECK(refused([](Case& c) { c.geometry.expert.top_k = c.geometry.expert.experts + 1; }));
  CHECK(refused([](Case& c) { c.geometry.expert.experts = kMaxExperts + 1; }));
  CHECK(refused([](Case& c) { c.geometry.layers = kMaxLayers + 1; }));
  CHECK(refused([](Case& c) { c.geometry.moe_layers.clear(); }));
  CHECK(refused([](Case& c) { c.formats.expert_bytes_max = 0; }));
  CHECK(refused([](Case& c) { c.formats.dense_bytes = -1; }));
  CHECK(refused([](Case& c) { c.geometry.hidden = -1; }));
  CHECK(!refused([](Case& c) { c.geometry.kv[0].window = int64_t{1} << 24; }));
  CHECK(refused([](Case& c) { c.geometry.kv[0].window = (int64_t{1} << 24) + 1; }));
  CHECK(refused([](Case& c) { c.geometry.kv[0].window = -1; }));
}

TEST_CASE("the default prefill chunk takes at most its share of a GPU, and no more than the context") {
  Case c = plain_case();
  c.inputs.device = c.config.device = Device::kCuda;
  c.geometry.max_positions = 1 << 20;
  c.config.max_context = 1 << 16;
  const auto chunk = [&](int64_t bytes) {
    c.inputs.device_memory_bytes = bytes;
    return default_prefill_chunk(c.geometry, c.formats, c.config, c.inputs);
  };
  CHECK(chunk(int64_t{1} << 40) == kDefaultPrefillChunk);
  CHECK(chunk(0) == 64);
  int last = 64;
  for (int64_t bytes = kGiB / 4; bytes < 64 * kGiB; bytes += kGiB / 4) {
    const int own = chunk(bytes);
    CHECK(own >= last);
    last = own;
    if (own == 64) continue;
    EngineConfig config = c.config;
    config.prefill_chunk = own;
    const int64_t left =
        bytes - c.formats.dense_bytes - c.geometry.kv_bytes_per_token() * config.max_batch * config.max_context;
    CHECK(activation_bytes(c.geometry, config) <= left / kPrefillShare);
  }
  CHECK(last == kDefaultPrefillChunk);
  c.config.max_context = 300;
  CHECK(chunk(int64_t{1} << 40) == 512);
  c.inputs.device = c.config.device = Device::kHost;
  c.config.prefill_chunk = 77;
  CHECK(chunk(int64_t{1} << 40) == 77);
}

TEST_CASE("absurd sizes neither overflow nor start") {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  Case c = plain_case();
  c.geometry = geometry_of(kMaxLayers, kMaxExperts, kMaxTopK, int64_t{1} << 24);
  c.geometry.vocab = int64_t{1} << 24;
  c.geometry.widest_heads = int64_t{1} << 24;
  c.geometry.slot_floats = int64_t{1} << 24;
  c.geometry.state_floats = kHuge / 4;
  c.geometry.kv.assign(kMaxLayers, {int64_t{1} << 24, int64_t{1} << 24});
  c.geometry.max_positions = kHuge;
  c.config.max_context = kHuge;
  c.config.max_batch = kMaxBatch;
  c.config.prefill_chunk = kMaxPrefillChunk;
  c.config.threads = kMaxThreads;
  c.inputs.host_memory_bytes = kHuge - 1;
  CHECK(activation_bytes(c.geometry, c.config) == kHuge);
  CHECK(refusal(c, kMaxExperts).has_value());
  for (const Device device : {Device::kHost, Device::kCuda}) {
    Case d = plain_case();
    d.inputs.device = device;
    d.inputs.device_memory_bytes = d.inputs.host_memory_bytes = kHuge;
    d.formats.dense_bytes = d.formats.expert_bytes_total = kHuge / 2;
    CHECK(refusal(d, 16).has_value() ==
          (device == Device::kHost));  // both halves and the rest: too much for one memory
    d.formats.dense_bytes = 0;
    d.formats.expert_bytes_max = kHuge;
    CHECK(refusal(d, 16)->parts().path == (device == Device::kHost ? "staging" : "prefill staging"));
    d.inputs.device_memory_bytes = d.inputs.host_memory_bytes = -5;
    CHECK(refusal(d, 16).has_value());
  }
}

}  // namespace ft
