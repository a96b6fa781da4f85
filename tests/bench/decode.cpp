// Decode runs: which cache content they start from, the steps themselves, and their bound.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "probes/engine_setup.h"
#include "tests/bench/bench.h"
#include "tuner/replay.h"
#include "tuner/search_space.h"

namespace ft::bench {
namespace {

// A layer: more would keep the link from the next layer's fetches.
constexpr PromotionRate kTriedPromotions[] = {PromotionRate::one_in(4), 1, 2};
constexpr int kMostFloor = 3;           // misses of a layer that are fetched before any is the CPU's
constexpr int64_t kCountedReplay = 64;  // last steps of a replay, whose misses predict
constexpr int32_t kToken = 1;           // any id: choices are forced, weights are made

std::vector<TraceSequence> replayed_part(const TraceSet& traces, int batch) {
  FT_CHECK(batch <= static_cast<int>(traces.sequences.size()));
  std::vector<TraceSequence> parts;
  for (int s = 0; s < batch; ++s) parts.push_back({&traces.sequences[static_cast<size_t>(s)], 0, traces.replayed});
  return parts;
}

}  // namespace

// Promotions share the link with the next layer's fetches and the host's memory with the CPU's experts, and what is
// fetched stays for later steps: what both are worth no curve says, so a short run of each decides, as a tuner would.
DecodePlan plan_decode(ModelCase& one, const TraceSet& traces, Strategy strategy, int64_t slots, int batch) {
  constexpr int kTrialSteps = 12;
  const int distinct = std::min(one.geometry.experts, one.geometry.top_k * batch);
  const bool splits = strategy == Strategy::kHybrid;
  const SplitTable fastest = splits ? split_table(one.curves(), distinct) : SplitTable{};
  const auto plan_of = [&](int floor, PromotionRate promotions) {
    DecodePlan plan;
    plan.config = one.config(strategy, slots, batch);
    if (splits) plan.config.fetch_of_misses = raised(fastest, floor);
    plan.config.promote_bytes_per_layer = promotions.bytes(one.blob_bytes());
    ReplayOptions options;
    options.slots = slots;
    options.fetch_of_misses = plan.config.fetch_of_misses;
    options.promotions = promotions;
    options.cache_policy = plan.config.cache_policy;
    options.discard_steps = std::max<int64_t>(0, traces.replayed - kCountedReplay);
    plan.content = replay(replayed_part(traces, batch), options).content;
    if (splits) {
      const std::unique_ptr<Engine> engine = one.engine(plan.config);
      plan.trial_seconds =
          decode(*engine, plan, traces, batch, one.bench.options.warm_steps, kTrialSteps).mean_seconds();
    }
    return plan;
  };
  DecodePlan best = plan_of(0, 0);
  if (!splits) return best;
  PromotionRate promoted;
  const auto take = [&](int floor, PromotionRate promotions) {
    DecodePlan plan = plan_of(floor, promotions);
    if (plan.trial_seconds >= best.trial_seconds) return false;
    promoted = promotions;
    best = std::move(plan);
    return true;
  };
  for (const PromotionRate promotions : kTriedPromotions) take(0, promotions);
  for (int floor = 1; floor <= std::min(distinct, kMostFloor); ++floor) {
    if (raised(fastest, floor) == fastest) continue;
    const bool plain = take(floor, 0), promotes = promoted.any() && take(floor, promoted);
    if (!plain && !promotes) break;
  }
  return best;
}

double DecodeResult::mean_seconds() const { return mean(step_seconds); }

double DecodeResult::hit_rate() const {
  const auto all = static_cast<double>(counters.expert_hits + counters.expert_fetched + counters.expert_cpu);
  return all == 0 ? 0 : static_cast<double>(counters.expert_hits) / all;
}

DecodeResult decode(Engine& engine, const DecodePlan& plan, const TraceSet& traces, int batch, int warm, int measured) {
  FT_CHECK(engine.config().max_batch == batch);
  std::vector<int32_t> ids(static_cast<size_t>(batch), kToken);
  std::vector<TokenRun> runs;
  std::vector<int> sequences;
  for (int s = 0; s < batch; ++s) {
    sequences.push_back(engine.open_sequence());
    FT_CHECK(sequences.back() >= 0);
    runs.push_back({sequences.back(), 0, std::span(ids).subspan(static_cast<size_t>(s), 1), false, true});
  }
  engine.set_routing(traces.tails(batch));
  engine.restore_cache(plan.content);
  DecodeResult result;
  result.step_seconds.reserve(static_cast<size_t>(measured));
  for (int step = 0; step < warm + measured; ++step) {
    if (step == warm) engine.reset_counters();
    const double begin = now_seconds();
    engine.step(runs);
    const double seconds = now_seconds() - begin;
    if (step >= warm) result.step_seconds.push_back(seconds);
    for (TokenRun& run : runs) ++run.position;
  }
  result.counters = engine.counters();
  for (const int sequence : sequences) engine.close_sequence(sequence);
  return result;
}

double resident_seconds(Engine& engine, int batch, int64_t context, int samples) {
  constexpr int kDiscarded = 3;  // the first records the graph
  std::vector<double> seconds;
  for (int i = 0; i < samples + kDiscarded; ++i) {
    const double begin = now_seconds();
    engine.run_dense_step(batch, context);
    if (i >= kDiscarded) seconds.push_back(now_seconds() - begin);
  }
  return median(seconds);
}

double measured_resident(ModelCase& one, const TraceSet& traces, int64_t slots, int batch) {
  constexpr int kSamples = 16;
  const std::unique_ptr<Engine> engine = one.engine(one.config(Strategy::kOffload, slots, batch));
  engine->set_routing(traces.tails(batch));
  return resident_seconds(*engine, batch, kShortContext, kSamples);
}

Cell make_cell(ModelCase& one, const std::string& preset, const EngineConfig& config, int batch,
               const DecodeResult& result, double resident_measured) {
  const Curves& curves = one.curves();
  const EngineCounters& counters = result.counters;
  const uint64_t steps = counters.decode_steps;
  const bool fetch_all = config.strategy == Strategy::kOffload;
  const double experts = static_cast<double>(counters.expert_hits + counters.expert_fetched + counters.expert_cpu) /
                         static_cast<double>(steps * static_cast<uint64_t>(one.moe_layers()));
  Cell cell;
  cell.geometry = one.geometry.name;
  cell.preset = preset;
  cell.strategy = strategy_name(config.strategy);
  cell.slots_percent =
      100.0 * static_cast<double>(config.slots) / static_cast<double>(one.model.weights->geometry.total_experts());
  cell.batch = batch;
  cell.hit_rate = result.hit_rate();
  const double misses = misses_per_step(counters.misses_histogram, steps);
  cell.misses_per_layer = misses / one.moe_layers();
  cell.step_seconds = result.mean_seconds();
  cell.tokens_per_second = batch / cell.step_seconds;
  cell.resident_measured_seconds = resident_measured;
  cell.resident_seconds = counted_resident_seconds(resident_measured, one.resident_bytes(experts, batch, kShortContext),
                                                   one.bench.ceilings.device_read);
  cell.bound_seconds = cell.resident_seconds + miss_seconds(curves, counters.misses_histogram, steps, fetch_all);
  const double bytes = one.payload_bytes();
  cell.smooth_bound_seconds =
      smooth_bound_seconds(cell.resident_seconds, misses * bytes, curves.fetch.best_rate() * bytes,
                           fetch_all ? 0 : curves.cpu.best_rate() * bytes);
  if (config.strategy == Strategy::kHybrid) {
    cell.note = "fetch";
    for (size_t m = 1; m < config.fetch_of_misses.size() && m <= 4; ++m) {
      cell.note += " " + std::to_string(config.fetch_of_misses[m]) + "/" + std::to_string(m);
    }
    const auto promotions = PromotionRate::of_bytes(config.promote_bytes_per_layer, one.blob_bytes());
    if (promotions.any()) cell.note += fmt::format(", promote {:g}", promotions.per_plan());
  }
  cell.samples_seconds = result.step_seconds;
  return cell;
}

}  // namespace ft::bench
