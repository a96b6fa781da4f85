// Checked against: a naive simulator around the naive table of tests/experts, closed forms for full and empty caches,
// the generator's known batches, and for the offline optimum every way to choose victims.
#include "tuner/replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "kernels/base/error.h"
#include "tests/experts/naive_table.h"
#include "tuner/optimum.h"

namespace ft {
namespace {

struct NaiveResult {
  std::vector<int64_t> misses;
  int64_t hits = 0, fetched = 0, cpu = 0, promoted = 0, cpu_picks = 0, experts = 0;
  int64_t predicted = 0, prefetched = 0, useful = 0;
  std::set<int64_t> cached;
};

NaiveResult simulate(const std::vector<const RoutingTrace*>& traces, const ReplayOptions& options) {
  const RoutingTrace& shape = *traces[0];
  const int distinct = std::min<int>(shape.experts, shape.top_k * static_cast<int>(traces.size()));
  NaiveTable table(shape.experts, options.slots,
                   make_slot_policy(options.cache_policy, shape.layers, options.slots, distinct));
  NaiveResult result;
  result.misses.assign(static_cast<size_t>(distinct) + 1, 0);
  for (int64_t step = 0; step < shape.tokens; ++step) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      std::map<int, int> picks;
      for (const RoutingTrace* trace : traces) {
        for (const int16_t id : trace->at(step, layer)) ++picks[id];
      }
      std::vector<int> ids;
      for (const auto& [expert, count] : picks) ids.push_back(expert);
      const LayerPlan plan = table.plan(layer, ids, options.fetch_of_misses, options.promotions);
      std::vector<int> predicted;
      for (int rank = 0; layer + 1 < shape.layers && rank < shape.predictions; ++rank) {
        for (const RoutingTrace* trace : traces) {
          const int id = trace->predicted_at(step, layer + 1)[static_cast<size_t>(rank)];
          if (id >= 0 && std::find(predicted.begin(), predicted.end(), id) == predicted.end()) predicted.push_back(id);
        }
      }
      if (options.max_prefetches == 0) predicted.clear();
      const auto copies = table.prefetch(layer + 1, predicted, options.max_prefetches);
      if (step < options.discard_steps) continue;
      result.predicted += static_cast<int64_t>(predicted.size());
      result.prefetched += static_cast<int64_t>(copies.size());
      result.useful += plan.first_uses;
      result.hits += static_cast<int64_t>(plan.hits.size() + plan.arriving.size());
      result.fetched += static_cast<int64_t>(plan.fetches.size());
      result.cpu += static_cast<int64_t>(plan.cpu.size());
      result.promoted += static_cast<int64_t>(plan.promotions.size());
      for (const int expert : plan.cpu) result.cpu_picks += picks[expert];
      result.experts += static_cast<int64_t>(ids.size());
      ++result.misses[plan.fetches.size() + plan.cpu.size()];
    }
  }
  for (const auto& entry : table.entries) {
    if (entry.key >= 0) result.cached.insert(entry.key);
  }
  return result;
}

SplitTable share(int size, double part) {
  SplitTable table;
  for (int m = 0; m <= size; ++m) table.push_back(static_cast<int>(part * m));
  return table;
}

}  // namespace

TEST_CASE("a cache that promotions fill slowly is full before steps are counted, and not by those steps") {
  constexpr int kLayers = 3, kExperts = 24, kTopK = 4, kTokens = 24, kHalf = kTokens / 2, kDiscard = 3;
  constexpr int64_t kSlots = 60;
  const RoutingTrace trace = generate_trace("uniform", kLayers, kExperts, kTopK, kTokens, 7, 0);
  // The discarded steps, the first half so many times, and the second.
  const auto walked = [&](int halves, bool second) {
    RoutingTrace walk = trace;
    walk.ids.clear();
    const auto add = [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        for (int layer = 0; layer < kLayers; ++layer) {
          const auto ids = trace.at(token, layer);
          walk.ids.insert(walk.ids.end(), ids.begin(), ids.end());
        }
      }
    };
    add(0, kDiscard);
    for (int i = 0; i < halves; ++i) add(0, kHalf);
    if (second) add(kHalf, kTokens);
    walk.tokens = static_cast<int64_t>(walk.ids.size()) / (kLayers * kTopK);
    return walk;
  };
  ReplayOptions options{kSlots, share(kTopK, 0), 1, false, kDiscard};
  const ReplayResult cold = replay({{&trace, 0, kTokens}}, options);
  // Passes after which the naive simulator's cache is full: one promotion a layer and step are 36 of 60 in the first.
  int passes = 1;
  for (;; ++passes) {
    const RoutingTrace walk = walked(passes, false);
    ReplayOptions whole = options;
    whole.discard_steps = 0;
    if (simulate({&walk}, whole).cached.size() == kSlots) break;
    REQUIRE(passes < kMaxFillPasses);
  }
  CHECK(passes > 1);
  options.fill_first = true;
  const ReplayResult warm = replay({{&trace, 0, kTokens}}, options);
  const RoutingTrace walk = walked(passes + 1, true);
  ReplayOptions last = options;
  last.discard_steps = walk.tokens - kHalf;
  const NaiveResult want = simulate({&walk}, last);
  CHECK(warm.steps == kHalf);
  CHECK(warm.misses_histogram == want.misses);
  CHECK(warm.hit_rate == doctest::Approx(static_cast<double>(want.hits) / static_cast<double>(want.experts)));
  CHECK(warm.hit_rate > cold.hit_rate + 0.1);
  // A fraction of a promotion would take a hundred passes: filled by whole ones, and counted as asked.
  options.promotions = PromotionRate::one_in(16);
  const ReplayResult slow = replay({{&trace, 0, kTokens}}, options);
  CHECK(std::count(slow.content.key_of_slot.begin(), slow.content.key_of_slot.end(), -1) == 0);
  int64_t promoted = 0;
  for (const WeightedCounts& entry : slow.distribution) promoted += entry.times * entry.counts.promoted;
  CHECK(promoted >= 1);
  CHECK(promoted <= kHalf * kLayers / 16 + 1);
  // Where fetches filled it in time nothing changes; where every expert ever used has a slot, free ones stay.
  for (const int64_t slots : {int64_t{20}, int64_t{kLayers * kExperts}}) {
    ReplayOptions fetching{slots, share(kTopK, 1), 0, false, 8};
    const ReplayResult plain = replay({{&trace, 0, kTokens}}, fetching);
    fetching.fill_first = true;
    const ReplayResult filled = replay({{&trace, 0, kTokens}}, fetching);
    if (slots == 20) CHECK(filled.misses_histogram == plain.misses_histogram);
    if (slots != 20) CHECK(filled.hit_rate >= plain.hit_rate);
  }
}

TEST_CASE("replay equals the naive simulator over presets, batches, splits and promotions") {
  int cases = 0;
  for (const char* preset : {"glm-4.7-flash", "dsv4-flat", "uniform"}) {
    for (const int batch : {1, 3}) {
      constexpr int kLayers = 3, kExperts = 24, kTopK = 4;
      std::vector<RoutingTrace> traces;
      for (int i = 0; i < batch; ++i) {
        traces.push_back(generate_trace(preset, kLayers, kExperts, kTopK, 60, 7, static_cast<uint64_t>(i)));
        draw_predictions(traces.back(), 0.7, 0.6, static_cast<uint64_t>(i));
      }
      std::vector<TraceSequence> sequences;
      std::vector<const RoutingTrace*> pointers;
      for (const RoutingTrace& trace : traces) {
        sequences.push_back({&trace, 0, trace.tokens});
        pointers.push_back(&trace);
      }
      const int distinct = std::min(kExperts, kTopK * batch);
      for (const int64_t slots : {int64_t{0}, int64_t{distinct}, int64_t{30}, int64_t{kLayers * kExperts}}) {
        for (const double part : {0.0, 0.5, 1.0}) {
          for (const int promotions : {0, 1, 3}) {
            ReplayOptions options{slots, share(distinct, part), promotions, false, 10};
            options.cache_policy = cases % 2 == 0 ? CachePolicy::kLru : CachePolicy::kLrfu;
            options.max_prefetches = cases % 3 * 2;
            CAPTURE(options.max_prefetches);
            CAPTURE(preset);
            CAPTURE(batch);
            CAPTURE(slots);
            CAPTURE(part);
            CAPTURE(promotions);
            const ReplayResult got = replay(sequences, options);
            const NaiveResult want = simulate(pointers, options);
            CHECK(got.misses_histogram == want.misses);
            CHECK(got.steps == 50);
            LayerCounts sum{};
            int64_t times = 0;
            for (const WeightedCounts& entry : got.distribution) {
              const auto n = static_cast<int>(entry.times);
              sum.hits += n * entry.counts.hits;
              sum.fetched += n * entry.counts.fetched;
              sum.cpu += n * entry.counts.cpu;
              sum.promoted += n * entry.counts.promoted;
              sum.cpu_picks += n * entry.counts.cpu_picks;
              sum.prefetched += n * entry.counts.prefetched;
              times += entry.times;
            }
            CHECK(times == 50 * kLayers);
            CHECK(sum.hits == want.hits);
            CHECK(sum.fetched == want.fetched);
            CHECK(sum.cpu == want.cpu);
            CHECK(sum.promoted == want.promoted);
            CHECK(sum.cpu_picks == want.cpu_picks);
            CHECK(sum.prefetched == want.prefetched);
            CHECK(got.predicted == want.predicted);
            CHECK(got.prefetched == want.prefetched);
            CHECK(got.prefetch_useful == want.useful);
            CHECK(got.hit_rate == doctest::Approx(static_cast<double>(want.hits) / static_cast<double>(want.experts)));
            std::set<int64_t> cached(got.content.key_of_slot.begin(), got.content.key_of_slot.end());
            cached.erase(-1);
            CHECK(cached == want.cached);
            ++cases;
          }
        }
      }
    }
  }
  CHECK(cases == 3 * 2 * 4 * 9);
}

namespace {

// Fewest misses over every choice of victims: one use after the other, `held` of at most `slots` keys.
int64_t fewest_misses(const std::vector<int>& uses, size_t at, std::set<int> held, size_t slots) {
  if (at == uses.size()) return 0;
  if (held.contains(uses[at])) return fewest_misses(uses, at + 1, held, slots);
  if (held.size() < slots) {
    held.insert(uses[at]);
    return 1 + fewest_misses(uses, at + 1, held, slots);
  }
  int64_t best = std::numeric_limits<int64_t>::max();
  for (const int victim : std::set<int>(held)) {
    std::set<int> next = held;
    next.erase(victim);
    next.insert(uses[at]);
    best = std::min(best, 1 + fewest_misses(uses, at + 1, next, slots));
  }
  return best;
}

int64_t misses_of(const ReplayResult& result) {
  int64_t misses = 0;
  for (size_t m = 0; m < result.misses_histogram.size(); ++m) {
    misses += static_cast<int64_t>(m) * result.misses_histogram[m];
  }
  return misses;
}

}  // namespace

TEST_CASE("the offline optimum equals the best of all choices of victims") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RoutingTrace trace = generate_trace("uniform", 2, 3, 1, 7, seed);
    std::vector<int> uses;
    for (int64_t token = 0; token < trace.tokens; ++token) {
      for (int layer = 0; layer < 2; ++layer) uses.push_back(layer * 3 + trace.at(token, layer)[0]);
    }
    for (const int64_t slots : {1, 2, 3, 4, 6}) {
      CAPTURE(slots);
      const OptimumResult optimum = offline_optimum(split_trace(trace, 1), slots, 0);
      CHECK(optimum.experts == 14);
      CHECK(optimum.misses == fewest_misses(uses, 0, {}, static_cast<size_t>(slots)));
    }
  }
}

TEST_CASE("no policy misses less than the offline optimum; LRFU never misses much more than LRU, and often less") {
  int64_t lru_misses = 0, lrfu_misses = 0;
  for (const char* preset : {"diverse", "mixed", "agentic", "dsv4-flat", "uniform"}) {
    const RoutingTrace trace = generate_trace(preset, 4, 64, 4, 240, 3);
    for (const int batch : {1, 2}) {
      const std::vector<TraceSequence> sequences = split_trace(trace, batch);
      for (const int64_t slots : {26, 64, 128, 256}) {
        CAPTURE(preset);
        CAPTURE(batch);
        CAPTURE(slots);
        ReplayOptions options{slots, share(4 * batch, 1.0)};
        options.cache_policy = CachePolicy::kLru;
        const int64_t lru = misses_of(replay(sequences, options));
        options.cache_policy = CachePolicy::kLrfu;
        const int64_t lrfu = misses_of(replay(sequences, options));
        const int64_t optimum = offline_optimum(sequences, slots, 0).misses;
        CHECK(optimum <= lru);
        CHECK(optimum <= lrfu);
        CHECK(static_cast<double>(lrfu) <= 1.05 * static_cast<double>(lru));
        lru_misses += lru;
        lrfu_misses += lrfu;
      }
    }
  }
  CHECK(lrfu_misses < lru_misses);
}

TEST_CASE("resident hits always; nothing hits without slots") {
  const RoutingTrace trace = generate_trace("uniform", 2, 16, 2, 40, 1);
  const std::vector<TraceSequence> one = split_trace(trace, 1);
  const ReplayResult resident = replay(one, {32, {}, 0, true, 0});
  CHECK(resident.hit_rate == 1.0);
  CHECK(resident.misses_histogram == std::vector<int64_t>{80, 0, 0});
  const ReplayResult none = replay(one, {0, {0, 0, 0}, 0, false, 0});
  CHECK(none.hit_rate == 0.0);
  CHECK(none.misses_histogram == std::vector<int64_t>{0, 0, 80});
  CHECK(none.content.key_of_slot.empty());
}

TEST_CASE("a steady preset has equal halves once the cache is warm, a cold start has not") {
  const RoutingTrace trace = generate_trace("qwen3-30b", 8, 128, 8, 600, 5);
  const SplitTable all = share(8, 1.0);
  const ReplayResult warm = replay(split_trace(trace, 1), {8 * 51, all, 0, false, 200});
  CHECK(std::abs(warm.hit_rate_halves[0] - warm.hit_rate_halves[1]) < 0.02);
  RoutingTrace beginning = trace;
  beginning.tokens = 24;
  beginning.ids.resize(static_cast<size_t>(24 * 8 * 8));
  const ReplayResult cold = replay(split_trace(beginning, 1), {8 * 51, all, 0, false, 0});
  CHECK(cold.hit_rate_halves[1] > cold.hit_rate_halves[0] + 0.05);
}

TEST_CASE("a trace splits into consecutive parts; shapes and lengths are checked") {
  const RoutingTrace trace = generate_trace("uniform", 2, 16, 2, 41, 1);
  const std::vector<TraceSequence> parts = split_trace(trace, 4);
  CHECK(parts.size() == 4);
  CHECK(parts[3].begin == 30);
  CHECK(parts[3].tokens == 10);
  const SplitTable all = share(8, 1.0);
  CHECK_NOTHROW(replay(parts, {16, all, 0, false, 9}));
  CHECK_THROWS_AS(replay(parts, {16, all, 0, false, 10}), Error);
  const RoutingTrace other = generate_trace("uniform", 2, 16, 3, 41, 1);
  CHECK_THROWS_AS(replay({{&trace, 0, 5}, {&other, 0, 5}}, {16, all, 0, false, 0}), Error);
}

}  // namespace ft
