// Checked against: machines whose best strategy is known from their parameters (closed forms), and the rules for ties
// and refusals.
#include "tuner/search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/tuner/search_bench.h"
#include "tuner/search_space.h"

namespace ft {
namespace {

constexpr int kLayers = SearchBench::kLayers, kExperts = SearchBench::kExperts, kTopK = SearchBench::kTopK;
constexpr int64_t kMiB = SearchBench::kMiB;
using Bench = SearchBench;

Strategy chosen(const SearchInput& input) { return search(input).ranked[0].config.strategy; }

const CandidatePrediction* find(const SearchResult& result, Strategy strategy) {
  for (const CandidatePrediction& candidate : result.ranked) {
    if (candidate.config.strategy == strategy) return &candidate;
  }
  return nullptr;
}

// Draws around the fitted values, as fit_cost leaves them: slope of one term scattered by `spread`.
void add_draws(ThreadModel& model, CostTerm term, double spread) {
  for (int i = 0; i < 41; ++i) {
    CostParameters draw = model.cost.cost;
    draw[term] *= 1 + spread * (i - 20) / 20.0;
    model.cost.draws.push_back(draw);
    model.dense.draws.push_back(model.dense.cost);
  }
}

}  // namespace

TEST_CASE("everything fits: resident") {
  CHECK(chosen(Bench(Device::kCuda, kLayers * kExperts, 2e-6, 200e-6, 50e-6).input) == Strategy::kResident);
  CHECK(chosen(Bench(Device::kHost, kLayers * kExperts, 20e-6, 20e-6, 50e-6).input) == Strategy::kResident);
}

TEST_CASE("everything fits: the others are offered with fewer slots, or with all when that is pinned, and a remark") {
  Bench bench(Device::kHost, kLayers * kExperts, 20e-6, 20e-6, 50e-6);
  for (const CandidatePrediction& candidate : search(bench.input).ranked) {
    CHECK((candidate.config.slots == kLayers * kExperts) == (candidate.config.strategy == Strategy::kResident));
  }
  CHECK(find(search(bench.input), Strategy::kOffload)->config.slots == kLayers * kExperts / 2);
  CHECK(search(bench.input).remarks.empty());
  bench.input.slots = kLayers * kExperts;
  bench.input.strategy = Strategy::kOffload;
  const SearchResult pinned = search(bench.input);
  CHECK(pinned.ranked[0].config.slots == kLayers * kExperts);
  REQUIRE(pinned.remarks.size() == 1);
  CHECK(pinned.remarks[0] == "offload with a slot for every expert works as resident once they are filled");
  // One slot less than all is a cache like any other.
  bench.input.slots = kLayers * kExperts - 1;
  CHECK(search(bench.input).remarks.empty());
  // When one layer's experts at the largest batch are all there are, nothing but resident is left.
  bench.input.slots.reset();
  bench.input.geometry.moe_layers = {0};
  bench.input.base.max_batch = kExperts / kTopK;
  RoutingTrace one = generate_trace("glm-4.7-flash", 1, kExperts, kTopK, 200, 3);
  bench.input.sequences = {split_trace(one, 1)};
  CHECK_THROWS_WITH_AS(search(bench.input), doctest::Contains("a slot for every expert: resident"), Error);
}

TEST_CASE("a fast link and a slow CPU: offload; a slow link and a fast CPU: cpu") {
  const SearchResult fast_link = search(Bench(Device::kCuda, 48, 2e-6, 2000e-6, 10e-6).input);
  CHECK(fast_link.ranked[0].config.strategy == Strategy::kOffload);
  CHECK(fast_link.ranked[0].config.slots == 48);
  CHECK(fast_link.ranked[0].config.fetch_of_misses == SplitTable{0, 1, 2, 3, 4});
  CHECK(find(fast_link, Strategy::kResident) == nullptr);
  CHECK(fast_link.rejected[0].strategy == Strategy::kResident);
  CHECK(fast_link.rejected[0].reason == "needs 128 slots, 48 fit");
  CHECK(chosen(Bench(Device::kCuda, 4, 2e-6, 10e-6, 5000e-6).input) == Strategy::kCpu);
}

TEST_CASE("link and CPU as fast as each other on a GPU: hybrid, with its split in the config") {
  const SearchResult result = search(Bench(Device::kCuda, 16, 1e-6, 100e-6, 100e-6).input);
  const CandidatePrediction& best = result.ranked[0];
  CHECK(best.config.strategy == Strategy::kHybrid);
  CHECK(best.config.fetch_of_misses != SplitTable{0, 1, 2, 3, 4});
  CHECK(std::any_of(best.config.fetch_of_misses.begin(), best.config.fetch_of_misses.end(),
                    [](int fetched) { return fetched > 0; }));
  // Prediction in closed form: what the replay saw, through the model, at each context.
  ReplayOptions options;
  options.slots = best.config.slots;
  options.fetch_of_misses = best.config.fetch_of_misses;
  options.promotions = PromotionRate::of_bytes(best.config.promote_bytes_per_layer, kMiB);
  options.discard_steps = 50;
  const Bench bench(Device::kCuda, 16, 1e-6, 100e-6, 100e-6);
  const ReplayResult replayed = replay(split_trace(bench.trace, 1), options);
  const ThreadModel& model = bench.input.models[0];
  REQUIRE(best.tok_s.size() == 2);
  CHECK(best.tok_s[0] ==
        doctest::Approx(1 / step_seconds(model.cost.cost, model.dense.cost, Device::kCuda, 128, replayed)));
  CHECK(best.tok_s[1] < best.tok_s[0]);
  CHECK(best.hit_rate[0] == doctest::Approx(replayed.hit_rate));
  options.content_of_middle = true;
  const ReplayResult until_middle = replay(split_trace(bench.trace, 1), options);
  CHECK((*best.replays)[0].content.key_of_slot == until_middle.content.key_of_slot);
  CHECK(until_middle.content.key_of_slot != replayed.content.key_of_slot);
}

TEST_CASE("on the host device copies gain nothing: the bank is read where it stands") {
  const SearchResult result = search(Bench(Device::kHost, 40, 20e-6, 20e-6, 30e-6).input);
  CHECK(result.ranked[0].config.strategy == Strategy::kCpu);
  CHECK(find(result, Strategy::kOffload)->score < result.ranked[0].score);
}

TEST_CASE("no candidate freezes its cache, and hybrid is neither offload nor cpu") {
  for (const double link : {1e-6, 100e-6, 10000e-6}) {
    const SearchResult result = search(Bench(Device::kCuda, 20, 1e-6, 100e-6, link).input);
    for (const CandidatePrediction& candidate : result.ranked) {
      const SplitTable& table = candidate.config.fetch_of_misses;
      const bool learns = table.size() > 2 && (table[1] > 0 || table[2] > 0);  // of four experts a token
      if (candidate.config.slots > 0 && !learns) CHECK(candidate.config.promote_bytes_per_layer > 0);
      if (candidate.config.strategy != Strategy::kHybrid) continue;
      CHECK(table != SplitTable{0, 1, 2, 3, 4});
      CHECK(table != SplitTable(5, 0));
    }
  }
}

TEST_CASE("a tie goes to the simpler strategy; outside the interval it does not") {
  // On a GPU with misses rare and cheap, cpu is a little faster than offload.
  Bench bench(Device::kCuda, 100, 20e-6, 60e-6, 65e-6);
  const SearchResult sharp = search(bench.input);
  REQUIRE(sharp.ranked[0].config.strategy != Strategy::kOffload);
  const double ratio = sharp.ranked[0].score / find(sharp, Strategy::kOffload)->score;
  REQUIRE(ratio > 1 + kTieFraction);
  add_draws(bench.input.models[0], CostTerm::kLinkPerExpert, 3 * (ratio - 1) * 20);
  const SearchResult blurred = search(bench.input);
  CHECK(blurred.ranked[0].config.strategy == Strategy::kOffload);
  CHECK(blurred.tie);
  CHECK(blurred.ranked[0].verdict.find("tie") != std::string::npos);
  CHECK(blurred.ranked[0].low[0] < blurred.ranked[0].tok_s[0]);

  bench.input.models[0].cost.draws.clear();
  bench.input.models[0].dense.draws.clear();
  add_draws(bench.input.models[0], CostTerm::kBase, 0.5);  // moves both alike: the ratio stays sharp
  CHECK(search(bench.input).ranked[0].config.strategy == sharp.ranked[0].config.strategy);
}

TEST_CASE("is_tie: nearer than the fraction, or one inside the interval of the ratio") {
  CandidatePrediction a, b;
  a.score = 100;
  b.score = 100.4;
  CHECK(is_tie(a, b));
  b.score = 101;
  CHECK(!is_tie(a, b));
  a.score_draws = {90, 100, 110};
  b.score_draws = {101, 101, 101};
  CHECK(is_tie(a, b));
  b.score_draws = {91, 101, 111};
  CHECK(!is_tie(a, b));
  CHECK(complexity(Strategy::kResident) < complexity(Strategy::kOffload));
  CHECK(complexity(Strategy::kOffload) < complexity(Strategy::kCpu));
  CHECK(complexity(Strategy::kCpu) < complexity(Strategy::kHybrid));
}

TEST_CASE("batches are predicted from merged sequences, and every table covers the largest batch") {
  Bench bench(Device::kCuda, 64, 2e-6, 50e-6, 40e-6);
  bench.input.base.max_batch = 4;
  bench.input.memory.device_memory_bytes += 64 * kMiB;
  bench.input.batches = {1, 4};
  bench.input.sequences = {split_trace(bench.trace, 1), split_trace(bench.trace, 4)};
  bench.input.discard_steps = 10;
  const SearchResult result = search(bench.input);
  CHECK(result.ranked[0].tok_s[1] > result.ranked[0].tok_s[0]);  // a batch shares the dense part and some experts
  for (const CandidatePrediction& candidate : result.ranked) {
    CHECK(candidate.tok_s.size() == 4);
    CHECK(candidate.hit_rate.size() == 2);
    if (candidate.config.strategy != Strategy::kResident) CHECK(candidate.config.fetch_of_misses.size() == 17);
  }
}

TEST_CASE("pinned knobs bind, and what cannot be is refused with the reason") {
  Bench bench(Device::kCuda, 48, 2e-6, 50e-6, 40e-6);
  SearchInput input = bench.input;
  input.strategy = Strategy::kCpu;
  for (const CandidatePrediction& candidate : search(input).ranked) {
    CHECK(candidate.config.strategy == Strategy::kCpu);
  }
  input.slots = 0;
  CHECK(search(input).ranked.size() == 1);
  input.strategy = Strategy::kOffload;
  CHECK_THROWS_WITH_AS(search(input), doctest::Contains("0 slots asked for, possible are 4 to 48"), Error);
  input.slots = 48;
  CHECK(search(input).ranked[0].config.slots == 48);
  input.slots = 49;
  CHECK_THROWS_AS(search(input), Error);
  input.slots = 4;
  CHECK_NOTHROW(search(input));
  input.strategy = Strategy::kResident;
  CHECK_THROWS_WITH_AS(search(input), doctest::Contains("needs 128 slots"), Error);
  input = bench.input;
  input.threads = 3;
  CHECK_THROWS_WITH_AS(search(input), doctest::Contains("--threads is '3'; allowed: 2"), Error);
  input.threads = 2;
  CHECK_NOTHROW(search(input));
}

TEST_CASE("on a GPU only a CPU arm has threads: resident and offload are one row each, with the thread that polls") {
  Bench bench(Device::kCuda, 48, 2e-6, 60e-6, 60e-6);
  ThreadModel more = bench.input.models[0];
  more.cost.cost.threads = more.dense.cost.threads = 8;
  more.cost.cost[CostTerm::kCpuPerExpert] = 20e-6;
  bench.input.models.push_back(more);
  const auto rows = [](const SearchResult& result, Strategy strategy, int threads) {
    return std::count_if(result.ranked.begin(), result.ranked.end(), [&](const CandidatePrediction& c) {
      return c.config.strategy == strategy && c.config.threads == threads;
    });
  };
  const SearchResult result = search(bench.input);
  CHECK(rows(result, Strategy::kOffload, 1) == 3);  // 48, 24 and 4 slots
  CHECK(rows(result, Strategy::kOffload, 2) + rows(result, Strategy::kOffload, 8) == 0);
  for (const int threads : {2, 8}) {
    CHECK(rows(result, Strategy::kCpu, threads) > 0);
    CHECK(rows(result, Strategy::kHybrid, threads) > 0);
  }
  const CandidatePrediction* best = find(result, Strategy::kHybrid);
  CHECK(best->config.threads == 8);
  CHECK(best->config.device == Device::kCuda);

  bench.input.threads = 2;
  const SearchResult pinned = search(bench.input);
  CHECK(rows(pinned, Strategy::kOffload, 2) == 3);
  CHECK(rows(pinned, Strategy::kHybrid, 8) == 0);

  Bench roomy(Device::kCuda, kLayers * kExperts, 2e-6, 200e-6, 50e-6);
  roomy.input.models.push_back(more);
  CHECK(rows(search(roomy.input), Strategy::kResident, 1) == 1);
  Bench host(Device::kHost, 48, 20e-6, 20e-6, 50e-6);
  host.input.models.push_back(more);
  for (const int threads : {2, 8}) CHECK(rows(search(host.input), Strategy::kOffload, threads) > 0);
}

}  // namespace ft
