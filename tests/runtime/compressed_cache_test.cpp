// Checked against: a plain list of what was written at each position.
#include "engine/runtime/compressed_cache.h"

#include <doctest/doctest.h>

#include <vector>

using namespace ft;

namespace {

// A sliding layer, one with overlap and an indexer, one without.
const std::vector<CompressedLayer> kLayers = {
    {.head_dim = 3, .window = 5},
    {.head_dim = 3, .window = 5, .ratio = 4, .overlap = true, .index_dim = 2, .index_heads = 1, .index_top_k = 3},
    {.head_dim = 3, .window = 5, .ratio = 16}};
constexpr int kLayerCount = 3;

float value_at(int kind, int layer, int sequence, int64_t place, int64_t d) {
  return static_cast<float>(((((kind * 3 + layer) * 3 + sequence) * 1000 + place) * 64) + d);
}

// Calls use(pointer, kind, place, count) for everything that a layer holds after `length` positions.
template <class Use>
void for_content(CompressedCache<float>& cache, int layer, int sequence, int64_t length, int64_t rows, Use use) {
  const CompressedLayer& shape = kLayers[static_cast<size_t>(layer)];
  for (int64_t t = std::max<int64_t>(0, length - rows); t < length; ++t) {
    use(cache.row(layer, sequence, t), 0, t, shape.head_dim);
  }
  if (shape.ratio == 0) return;
  for (int64_t e = 0; e < length / shape.ratio; ++e) {
    use(cache.entry(layer, sequence, e), 1, e, shape.head_dim);
    if (shape.index_dim > 0) use(cache.index_entry(layer, sequence, e), 2, e, shape.index_dim);
  }
  for (int64_t t = std::max<int64_t>(0, length - shape.open_ring()); t < length; ++t) {
    use(cache.open_row(layer, sequence, t), 3, t, shape.open_row_floats());
  }
}

void fill(CompressedCache<float>& cache, int sequence, int64_t length) {
  for (int layer = 0; layer < kLayerCount; ++layer) {
    for_content(cache, layer, sequence, length, cache.ring_rows(layer),
                [&](float* x, int kind, int64_t place, int64_t count) {
                  for (int64_t d = 0; d < count; ++d) x[d] = value_at(kind, layer, sequence, place, d);
                });
  }
}

bool holds(CompressedCache<float>& cache, int sequence, int from_sequence, int64_t length, int64_t rows) {
  bool same = true;
  for (int layer = 0; layer < kLayerCount; ++layer) {
    for_content(cache, layer, sequence, length, rows, [&](const float* x, int kind, int64_t place, int64_t count) {
      for (int64_t d = 0; d < count; ++d) same = same && x[d] == value_at(kind, layer, from_sequence, place, d);
    });
  }
  return same;
}

}  // namespace

TEST_CASE("shapes: rings hold a window and what may be forgotten, never more than the context") {
  const CompressedLayer &sliding = kLayers[0], &sparse = kLayers[1], &heavy = kLayers[2];
  CHECK(sliding.ring_rows(1000) == 5 + kRewindPositions);
  CHECK(sliding.ring_rows(5 + kRewindPositions) == 5 + kRewindPositions);
  CHECK(sliding.ring_rows(4 + kRewindPositions) == 4 + kRewindPositions);
  CHECK(sliding.elements(1000) == (5 + kRewindPositions) * 3);
  CHECK(sliding.open_floats() == 0);
  CHECK(sparse.entries(1003) == 250);
  CHECK(sparse.open_rows() == 8);
  CHECK(sparse.open_row_floats() == 2 * 2 * (3 + 2));
  CHECK(sparse.elements(1003) == (5 + kRewindPositions) * 3 + 250 * (3 + 2));
  CHECK(sparse.attended(1000) == 5 + 3);
  CHECK(sparse.attended(11) == 5 + 2);
  CHECK(heavy.open_rows() == 16);
  CHECK(heavy.attended(1000) == 5 + 62);
  CHECK(heavy.attended(3) == 3);
}

TEST_CASE("two sequences do not meet, and a copied one holds the same, in a cache of another context too") {
  for (const int64_t context : {40, 300}) {
    for (const int64_t length : {0, 1, 4, 5, 15, 16, 17, 39, 40}) {
      CAPTURE(context);
      CAPTURE(length);
      CompressedCache<float> from(kLayers, 2, 200), to(kLayers, 3, context);
      fill(from, 0, 200);
      fill(from, 1, length);
      fill(to, 1, 40);
      to.copy_sequence(2, from, 1, length);
      CHECK(holds(from, 0, 0, 200, 5));
      CHECK(holds(to, 1, 1, 40, 5));
      CHECK(holds(to, 2, 1, length, 5));
      to.copy_sequence(0, to, 2, length);
      CHECK(holds(to, 0, 1, length, 5));
    }
  }
}
