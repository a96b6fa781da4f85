#include "tests/machines/field_case.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/experts/routing_trace.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {
namespace {

constexpr int64_t kTraceTokens = 160;
constexpr int64_t kDiscardedSteps = 40;
constexpr double kUs = 1e-6, kMs = 1e-3, kMb = 1e6, kGb = 1e9;

Range range_of(const Json& value, double scale) {
  return {value[0].get<double>() * scale, value[1].get<double>() * scale, value[2].get<double>() * scale};
}
Range known(double value) { return {value, value, value}; }

Interval published(const Json& value) { return {value.front().get<double>(), value.back().get<double>()}; }

FieldCase read_case(const Json& json, const FieldCases& all) {
  FieldCase one;
  const Json &model = json.at("model"), &bench = json.at("bench"), &assumed = json.at("assumed");
  one.id = json.at("id");
  one.expert = {model.at("hidden"), model.at("intermediate"), model.at("experts"), model.at("top_k")};
  one.moe_layers = model.at("moe_layers");
  one.expert_bytes = model.at("expert_mb").get<double>() * kMb;
  one.benched_expert_bytes = bench.value("expert_mb", one.expert_bytes / kMb) * kMb;
  one.cpu_gbps = bench.at("cpu");
  one.link_gbps = bench.contains("link") ? known(bench.at("link")) : range_of(assumed.at("link"), 1);
  const auto contention = [&](const char* alone, const char* together, const char* unknown) {
    if (!bench.contains(together)) return all.unknown.at(unknown);
    return known(bench.at(alone).get<double>() / bench.at(together).get<double>() - 1);
  };
  one.compute_contention = contention("cpu", "cpu_overlapped", "compute_contention");
  one.link_contention = contention("link", "link_overlapped", "link_contention");
  one.dense_seconds = range_of(assumed.at("dense_ms"), kMs);
  one.slots = range_of(assumed.at("slots"), 1);
  one.gpu_memory_gbps = assumed.at("gpu_memory_gbps");
  one.routing = assumed.at("routing").get<std::vector<std::string>>();
  one.ratio_rule = json.at("ratio_rule");
  one.relative = json.contains("relative");
  one.context = json.value("context", one.context);
  one.batches = json.value("batches", std::vector<int64_t>{1});
  for (const Json& entry : json.at("served")) {
    ServedStrategy served{strategy_by_name(entry.at("strategy").get<std::string>()).value(), entry.at("threads"), {}};
    for (const Json& rate : entry.at("tok_s")) served.tok_s.push_back(published(rate));
    FT_CHECK(served.tok_s.size() == one.batches.size());
    one.served.push_back(std::move(served));
  }
  one.right = json.at("right");
  return one;
}

// Reproducible everywhere: the library's distributions are not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  double from(const Range& range) {
    if (range.low == range.high) return range.low;
    if (range.low <= 0) return between(range.low, range.high);
    return range.low * std::pow(range.high / range.low, uniform());
  }

 private:
  std::mt19937_64 random_;
};

// Parameters of the model from the bench, everything unknown taken by `pick`.
template <class Pick>
void set_costs(const FieldCases& all, const FieldCase& one, Pick&& pick, CostParameters& cost, DenseCost& dense) {
  const double benched = one.benched_expert_bytes / (one.cpu_gbps * kGb);
  const double by_bytes = benched * one.expert_bytes / one.benched_expert_bytes;
  const double slot_gbps = one.gpu_memory_gbps * pick(all.unknown.at("slot_share_of_gpu_memory"));
  cost[CostTerm::kBase] = pick(all.unknown.at("layer_us"));
  cost[CostTerm::kSlotPerExpert] = one.expert_bytes / (slot_gbps * kGb);
  cost[CostTerm::kCpuFixed] = pick(all.unknown.at("cpu_fixed_us"));
  cost[CostTerm::kCpuPerExpert] = pick({std::min(by_bytes, benched), by_bytes, std::max(by_bytes, benched)});
  cost[CostTerm::kLinkFixed] = pick(all.unknown.at("link_fixed_us"));
  cost[CostTerm::kLinkPerExpert] = one.expert_bytes / (pick(one.link_gbps) * kGb);
  cost[CostTerm::kContentionCompute] = pick(one.compute_contention);
  cost[CostTerm::kContentionLink] = pick(one.link_contention);
  dense.fixed = pick(one.dense_seconds);
}

ThreadModel make_model(const FieldCases& all, const FieldCase& one, int draws) {
  int threads = 1;
  for (const ServedStrategy& served : one.served) threads = std::max(threads, served.threads);
  ThreadModel model;
  model.cost.cost.threads = model.dense.cost.threads = threads;
  set_costs(
      all, one, [](const Range& range) { return range.centre; }, model.cost.cost, model.dense.cost);
  Dice dice(1);
  for (int i = 0; i < draws; ++i) {
    CostParameters cost = model.cost.cost;
    DenseCost dense = model.dense.cost;
    set_costs(
        all, one, [&](const Range& range) { return dice.from(range); }, cost, dense);
    model.cost.draws.push_back(cost);
    model.dense.draws.push_back(dense);
  }
  return model;
}

SearchInput search_input(const FieldCase& one, const ThreadModel& model, const RoutingTrace& trace, int64_t slots) {
  SearchInput input;
  input.geometry.layers = one.moe_layers;
  for (int layer = 0; layer < one.moe_layers; ++layer) input.geometry.moe_layers.push_back(layer);
  input.geometry.expert = one.expert;
  input.geometry.hidden = one.expert.hidden;
  input.geometry.vocab = 1000;
  input.geometry.max_positions = one.context;
  input.formats.expert_bytes_max = static_cast<int64_t>(one.expert_bytes);
  input.formats.expert_bytes_total = input.formats.expert_bytes_max * input.geometry.total_experts();
  input.base.device = Device::kCuda;
  input.base.max_context = one.context;
  input.base.max_batch = static_cast<int>(one.batches.back());
  // Room for everything: slots are pinned.
  input.memory = {Device::kCuda, int64_t{1} << 42, int64_t{1} << 42};
  input.slots = slots;
  input.models = {model};
  input.contexts = {one.context};
  input.batches = one.batches;
  for (const int64_t batch : one.batches) input.sequences.push_back(split_trace(trace, static_cast<int>(batch)));
  input.discard_steps = kDiscardedSteps;
  return input;
}

const CandidatePrediction& best_of(const SearchResult& result, Strategy strategy) {
  for (const CandidatePrediction& candidate : result.ranked) {
    if (candidate.config.strategy == strategy) return candidate;
  }
  throw Error(ErrorKind::kFailed, {.what = "no such prediction", .value = std::string(strategy_name(strategy))});
}

// The same strategy under other slots or routing: its interval and draws are as good as the centre's.
void widen(CandidatePrediction& centre, const CandidatePrediction& other) {
  for (size_t p = 0; p < centre.low.size(); ++p) {
    centre.low[p] = std::min(centre.low[p], other.low[p]);
    centre.high[p] = std::max(centre.high[p], other.high[p]);
  }
  centre.score_draws.insert(centre.score_draws.end(), other.score_draws.begin(), other.score_draws.end());
}

Interval range_of(const FieldCases& all, const FieldCase& one, size_t index, size_t batch, Spread spread) {
  Interval rate = one.served[index].tok_s[batch];
  if (spread == Spread::kOneRange) {
    for (const ServedStrategy& other : one.served) {
      rate.low = std::min(rate.low, other.tok_s[batch].low);
      rate.high = std::max(rate.high, other.tok_s[batch].high);
    }
  }
  if (spread != Spread::kPublished && rate.low == rate.high) {
    rate = {rate.low * (1 - all.noise), rate.high * (1 + all.noise)};
  }
  return rate;
}

// In an order of its own for each candidate: rounds of different runs are no pairs.
double even_place(int round, int rounds, size_t index) {
  if (rounds == 1) return 0.5;
  const int step = 2 * static_cast<int>(index) + 1;
  return static_cast<double>((round * step + static_cast<int>(index)) % rounds) / (rounds - 1);
}

// As search() ranks: the best score first, a tie to the simpler strategy.
void rank(SearchResult& result) {
  auto& ranked = result.ranked;
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  size_t chosen = 0;
  for (size_t i = 1; i < ranked.size(); ++i) {
    if (complexity(ranked[i].config.strategy) >= complexity(ranked[chosen].config.strategy)) continue;
    if (is_tie(ranked[i], ranked[0])) chosen = i;
  }
  result.tie = chosen != 0;
  std::rotate(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(chosen),
              ranked.begin() + static_cast<std::ptrdiff_t>(chosen) + 1);
}

}  // namespace

FieldCases read_field_cases(const std::string& path) {
  const Json json = read_json_file(path);
  FieldCases all;
  for (const auto& [name, entry] : json.at("unknown_costs").items()) {
    all.unknown[name] = range_of(entry.at("range"), name.ends_with("_us") ? kUs : 1);
  }
  all.noise = json.at("noise").at("share");
  for (const Json& entry : json.at("cases")) all.cases.push_back(read_case(entry, all));
  return all;
}

SearchResult predict_from_bench(const FieldCases& all, const FieldCase& one, int draws) {
  const ThreadModel model = make_model(all, one, draws);
  struct Scenario {
    double slots;
    std::string routing;
  };
  std::vector<Scenario> scenarios = {{one.slots.centre, one.routing[0]}};
  if (draws > 0) {
    if (one.slots.low < one.slots.centre) scenarios.push_back({one.slots.low, one.routing[0]});
    if (one.slots.high > one.slots.centre) scenarios.push_back({one.slots.high, one.routing[0]});
    for (size_t i = 1; i < one.routing.size(); ++i) scenarios.push_back({one.slots.centre, one.routing[i]});
  }
  SearchResult merged;
  for (const Scenario& scenario : scenarios) {
    const int64_t tokens = kTraceTokens * one.batches.back();
    const RoutingTrace trace =
        generate_trace(scenario.routing, one.moe_layers, one.expert.experts, one.expert.top_k, tokens, 1);
    const SearchResult found =
        search(search_input(one, model, trace, static_cast<int64_t>(std::llround(scenario.slots))));
    for (size_t i = 0; i < one.served.size(); ++i) {
      const CandidatePrediction& candidate = best_of(found, one.served[i].strategy);
      if (&scenario == scenarios.data()) {
        merged.ranked.push_back(candidate);
        merged.ranked.back().config.threads = one.served[i].threads;
      } else {
        widen(merged.ranked[i], candidate);
      }
    }
  }
  rank(merged);
  return merged;
}

ServedRun serve(const FieldCases& all, const FieldCase& one, const SearchResult& predicted, int rounds, Spread spread,
                uint64_t seed) {
  ServedRun run;
  run.search = predicted;
  const CandidatePrediction& offload = best_of(predicted, Strategy::kOffload);
  Dice dice(seed);
  for (size_t index = 0; index < one.served.size(); ++index) {
    const ServedStrategy& served = one.served[index];
    const auto of_this = [&](const CandidatePrediction& candidate) {
      return candidate.config.strategy == served.strategy && candidate.config.threads == served.threads;
    };
    const auto at = std::find_if(predicted.ranked.begin(), predicted.ranked.end(), of_this);
    run.measured.push_back(static_cast<size_t>(at - predicted.ranked.begin()));
    for (size_t b = 0; b < one.batches.size(); ++b) {
      const Interval rate = range_of(all, one, index, b, spread);
      const double scale = one.relative ? offload.tok_s[b] : 1;
      Measurement m;
      m.probe = "decode";
      m.name = std::string(strategy_name(served.strategy)) + ".threads=" + std::to_string(served.threads);
      m.unit = "tok/s";
      for (int i = 0; i < rounds; ++i) {
        const double place = spread == Spread::kPublished ? even_place(i, rounds, index) : dice.uniform();
        m.values.push_back(scale * (rate.low + (rate.high - rate.low) * place));
      }
      m.stop_reason = "samples";
      m.at = {{"candidate", static_cast<double>(index)},
              {"context", static_cast<double>(one.context)},
              {"context_filled", static_cast<double>(one.context)},
              {"batch", static_cast<double>(one.batches[b])},
              {"threads", static_cast<double>(served.threads)},
              {"threads_worked", static_cast<double>(served.threads)},
              {"slots", static_cast<double>(at->config.slots)},
              {"hit_rate", at->hit_rate[b]}};
      run.measurements.push_back(std::move(m));
    }
  }
  return run;
}

Decided decide(const FieldCase& one, const ServedRun& run) {
  DecideInput input;
  input.search = &run.search;
  input.measured = run.measured;
  input.measurements = run.measurements;
  input.contexts = {one.context};
  input.batches = one.batches;
  input.moe_layers = one.moe_layers;
  return decide(input);
}

}  // namespace ft
