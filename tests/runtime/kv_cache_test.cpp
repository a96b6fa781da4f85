// Checked against: a plain list of what was appended at each position, and an engine that never held more than it
// needs.
#include "engine/runtime/kv_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr int64_t kHeadDim = 3, kHeads = 2;
const std::vector<KvLayer> kLayers = {{kHeads, kHeadDim, 0}, {kHeads, kHeadDim, 70}};  // ring of 70 + 64 -> 192

float value_at(int layer, int sequence, int64_t position, int64_t head, int64_t d) {
  return static_cast<float>((((layer * 3 + sequence) * 1000 + position) * 7 + head) * 5 + d);
}

void append(KvCache<float>& cache, int sequence, int64_t position) {
  for (int layer = 0; layer < 2; ++layer) {
    for (int64_t head = 0; head < kHeads; ++head) {
      float key[kHeadDim], value[kHeadDim];
      for (int64_t d = 0; d < kHeadDim; ++d) {
        key[d] = value_at(layer, sequence, position, head, d);
        value[d] = -key[d];
      }
      cache.append(layer, sequence, position, head, key, value);
    }
  }
}

// Positions [begin, end) of a layer are there, as `from_sequence` appended them.
bool holds(const KvCache<float>& cache, int layer, int sequence, int from_sequence, int64_t begin, int64_t end) {
  const int64_t ring = cache.ring(layer), stride = cache.stride(layer);
  for (int64_t position = begin; position < end; ++position) {
    const int64_t row = ring > 0 ? position % ring : position;
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        const float expected = value_at(layer, from_sequence, position, head, d);
        if (cache.keys(layer, sequence, head)[row * stride + d] != expected) return false;
        if (cache.values(layer, sequence, head)[row * stride + d] != -expected) return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("rows of a layer: all positions, or a ring of whole splits for a window and what one step adds") {
  const auto rows = [](int64_t window, int64_t context, int64_t step) {
    return kv_positions({1, 1, window}, context, step);
  };
  CHECK(rows(0, 1000, 8) == 1000);
  CHECK(rows(64, 1000, 1) == 128);  // a step of one, but room for kRewindPositions
  CHECK(rows(64, 1000, 64) == 128);
  CHECK(rows(64, 1000, 65) == 192);
  CHECK(rows(65, 1000, 64) == 192);
  CHECK(rows(1, 1000, 512) == 576);
  CHECK(rows(64, 129, 1) == 128);
  CHECK(rows(64, 128, 1) == 128);  // no smaller than the context: no ring
  CHECK(rows(64, 127, 1) == 127);
  CHECK(rows(int64_t{1} << 24, 5000, 512) == 5000);
  CHECK(kRewindPositions >= 1);
}

TEST_CASE("a ring keeps the last positions, beside a layer that keeps all and another sequence") {
  KvCache<float> cache({kLayers, 2, 700, 30});
  CHECK(cache.ring(0) == 0);
  REQUIRE(cache.ring(1) == 192);
  for (int64_t position = 0; position < 600; ++position) {
    append(cache, 0, position);
    if (position < 100) append(cache, 1, position);
    if (position % 53 != 0) continue;
    CHECK(holds(cache, 0, 0, 0, 0, position + 1));
    CHECK(holds(cache, 1, 0, 0, std::max<int64_t>(0, position + 1 - 192), position + 1));
  }
  CHECK(holds(cache, 0, 1, 1, 0, 100));
  CHECK(holds(cache, 1, 1, 1, 0, 100));
}

TEST_CASE("a sequence is copied between caches whose rings differ, as much as both hold") {
  for (const int64_t step : {1, 30, 200, 600}) {
    KvCache<float> from({kLayers, 2, 700, step});
    for (int64_t position = 0; position < 500; ++position) append(from, 1, position);
    for (const int64_t other : {1, 200, 600}) {
      CAPTURE(step);
      CAPTURE(other);
      for (const int64_t length : {int64_t{0}, int64_t{1}, int64_t{450}, int64_t{500}}) {
        KvCache<float> to({kLayers, 2, 650, other});
        to.copy_sequence(0, from, 1, length);
        CHECK(holds(to, 0, 0, 1, 0, length));
        const int64_t ring_from = from.ring(1) > 0 ? from.ring(1) : 700, ring_to = to.ring(1) > 0 ? to.ring(1) : 650;
        const int64_t oldest = std::max({int64_t{0}, 500 - ring_from, length - ring_to});
        if (length >= 450) CHECK(holds(to, 1, 0, 1, oldest, length));
      }
    }
  }
}

TEST_CASE("a model whose windows forget goes back as far as it says, and its copies too") {
  const LoadedModel model = model_at(data_path("golden/gemma4.older"));
  EngineConfig config = config_for(model, Strategy::kCpu, 0);
  config.prefill_chunk = 16;  // a ring of 128 positions
  Engine engine(model, config, kPlenty), fresh(model, config, kPlenty);
  config.prefill_chunk = 200;  // of another size
  Engine other(model, config, kPlenty);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 300; ++i) ids.push_back((i * i * 7 + i) % 160);
  const auto last_of = [](Engine& e, int sequence, std::span<const int32_t> given) {
    const std::span<const float> logits = e.prefill(sequence, given);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const int sequence = engine.open_sequence(), copy = other.open_sequence();
  engine.prefill(sequence, ids);
  const int64_t least = 300 - kRewindPositions;
  CHECK(engine.can_rewind(sequence, 300));
  CHECK(engine.can_rewind(sequence, least));
  CHECK(!engine.can_rewind(sequence, least - 1));
  CHECK(engine.can_rewind(sequence, 0));
  engine.rewind_sequence(sequence, least + 10);
  CHECK(engine.can_rewind(sequence, least));
  CHECK(!engine.can_rewind(sequence, least - 1));  // it has held 300
  other.copy_sequence(copy, engine, sequence);
  CHECK(!other.can_rewind(copy, least - 1));
  engine.rewind_sequence(sequence, least);
  other.rewind_sequence(copy, least);
  const int plain = fresh.open_sequence();
  fresh.prefill(plain, std::span(ids).first(static_cast<size_t>(least)));
  const std::vector<int32_t> next(ids.rbegin(), ids.rbegin() + 20);
  const std::vector<float> expected = last_of(fresh, plain, next);
  CHECK(last_of(engine, sequence, next) == expected);
  CHECK(last_of(other, copy, next) == expected);
  engine.rewind_sequence(sequence, 0);  // empty: it goes on, and back, like a new one
  fresh.close_sequence(plain);
  const int another = fresh.open_sequence();
  const std::span<const int32_t> start = std::span(ids).first(50);
  CHECK(last_of(engine, sequence, start) == last_of(fresh, another, start));
  CHECK(engine.can_rewind(sequence, 1));
}
