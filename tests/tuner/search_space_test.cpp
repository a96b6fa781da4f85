// Checked against: exhaustive search over every split, promotion budget, mechanism and prefetch count at every slot
// count (brute force), and the rules for what may be tried, one by one.
#include "tuner/search_space.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/tuner/search_bench.h"
#include "tuner/search_prune.h"

namespace ft {
namespace {

// The copy engine is known, the trace predicts, and there are cores for a proxy.
void offer_everything(SearchBench& bench, double engine_fixed, double engine_per_expert) {
  CostParameters& cost = bench.input.models[0].cost.cost;
  cost[CostTerm::kCopyEngineFixed] = engine_fixed;
  cost[CostTerm::kCopyEnginePerExpert] = engine_per_expert;
  cost[CostTerm::kLookAhead] = 1e-6;
  bench.input.cores = 16;
  bench.input.base.weights.synthetic = true;
  draw_predictions(bench.trace, 0.8, 0.7, 5);
}

// Best score of everything that may be tried at the same slot counts, without any pruning.
double exhaustive(const SearchInput& input) {
  Predictor predictor(input);
  const int size = predictor.max_distinct();
  const SlotBounds bounds = bounds_of(input, Strategy::kHybrid);
  double best = 0;
  const auto consider = [&](Strategy strategy, const SlotUse& use) {
    const ThreadModel& model = input.models[0];
    for (const FetchMechanism mechanism : mechanisms(input, strategy, model)) {
      for (const int prefetches : prefetch_counts(input, strategy, use.slots, size)) {
        SlotUse with = use;
        with.max_prefetches = prefetches;
        best = std::max(best, predictor.score({strategy, 0, 2, with, mechanism}));
      }
    }
  };
  consider(Strategy::kCpu, {0, constant_share(size, 0), 0, false, 0});
  for (const int64_t slots : {bounds.max, bounds.max / 2, bounds.min}) {
    consider(Strategy::kOffload, {slots, constant_share(size, 1), 0, false, 0});
    for (const PromotionRate promotions : kPromotionRates) {
      consider(Strategy::kCpu, {slots, constant_share(size, 0), promotions, false, 0});
    }
    for (const Policy& policy : hybrid_policies(hybrid_splits(input, input.models[0], size), SearchBench::kTopK)) {
      consider(Strategy::kHybrid, {slots, policy.fetch_of_misses, policy.promotions, false, 0});
    }
  }
  return best;
}

}  // namespace

TEST_CASE("the pruned search finds what the exhaustive one finds, within half a percent, on random machines") {
  Random random(9);
  const auto us = [&](double low, double high) {
    return 1e-6 * (low + (high - low) * static_cast<double>(random.below(1000)) / 999);
  };
  for (int machine = 0; machine < 12; ++machine) {
    CAPTURE(machine);
    const Device device = machine % 3 == 0 ? Device::kHost : Device::kCuda;
    SearchBench bench(device, 16 + static_cast<int64_t>(random.below(60)), us(1, 20), us(10, 150), us(10, 150));
    offer_everything(bench, us(0, 20), us(10, 150));
    const SearchResult result = search(bench.input);
    double best = 0;
    for (const CandidatePrediction& candidate : result.ranked) best = std::max(best, candidate.score);
    CHECK(best >= exhaustive(bench.input) * 0.995);
    CHECK(result.remarks.empty());  // not cut
  }
}

TEST_CASE("a search does not replay more than its bound, whatever is offered, and says what it left out") {
  SearchBench bench(Device::kCuda, 60, 2e-6, 60e-6, 50e-6);
  offer_everything(bench, 5e-6, 45e-6);
  // Models whose own splits all differ.
  for (int threads = 3; threads < 40; ++threads) {
    ThreadModel model = bench.input.models[0];
    model.cost.cost.threads = model.dense.cost.threads = threads;
    model.cost.cost[CostTerm::kCpuPerExpert] = 400e-6 / threads;
    model.cost.cost[CostTerm::kCpuFixed] = 3e-6 * threads;
    bench.input.models.push_back(model);
    if (bench.input.models.size() == 3) CHECK(search(bench.input).remarks.empty());  // three thread counts stay inside
  }
  bench.input.cores = 64;
  const SearchResult many = search(bench.input);
  std::set<std::pair<SplitTable, std::pair<int64_t, std::pair<int64_t, int>>>> seen;
  for (const CandidatePrediction& c : many.ranked) {
    seen.insert({c.config.fetch_of_misses,
                 {c.config.slots, {c.config.promote_bytes_per_layer, c.config.max_prefetches_per_layer}}});
  }
  CHECK(seen.size() <= kMaxReplays);
  const bool cut = !many.remarks.empty();
  if (cut) CHECK(many.remarks[0].find("the search stopped after 160 replays") != std::string::npos);

  Predictor predictor(bench.input);
  ReplayBudget budget(predictor, 2);
  const SlotUse first{60, constant_share(4, 1), 0, false, 0}, second{30, constant_share(4, 1), 0, false, 0},
      third{10, constant_share(4, 1), 0, false, 0};
  CHECK(budget.allows(first));
  predictor.replays(first);
  CHECK(budget.allows(second));
  predictor.replays(second);
  CHECK(!budget.allows(third));  // one past it
  CHECK(budget.allows(first));   // done already
  CHECK(budget.refused() == 1);
}

TEST_CASE("other policies: the best of every other promotion budget, then the best of what is left") {
  SearchBench bench(Device::kCuda, 40, 2e-6, 60e-6, 50e-6);
  Predictor predictor(bench.input);
  ReplayBudget budget(predictor);
  const int size = predictor.max_distinct();
  const std::vector<Policy> all =
      hybrid_policies(hybrid_splits(bench.input, bench.input.models[0], size), SearchBench::kTopK);
  const CandidateSpec base{Strategy::kHybrid, 0, 2, {40, {}, 0, false, 0}, FetchMechanism::kSm};
  const auto score = [&](const Policy& policy) {
    CandidateSpec spec = base;
    spec.use.fetch_of_misses = policy.fetch_of_misses;
    spec.use.promotions = policy.promotions;
    return predictor.score(spec);
  };
  const Policy first = best_policies(predictor, budget, base, all, {FetchMechanism::kSm})[0];
  const std::vector<Policy> others = other_policies(predictor, budget, base, all, first);
  REQUIRE(others.size() == kOtherPolicies);
  std::set<PromotionRate> budgets = {first.promotions}, rates;
  for (const Policy& policy : all) {
    if (is_hybrid({40, policy.fetch_of_misses, policy.promotions, false, 0},
                  predictor.replays({40, policy.fetch_of_misses, policy.promotions, false, 0}))) {
      rates.insert(policy.promotions);
    }
  }
  for (size_t i = 0; i < others.size(); ++i) {
    CHECK(!(others[i] == first));
    CHECK(score(others[i]) <= score(first));
    const bool is_new = budgets.insert(others[i].promotions).second;
    CHECK(is_new == (i + 1 < rates.size()));
    for (const Policy& policy : all) {
      if (!is_new || policy.promotions != others[i].promotions) continue;
      CandidateSpec spec = base;
      spec.use.fetch_of_misses = policy.fetch_of_misses;
      spec.use.promotions = policy.promotions;
      if (is_hybrid(spec.use, predictor.replays(spec.use))) CHECK(score(policy) <= score(others[i]));
    }
  }
}

TEST_CASE("three thread counts, two mechanisms and look-ahead stay inside the bound") {
  SearchBench bench(Device::kCuda, 60, 2e-6, 60e-6, 50e-6);
  offer_everything(bench, 5e-6, 45e-6);
  for (const int threads : {8, 15}) {
    ThreadModel model = bench.input.models[0];
    model.cost.cost.threads = model.dense.cost.threads = threads;
    model.cost.cost[CostTerm::kCpuPerExpert] = 400e-6 / threads;
    bench.input.models.push_back(model);
  }
  CHECK(search(bench.input).remarks.empty());
}

TEST_CASE("the copy engine: on a GPU, with known terms, at full speed, and with a core for its thread") {
  SearchBench bench(Device::kCuda, 48, 2e-6, 60e-6, 50e-6);
  SearchInput& input = bench.input;
  const auto offered = [&](Strategy strategy) { return mechanisms(input, strategy, input.models[0]).size() == 2; };
  input.cores = 3;
  CHECK(!offered(Strategy::kOffload));  // not measured
  input.models[0].cost.cost[CostTerm::kCopyEnginePerExpert] = 40e-6;
  CHECK(offered(Strategy::kOffload));
  CHECK(offered(Strategy::kHybrid));  // 2 threads and the proxy on 3 cores
  CHECK(!offered(Strategy::kCpu));
  CHECK(!offered(Strategy::kResident));
  input.cores = 2;
  CHECK(offered(Strategy::kOffload));  // one thread and the proxy
  CHECK(!offered(Strategy::kHybrid));
  input.cores = 1;
  CHECK(!offered(Strategy::kOffload));
  input.cores = 0;  // the largest thread count measured: 2
  CHECK(offered(Strategy::kOffload));
  CHECK(!offered(Strategy::kHybrid));
  input.cores = 16;
  input.base.link_slowdown = 2;
  CHECK(!offered(Strategy::kOffload));
  input.base.link_slowdown = 1;
  input.base.device = Device::kHost;
  CHECK(!offered(Strategy::kOffload));
}

TEST_CASE("a faster copy engine is chosen, and its row names it") {
  SearchBench bench(Device::kCuda, 48, 2e-6, 2000e-6, 50e-6);
  offer_everything(bench, 1e-6, 25e-6);
  const SearchResult result = search(bench.input);
  CHECK(result.ranked[0].config.fetch_mechanism == FetchMechanism::kCopyEngine);
  SearchBench slow(Device::kCuda, 48, 2e-6, 2000e-6, 50e-6);
  offer_everything(slow, 1e-6, 80e-6);
  CHECK(search(slow.input).ranked[0].config.fetch_mechanism == FetchMechanism::kSm);
}

TEST_CASE("look-ahead: with a trace that predicts, where slots leave room, pinned or in all counts") {
  SearchBench bench(Device::kHost, 48, 2e-6, 60e-6, 50e-6);
  SearchInput& input = bench.input;
  using Counts = std::vector<int>;
  CHECK(prefetch_counts(input, Strategy::kOffload, 48, 4) == Counts{0});
  draw_predictions(bench.trace, 0.9, 0.9, 5);
  CHECK(prefetch_counts(input, Strategy::kOffload, 48, 4) == Counts{0, 1, 2, 4});
  CHECK(prefetch_counts(input, Strategy::kOffload, 5, 4) == Counts{0, 1, 2, 4});
  CHECK(prefetch_counts(input, Strategy::kOffload, 4, 4) == Counts{0});
  CHECK(prefetch_counts(input, Strategy::kCpu, 48, 4) == Counts{0});
  input.base.device = Device::kCuda;  // a GPU predicts forced routings only
  CHECK(prefetch_counts(input, Strategy::kHybrid, 48, 4) == Counts{0});
  input.base.weights.synthetic = true;
  CHECK(prefetch_counts(input, Strategy::kHybrid, 48, 4) == Counts{0, 1, 2, 4});
  input.base.look_ahead = LookAhead::kRouter;
  input.base.max_prefetches_per_layer = 3;
  CHECK(prefetch_counts(input, Strategy::kHybrid, 48, 4) == Counts{3});
}

TEST_CASE("good predictions on an idle link win; a router that costs more than it saves does not") {
  SearchBench bench(Device::kCuda, 40, 2e-6, 5000e-6, 50e-6);
  offer_everything(bench, 0, 0);
  bench.input.models[0].dense.cost.fixed = 4e-3;  // 0.8 ms between layers: room for every copy
  const SearchResult result = search(bench.input);
  CHECK(result.ranked[0].config.look_ahead == LookAhead::kRouter);
  bench.input.models[0].cost.cost[CostTerm::kLookAhead] = 500e-6;
  CHECK(search(bench.input).ranked[0].config.look_ahead == LookAhead::kOff);
}

TEST_CASE("among equal strategies the one that engages less is simpler") {
  EngineConfig plain, promotes, copier, ahead;
  plain.strategy = promotes.strategy = copier.strategy = ahead.strategy = Strategy::kOffload;
  promotes.promote_bytes_per_layer = 1;
  copier.fetch_mechanism = FetchMechanism::kCopyEngine;
  ahead.look_ahead = LookAhead::kRouter;
  CHECK(complexity(plain) < complexity(promotes));
  CHECK(complexity(promotes) < complexity(copier));
  CHECK(complexity(copier) < complexity(ahead));
  EngineConfig cpu;
  cpu.strategy = Strategy::kCpu;
  CHECK(complexity(ahead) < complexity(cpu));
}

TEST_CASE("splits: shares, caps, and nothing that is offload or cpu at every number of misses") {
  CHECK(constant_share(4, 0.5) == SplitTable{0, 1, 1, 2, 2});
  CHECK(capped(4, 2) == SplitTable{0, 1, 2, 2, 2});
  CHECK(raised({0, 0, 1, 1, 3}, 2) == SplitTable{0, 1, 2, 2, 3});
  SearchBench bench(Device::kCuda, 48, 2e-6, 60e-6, 50e-6);
  const std::set<SplitTable> splits = hybrid_splits(bench.input, bench.input.models[0], 4);
  CHECK(splits.contains(capped(4, 1)));
  CHECK(!splits.contains(constant_share(4, 0)));
  CHECK(!splits.contains(constant_share(4, 1)));
}

TEST_CASE("a long trace is cut to a stated number of uses, and no shorter than the least steps") {
  const RoutingTrace trace = generate_trace("glm-4.7-flash", 4, 32, 4, 400, 3);
  CHECK(cut_sequences(split_trace(trace, 2), 2 * 4 * 4 * 50)[1].tokens == 50);
  CHECK(cut_sequences(split_trace(trace, 2), 2 * 4 * 4 * 50 - 1)[1].tokens == 49);
  CHECK(cut_sequences(split_trace(trace, 2), 1)[0].tokens == kLeastSteps);
  CHECK(cut_sequences(split_trace(trace, 100), 1)[0].tokens == 4);  // all it has
}

TEST_CASE("hybrid's promotion rates: none only where half of a token's experts missing make it fetch") {
  const PromotionRate none = 0, few = PromotionRate::one_in(16), some = PromotionRate::one_in(4);
  const auto rates_of = [](const SplitTable& table) {
    std::vector<PromotionRate> rates;
    for (const Policy& policy : hybrid_policies({table}, 4)) rates.push_back(policy.promotions);
    return rates;
  };
  using Rates = std::vector<PromotionRate>;
  CHECK(rates_of({0, 1, 1, 1, 1, 1, 1, 1, 1}) == Rates{none, 1, 2});  // whatever misses
  CHECK(rates_of({0, 0, 1, 1, 1, 1, 1, 1, 1}) == Rates{none, few, some, 1, 2});
  CHECK(rates_of({0, 0, 0, 1, 1, 1, 1, 1, 1}) == Rates{few, some, 1, 2});  // two misses of four could stay
  CHECK(rates_of({0, 0}) == Rates{few, some, 1, 2});
  CHECK(rates_of({0, 1}) == Rates{none, 1, 2});  // a table of one expert
}

}  // namespace ft
