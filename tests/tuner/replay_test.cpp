// Checked against: a naive simulator written from the policy's words (a list of keys in order of use), closed forms
// for full and empty caches, and the generator's known batches.
#include "tuner/replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/base/error.h"

namespace ft {
namespace {

struct NaiveResult {
  std::vector<int64_t> misses;
  int64_t hits = 0, fetched = 0, cpu = 0, promoted = 0, cpu_picks = 0, experts = 0;
  std::set<int64_t> cached;
};

// One list of (layer, expert) keys, oldest first; empty slots are negative keys.
NaiveResult simulate(const std::vector<const RoutingTrace*>& traces, const ReplayOptions& options) {
  const RoutingTrace& shape = *traces[0];
  NaiveResult result;
  result.misses.assign(
      static_cast<size_t>(std::min<int>(shape.experts, shape.top_k * static_cast<int>(traces.size()))) + 1, 0);
  std::vector<int64_t> order;
  for (int64_t s = 0; s < options.slots; ++s) order.push_back(options.start_full ? s : -1 - s);
  for (int64_t step = 0; step < shape.tokens; ++step) {
    std::set<int64_t> filled;
    for (int layer = 0; layer < shape.layers; ++layer) {
      std::map<int, int> uses;
      for (const RoutingTrace* trace : traces) {
        for (const int16_t id : trace->at(step, layer)) ++uses[id];
      }
      std::vector<int> missing;
      std::set<int64_t> pinned;
      const bool counted = step >= options.discard_steps;
      for (const auto& [expert, picks] : uses) {
        const int64_t key = static_cast<int64_t>(layer) * shape.experts + expert;
        const auto found = std::find(order.begin(), order.end(), key);
        if (found == order.end()) {
          missing.push_back(expert);
          continue;
        }
        order.erase(found);
        order.push_back(key);
        pinned.insert(key);
        if (counted) ++result.hits;
      }
      if (counted) {
        ++result.misses[missing.size()];
        result.experts += static_cast<int64_t>(uses.size());
      }
      int fetches = options.slots == 0 || missing.empty() ? 0 : options.fetch_of_misses[missing.size()];
      int promotions = options.slots == 0 ? 0 : options.max_promotions;
      for (const int expert : missing) {
        const int64_t key = static_cast<int64_t>(layer) * shape.experts + expert;
        const bool fetch = fetches-- > 0;
        if (counted) {
          ++(fetch ? result.fetched : result.cpu);
          if (!fetch) result.cpu_picks += uses[expert];
        }
        if (!fetch) {
          if (promotions <= 0) continue;
          if (pinned.contains(order.front()) || filled.contains(order.front())) {
            promotions = 0;
            continue;
          }
          --promotions;
          if (counted) ++result.promoted;
        }
        order.erase(order.begin());
        order.push_back(key);
        pinned.insert(key);
        filled.insert(key);
      }
    }
  }
  for (const int64_t key : order) {
    if (key >= 0) result.cached.insert(key);
  }
  return result;
}

SplitTable share(int size, double part) {
  SplitTable table;
  for (int m = 0; m <= size; ++m) table.push_back(static_cast<int>(part * m));
  return table;
}

}  // namespace

TEST_CASE("replay equals the naive simulator over presets, batches, splits and promotions") {
  int cases = 0;
  for (const char* preset : {"glm-4.7-flash", "dsv4-flat", "uniform"}) {
    for (const int batch : {1, 3}) {
      constexpr int kLayers = 3, kExperts = 24, kTopK = 4;
      std::vector<RoutingTrace> traces;
      for (int i = 0; i < batch; ++i) {
        traces.push_back(generate_trace(preset, kLayers, kExperts, kTopK, 60, 7, static_cast<uint64_t>(i)));
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
              times += entry.times;
            }
            CHECK(times == 50 * kLayers);
            CHECK(sum.hits == want.hits);
            CHECK(sum.fetched == want.fetched);
            CHECK(sum.cpu == want.cpu);
            CHECK(sum.promoted == want.promoted);
            CHECK(sum.cpu_picks == want.cpu_picks);
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
