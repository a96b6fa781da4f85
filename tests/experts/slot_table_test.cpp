// Checked against: a naive model (naive_table.h) over random sequences and over all sequences of a small table, sums of
// aged uses in floating point, and cases worked out by hand.
#include "engine/experts/slot_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/base/use_priority.h"
#include "tests/experts/naive_table.h"

namespace ft {
namespace {

std::vector<int> fetch_all(int distinct) {
  std::vector<int> table(static_cast<size_t>(distinct) + 1);
  for (int m = 0; m <= distinct; ++m) table[static_cast<size_t>(m)] = m;
  return table;
}

std::vector<int> fetch_none(int distinct) { return std::vector<int>(static_cast<size_t>(distinct) + 1, 0); }

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
  CHECK(pairs(got.arriving) == pairs(want.arriving));
  CHECK(got.first_uses == want.first_uses);
  CHECK(pairs(got.fetches) == pairs(want.fetches));
  CHECK(got.cpu == want.cpu);
  CHECK(pairs(got.promotions) == pairs(want.promotions));
}

// A plan's own promises, whatever the history.
void check_plan(const LayerPlan& plan, const std::vector<int>& distinct) {
  std::vector<int> all = plan.cpu;
  std::set<int64_t> slots;
  for (const auto* list : {&plan.hits, &plan.arriving, &plan.fetches}) {
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
  int64_t arrived = 0, first_uses = 0, promoted = 0;
  for (const int64_t slots : {int64_t{0}, int64_t{kDistinct}, int64_t{kDistinct + 1}, int64_t{17}, int64_t{40},
                              int64_t{kLayers * kExperts}}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      CAPTURE(slots);
      CAPTURE(seed);
      Random random(seed * 977 + static_cast<uint64_t>(slots));
      const SlotPolicy policy{seed % 2 == 0 ? 0 : kMinHalfLifeLog2 + static_cast<int>(seed), kDistinct};
      SlotTable table(kLayers, kExperts, slots, policy);
      NaiveTable naive(kExperts, slots, policy);
      LayerPlan plan;
      plan.reserve(kDistinct);
      std::vector<ExpertSlot> copies;
      for (int step = 0; step < 120; ++step) {
        for (int layer = 0; layer < kLayers; ++layer) {
          const int count = 1 + static_cast<int>(random.below(kDistinct));
          const std::vector<int> distinct = random_distinct(random, kExperts, count);
          std::vector<int> split = fetch_none(kDistinct);
          for (size_t m = 1; m < split.size(); ++m) split[m] = static_cast<int>(random.below(m + 1));
          const auto promotions = PromotionRate::of_experts(static_cast<double>(random.below(64)) / 16);
          const LayerPlan want = naive.plan(layer, distinct, split, promotions);
          table.plan(layer, distinct, split, promotions, plan);
          table.check_integrity();
          check_same(plan, want);
          check_plan(plan, distinct);
          arrived += static_cast<int64_t>(plan.arriving.size());
          first_uses += plan.first_uses;
          promoted += static_cast<int64_t>(plan.promotions.size());
          if (layer + 1 == kLayers || random.below(4) == 0) continue;
          std::vector<int> predicted = random_distinct(random, kExperts, static_cast<int>(random.below(5)));
          if (!predicted.empty()) predicted.push_back(predicted[0]);
          const int most = static_cast<int>(random.below(4));
          const std::vector<ExpertSlot> ahead = naive.prefetch(layer + 1, predicted, most);
          table.prefetch(layer + 1, predicted, most, copies);
          table.check_integrity();
          CHECK(pairs(copies) == pairs(ahead));
        }
      }
      const SlotTable::Content content = table.content();
      CHECK(content.plans == naive.plans);
      for (size_t slot = 0; slot < naive.entries.size(); ++slot) {
        CHECK(content.key_of_slot[slot] == naive.entries[slot].key);
      }
      for (size_t key = 0; key < content.priority_of_key.size(); ++key) {
        CHECK(content.priority_of_key[key] == naive.priority_of(static_cast<int64_t>(key)));
      }
    }
  }
  CHECK(arrived > 500);  // the sequences do what they are there for
  CHECK(first_uses > arrived);
  CHECK(promoted > 500);
}

// Two layers of three experts, two steps: every choice of one or two experts a layer, every prediction of up to two.
TEST_CASE("slot table equals the naive model over all sequences of a small table") {
  constexpr int kLayers = 2, kExperts = 3, kDistinct = 2;
  const std::vector<std::vector<int>> choices = {{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}};
  const std::vector<std::vector<int>> predictions = {{}, {0}, {1}, {2}, {1, 0}, {2, 0}, {1, 2}};
  const std::vector<int> split = {0, 1, 1};  // of two misses one is fetched, the other promoted
  LayerPlan plan;
  plan.reserve(kDistinct);
  std::vector<ExpertSlot> copies;
  int64_t sequences = 0, different = 0;
  for (const int half_life : {0, kMinHalfLifeLog2 + 1}) {
    for (int64_t slots = kDistinct; slots <= 5; ++slots) {
      const SlotPolicy policy{half_life, kDistinct};
      for (size_t code = 0; code < 6 * 6 * 6 * 6 * 7 * 7; ++code, ++sequences) {
        SlotTable table(kLayers, kExperts, slots, policy);
        NaiveTable naive(kExperts, slots, policy);
        size_t rest = code;
        const auto take = [&rest](size_t count) {
          const size_t digit = rest % count;
          rest /= count;
          return digit;
        };
        for (int call = 0; call < 4; ++call) {
          const std::vector<int>& distinct = choices[take(6)];
          const LayerPlan want = naive.plan(call % 2, distinct, split, 1);
          table.plan(call % 2, distinct, split, 1, plan);
          bool same = pairs(plan.hits) == pairs(want.hits) && pairs(plan.arriving) == pairs(want.arriving) &&
                      pairs(plan.fetches) == pairs(want.fetches) && plan.cpu == want.cpu &&
                      pairs(plan.promotions) == pairs(want.promotions) && plan.first_uses == want.first_uses;
          if (call % 2 == 0) {
            const std::vector<int>& predicted = predictions[take(7)];
            const std::vector<ExpertSlot> ahead = naive.prefetch(1, predicted, 2);
            table.prefetch(1, predicted, 2, copies);
            same = same && pairs(copies) == pairs(ahead);
          }
          different += same ? 0 : 1;
        }
        table.check_integrity();
      }
    }
  }
  CHECK(sequences == 2 * 4 * 63504);
  CHECK(different == 0);
}

TEST_CASE("priorities order experts as sums of aged uses do") {
  const UseBonusTable table = make_use_bonus_table();
  for (size_t i = 0; i < UseBonusTable::kSize; ++i) {
    CHECK(std::abs(table.bonus[i] - 65536 * std::log2(1 + std::exp2(-static_cast<double>(i) / 16))) <= 0.51);
  }
  for (const int log2 : {kMinHalfLifeLog2, 12, 20}) {
    const double half_life = std::exp2(log2);
    Random random(static_cast<uint64_t>(log2));
    uint64_t priority = 0, now = 1000;
    double sum = 0;
    for (int use = 0; use < 400; ++use) {
      const auto gap = static_cast<uint64_t>(random.uniform() * random.uniform() * 6 * half_life);
      now += gap;
      sum = sum * std::exp2(-static_cast<double>(gap) / half_life) + 1;
      priority = priority_after_use(priority, now, log2, table);
      // Each use rounds its distance to the last one down by less than 1/16 half-life; what that adds decays with it.
      const double exact = static_cast<double>(now) + half_life * std::log2(sum);
      CHECK(std::abs(static_cast<double>(priority) - exact) <= half_life / 14 + 2);
      CHECK(priority >= now);
      CHECK(priority <= max_priority(now >> kUnitsPerPlanLog2, log2));
    }
  }
  CHECK(priority_after_use(500, 700, 0, table) == 700);  // LRU
  CHECK(priority_after_use(0, 700, 10, table) == 700);   // first use
  CHECK(priority_after_use(700, 700, 10, table) == 700 + 1024);
  CHECK(use_time(3, 62) == 3 * 64 + 62);
  CHECK(use_time(3, 64) == 3 * 64 + 63);
  CHECK(victim_stamp(max_priority(kMaxPlans, kMaxHalfLifeLog2), (1 << 22) - 1, 22) < kHeldStamp);
  CHECK(max_priority(kMaxPlans, kMaxHalfLifeLog2) < uint64_t{1} << 42);
}

TEST_CASE("policies have names") {
  for (const char* name : {"lru", "lrfu"}) CHECK(cache_policy_name(cache_policy_by_name(name).value()) == name);
  for (const char* name : {"off", "router"}) CHECK(look_ahead_name(look_ahead_by_name(name).value()) == name);
  CHECK(!cache_policy_by_name("lfu").has_value());
  CHECK(!look_ahead_by_name("on").has_value());
}

TEST_CASE("the half-life follows the slots and has a lower bound") {
  CHECK(make_slot_policy(CachePolicy::kLru, 48, 600, 8).half_life_log2 == 0);
  // 48 layers: 8 steps * log 2 * 48 * 64 = 17,035 units; 2^14 is nearest in the logarithm.
  CHECK(make_slot_policy(CachePolicy::kLrfu, 48, 614, 8).half_life_log2 == 14);
  CHECK(make_slot_policy(CachePolicy::kLrfu, 48, 12288, 10).half_life_log2 == 17);  // 51 steps: 109,023
  CHECK(make_slot_policy(CachePolicy::kLrfu, 1, 1, 1).half_life_log2 == 8);         // 355
  CHECK(make_slot_policy(CachePolicy::kLrfu, 48, 614, 8).max_distinct == 8);
}

TEST_CASE("an expert that was used often outlives one that was used last") {
  for (const int half_life : {0, 10}) {
    SlotTable table(1, 4, 2, {half_life, 1});
    LayerPlan plan;
    plan.reserve(1);
    for (const int expert : {0, 0, 0, 0, 1, 2}) table.plan(0, std::vector<int>{expert}, fetch_all(1), 0, plan);
    CHECK(table.contains(0, 0) == (half_life > 0));
    CHECK(table.contains(0, 1) == (half_life == 0));
  }
}

TEST_CASE("of the misses those used before are fetched and promoted first") {
  SlotTable table(1, 8, 4, {10, 4});
  LayerPlan plan;
  plan.reserve(4);
  const std::vector<int> most = {6, 7}, others = {0, 1, 2, 3};
  for (int i = 0; i < 3; ++i) table.plan(0, most, fetch_all(4), 0, plan);
  table.plan(0, others, fetch_all(4), 0, plan);  // all four slots
  table.plan(0, std::vector<int>{4, 5, 6, 7}, {std::vector<int>{0, 1, 1, 1, 1}}, 0, plan);
  CHECK(plan.fetches.size() == 1);
  CHECK(plan.fetches[0].expert == 7);  // the later place in its layer: a later use
  CHECK(plan.cpu == std::vector<int>{6, 4, 5});
}

TEST_CASE("a prefetch is found arriving, spares what is predicted, and leaves room for fetches") {
  SlotTable table(3, 8, 5, {0, 2});
  LayerPlan plan;
  plan.reserve(2);
  std::vector<ExpertSlot> copies;
  table.plan(0, std::vector<int>{0, 1}, fetch_all(2), 0, plan);
  table.prefetch(1, std::vector<int>{3, 5, 3, 7, 2}, 8, copies);  // slots 2, 3, 4: then no slot but 0 and 1
  CHECK(pairs(copies) == std::vector<std::pair<int, int64_t>>{{3, 2}, {5, 3}, {7, 4}});
  table.check_integrity();
  table.plan(1, std::vector<int>{4, 5}, fetch_all(2), 0, plan);
  CHECK(pairs(plan.arriving) == std::vector<std::pair<int, int64_t>>{{5, 3}});
  CHECK(plan.hits.empty());
  CHECK(plan.first_uses == 1);
  CHECK(pairs(plan.fetches) == std::vector<std::pair<int, int64_t>>{{4, 0}});  // 3 and 7 may still be under way
  table.plan(2, std::vector<int>{0, 1}, fetch_all(2), 0, plan);
  CHECK(pairs(plan.fetches) == std::vector<std::pair<int, int64_t>>{{0, 1}, {1, 0}});  // not of 3 and 7; 5 is newer
  table.plan(0, std::vector<int>{0, 1}, fetch_all(2), 0, plan);
  CHECK(pairs(plan.fetches) ==
        std::vector<std::pair<int, int64_t>>{{1, 2}, {0, 4}});  // next step: never used; expert 1 was the later use
  table.plan(1, std::vector<int>{5}, fetch_all(2), 0, plan);
  CHECK(plan.hits.size() == 1);
  CHECK(plan.first_uses == 0);
  table.check_integrity();
}

TEST_CASE("a prefetch that is used in a later step is a hit, and counts once") {
  SlotTable table(2, 8, 8, {0, 2});
  LayerPlan plan;
  plan.reserve(2);
  std::vector<ExpertSlot> copies;
  table.plan(0, std::vector<int>{0}, fetch_all(2), 0, plan);
  table.prefetch(1, std::vector<int>{3}, 1, copies);
  table.plan(1, std::vector<int>{2}, fetch_all(2), 0, plan);
  CHECK(plan.first_uses == 0);
  for (int step = 0; step < 2; ++step) {
    table.plan(1, std::vector<int>{3}, fetch_all(2), 0, plan);
    CHECK(plan.hits.size() == 1);
    CHECK(plan.arriving.empty());
    CHECK(plan.first_uses == (step == 0 ? 1 : 0));
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
  SlotTable table(1, 8, 4, {0, 2});
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
  SlotTable table(3, 8, 3, {0, 1});
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
  CHECK(plan.promotions.size() == 2);                                // a slot is left to fetches
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
  CHECK(copy.content().priority_of_key == table.content().priority_of_key);
  CHECK(copy.content().plans == table.content().plans);
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
    CHECK(table.content().priority_of_key == good.priority_of_key);
    CHECK(table.content().plans == good.plans);
  };
  refused([](auto& c) { c.key_of_slot.pop_back(); });
  refused([](auto& c) { c.priority_of_key.push_back(0); });
  refused([](auto& c) { c.plans = kMaxPlans + 1; });
  refused([](auto& c) { c.key_of_slot[0] = kLayers * kExperts; });
  refused([](auto& c) { c.key_of_slot[0] = -2; });
  refused([](auto& c) { c.key_of_slot[0] = c.key_of_slot[1]; });
  refused([](auto& c) { c.priority_of_key[3] = max_priority(c.plans, 0) + 1; });
  SlotTable::Content edge = good;
  edge.key_of_slot[0] = -1;  // an empty slot is content too
  edge.priority_of_key[3] = max_priority(edge.plans, 0);
  table.restore(edge);
  table.check_integrity();
  edge.priority_of_key.clear();
  edge.plans = kMaxPlans;
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
