// Checked against: a naive model (a vector of keys in order of use, searched linearly) over random sequences, and
// cases worked out by hand.
#include "engine/experts/slot_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

std::vector<int> fetch_all(int distinct) {
  std::vector<int> table(static_cast<size_t>(distinct) + 1);
  for (int m = 0; m <= distinct; ++m) table[static_cast<size_t>(m)] = m;
  return table;
}

std::vector<int> fetch_none(int distinct) { return std::vector<int>(static_cast<size_t>(distinct) + 1, 0); }

// What the policy says, in the simplest words: slots in order of use, each with a key, a pin and the step that filled
// it.
struct NaiveTable {
  struct Entry {
    int64_t slot = 0, key = -1;
    bool pinned = false;
    int filled_in = 0;
  };
  explicit NaiveTable(int64_t slots) {
    for (int64_t s = 0; s < slots; ++s) entries.push_back({s});
  }

  int find(int64_t key) const {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].key == key) return static_cast<int>(i);
    }
    return -1;
  }
  int64_t use(int index, int64_t key, bool fills) {
    Entry entry = entries[static_cast<size_t>(index)];
    entries.erase(entries.begin() + index);
    entry.key = key;
    entry.pinned = true;
    if (fills) entry.filled_in = step;
    entries.push_back(entry);
    return entry.slot;
  }

  LayerPlan plan(int layer, int experts, const std::vector<int>& distinct, const std::vector<int>& table,
                 int max_promotions) {
    if (layer <= last_layer || step == 0) ++step;
    last_layer = layer;
    for (Entry& entry : entries) entry.pinned = false;
    LayerPlan out;
    std::vector<int> misses;
    for (const int expert : distinct) {
      const int64_t key = static_cast<int64_t>(layer) * experts + expert;
      const int index = find(key);
      if (index >= 0) {
        out.hits.push_back({expert, use(index, key, false)});
      } else {
        misses.push_back(expert);
      }
    }
    const int fetches = entries.empty() ? 0 : table[misses.size()];
    for (size_t i = 0; i < misses.size(); ++i) {
      const int64_t key = static_cast<int64_t>(layer) * experts + misses[i];
      if (static_cast<int>(i) < fetches) {
        out.fetches.push_back({misses[i], use(0, key, true)});
        continue;
      }
      out.cpu.push_back(misses[i]);
      if (entries.empty() || static_cast<int>(out.promotions.size()) >= max_promotions) continue;
      if (entries[0].pinned || entries[0].filled_in == step) {
        max_promotions = 0;
        continue;
      }
      out.promotions.push_back({misses[i], use(0, key, true)});
    }
    return out;
  }

  std::vector<Entry> entries;
  int step = 0, last_layer = -1;
};

std::vector<std::pair<int, int64_t>> pairs(const std::vector<ExpertSlot>& list) {
  std::vector<std::pair<int, int64_t>> result;
  for (const ExpertSlot& entry : list) result.emplace_back(entry.expert, entry.slot);
  return result;
}

std::vector<int> random_distinct(Random& random, int experts, int count) {
  std::set<int> chosen;
  while (static_cast<int>(chosen.size()) < count) {
    // Squared, so that some experts come back often.
    const double u = random.uniform();
    chosen.insert(static_cast<int>(u * u * experts));
  }
  return {chosen.begin(), chosen.end()};
}

void check_same(const LayerPlan& got, const LayerPlan& want) {
  CHECK(pairs(got.hits) == pairs(want.hits));
  CHECK(pairs(got.fetches) == pairs(want.fetches));
  CHECK(got.cpu == want.cpu);
  CHECK(pairs(got.promotions) == pairs(want.promotions));
}

// A plan's own promises, whatever the history.
void check_plan(const LayerPlan& plan, const std::vector<int>& distinct) {
  std::vector<int> all = plan.cpu;
  std::set<int64_t> slots;
  for (const auto* list : {&plan.hits, &plan.fetches}) {
    for (const ExpertSlot& entry : *list) {
      all.push_back(entry.expert);
      CHECK(slots.insert(entry.slot).second);
    }
  }
  for (const ExpertSlot& entry : plan.promotions) {
    CHECK(std::count(plan.cpu.begin(), plan.cpu.end(), entry.expert) == 1);
    CHECK(slots.insert(entry.slot).second);  // never the slot of a hit or fetch of this layer
  }
  std::sort(all.begin(), all.end());
  CHECK(all == distinct);
}

}  // namespace

TEST_CASE("slot table equals the naive model over random sequences") {
  constexpr int kLayers = 5, kExperts = 12, kDistinct = 4;
  for (const int64_t slots : {int64_t{0}, int64_t{kDistinct}, int64_t{kDistinct + 1}, int64_t{17}, int64_t{40},
                              int64_t{kLayers * kExperts}}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      CAPTURE(slots);
      CAPTURE(seed);
      Random random(seed * 977 + static_cast<uint64_t>(slots));
      SlotTable table(kLayers, kExperts, slots);
      NaiveTable naive(slots);
      LayerPlan plan;
      plan.reserve(kDistinct);
      for (int step = 0; step < 120; ++step) {
        for (int layer = 0; layer < kLayers; ++layer) {
          const int count = 1 + static_cast<int>(random.below(kDistinct));
          const std::vector<int> distinct = random_distinct(random, kExperts, count);
          std::vector<int> split = fetch_none(kDistinct);
          for (size_t m = 1; m < split.size(); ++m) split[m] = static_cast<int>(random.below(m + 1));
          const int promotions = static_cast<int>(random.below(4));
          const LayerPlan want = naive.plan(layer, kExperts, distinct, split, promotions);
          table.plan(layer, distinct, split, promotions, plan);
          table.check_integrity();
          check_same(plan, want);
          check_plan(plan, distinct);
        }
      }
      const SlotTable::Content content = table.content();
      for (size_t i = 0; i < naive.entries.size(); ++i) {
        CHECK(content.slots_by_age[i] == naive.entries[i].slot);
        CHECK(content.key_of_slot[static_cast<size_t>(naive.entries[i].slot)] == naive.entries[i].key);
      }
    }
  }
}

TEST_CASE("without slots every expert runs from the bank") {
  SlotTable table(2, 8, 0);
  LayerPlan plan;
  plan.reserve(3);
  const std::vector<int> distinct = {1, 4, 7};
  table.plan(0, distinct, fetch_all(3), 3, plan);
  CHECK(plan.cpu == distinct);
  CHECK(plan.hits.empty());
  CHECK(plan.fetches.empty());
  CHECK(plan.promotions.empty());
  table.check_integrity();
}

TEST_CASE("with slots for all experts each one misses once") {
  SlotTable table(2, 3, 6);
  LayerPlan plan;
  plan.reserve(3);
  const std::vector<int> distinct = {0, 1, 2};
  for (int step = 0; step < 3; ++step) {
    for (int layer = 0; layer < 2; ++layer) {
      table.plan(layer, distinct, fetch_all(3), 0, plan);
      CHECK(plan.fetches.size() == (step == 0 ? 3u : 0u));
    }
  }
  table.fill_in_order();
  table.check_integrity();
  table.plan(1, distinct, {}, 0, plan);  // no split table needed when nothing misses
  CHECK(pairs(plan.hits) == std::vector<std::pair<int, int64_t>>{{0, 3}, {1, 4}, {2, 5}});
}

TEST_CASE("a split that fetches nothing still warms up through promotions") {
  SlotTable table(1, 8, 4);
  LayerPlan plan;
  plan.reserve(2);
  const std::vector<int> distinct = {2, 5};
  table.plan(0, distinct, fetch_none(2), 1, plan);
  CHECK(plan.cpu == distinct);
  CHECK(pairs(plan.promotions) == std::vector<std::pair<int, int64_t>>{{2, 0}});
  table.plan(0, distinct, fetch_none(2), 1, plan);
  CHECK(pairs(plan.hits) == std::vector<std::pair<int, int64_t>>{{2, 0}});
  CHECK(pairs(plan.promotions) == std::vector<std::pair<int, int64_t>>{{5, 1}});
  table.plan(0, distinct, fetch_none(2), 1, plan);
  CHECK(plan.hits.size() == 2);
}

TEST_CASE("promotions take neither this layer's slots nor one that was filled earlier in the step") {
  SlotTable table(3, 8, 3);
  LayerPlan plan;
  plan.reserve(3);
  const std::vector<int> first = {0, 1}, second = {2, 3};
  table.plan(0, first, fetch_all(3), 0, plan);  // slots 0 and 1 filled in this step, slot 2 empty
  table.plan(1, second, fetch_none(3), 2, plan);
  CHECK(pairs(plan.promotions) == std::vector<std::pair<int, int64_t>>{{2, 2}});
  table.plan(2, first, fetch_none(3), 2, plan);  // all three were filled in this step
  CHECK(plan.promotions.empty());
  table.plan(0, first, fetch_none(3), 2, plan);  // next step: both hit
  CHECK(plan.hits.size() == 2);
  table.plan(1, std::vector<int>{4, 5, 6}, fetch_none(3), 3, plan);  // slots 0, 1 were used, not filled: may be taken
  CHECK(plan.promotions.size() == 3);
  table.check_integrity();
}

TEST_CASE("content comes back as it was, and nonsense is refused without a change") {
  constexpr int kLayers = 3, kExperts = 6;
  SlotTable table(kLayers, kExperts, 7), copy(kLayers, kExperts, 7);
  LayerPlan plan, copied;
  plan.reserve(3);
  copied.reserve(3);
  Random random(5);
  for (int i = 0; i < 20; ++i) table.plan(i % kLayers, random_distinct(random, kExperts, 2), fetch_all(3), 0, plan);
  copy.restore(table.content());
  copy.check_integrity();
  CHECK(copy.content().key_of_slot == table.content().key_of_slot);
  CHECK(copy.content().slots_by_age == table.content().slots_by_age);
  for (int i = 20; i < 60; ++i) {  // i = 20 is layer 2, so both tables begin a step at i = 21
    const std::vector<int> distinct = random_distinct(random, kExperts, 3);
    table.plan(i % kLayers, distinct, fetch_all(3), 0, plan);
    copy.plan(i % kLayers, distinct, fetch_all(3), 0, copied);
    check_same(copied, plan);
  }

  const SlotTable::Content good = table.content();
  const auto refused = [&](auto change) {
    SlotTable::Content bad = good;
    change(bad);
    CHECK_THROWS_AS(table.restore(bad), Error);
    CHECK(table.content().key_of_slot == good.key_of_slot);
    CHECK(table.content().slots_by_age == good.slots_by_age);
  };
  refused([](auto& c) { c.key_of_slot.pop_back(); });
  refused([](auto& c) { c.slots_by_age.push_back(0); });
  refused([](auto& c) { c.key_of_slot[0] = kLayers * kExperts; });
  refused([](auto& c) { c.key_of_slot[0] = -2; });
  refused([](auto& c) { c.key_of_slot[0] = c.key_of_slot[1]; });
  refused([](auto& c) { c.slots_by_age[0] = c.slots_by_age[1]; });
  refused([](auto& c) { c.slots_by_age[0] = 7; });
  SlotTable::Content edge = good;
  edge.key_of_slot[0] = -1;  // an empty slot is content too
  table.restore(edge);
  table.check_integrity();
  table.clear();
  table.check_integrity();
  CHECK(!table.contains(0, 0));
  CHECK(table.slots() == 7);
}

TEST_CASE("fill_in_order fills the first experts when there are fewer slots") {
  SlotTable table(2, 4, 5);
  table.fill_in_order();
  table.check_integrity();
  CHECK(table.contains(0, 3));
  CHECK(table.contains(1, 0));
  CHECK(!table.contains(1, 1));
}

}  // namespace ft
