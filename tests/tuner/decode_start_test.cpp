// Where a run of `decode` goes on from. Checked against: a slot table that is walked through the same tokens of the
// trace from the same content, and the replay that predicted the run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "engine/experts/slot_table.h"
#include "kernels/base/error.h"
#include "probes/decode_run.h"
#include "probes/session.h"
#include "tuner/replay.h"
#include "tuner/search_space.h"

namespace ft {
namespace {

constexpr int64_t kSlots = 96;

struct Counts {
  double hits = 0, misses = 0, promoted = 0;
};

// `steps` after kDiscardedTurns turns.
Counts walk(const RoutingTrace& trace, const EngineConfig& config, PromotionRate promotions, const DecodeStart& start,
            int64_t steps) {
  const int batch = static_cast<int>(start.trace_tokens.size());
  const int distinct = trace.top_k * config.max_batch;
  SlotTable table(trace.layers, trace.experts, config.slots,
                  make_slot_policy(config.cache_policy, trace.layers, config.slots, distinct));
  table.restore(start.content);
  LayerPlan plan;
  plan.reserve(distinct);
  Counts counts;
  constexpr int kUncounted = kDiscardedTurns * kTimedSteps;
  for (int64_t step = 0; step < kUncounted + steps; ++step) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      std::vector<int> ids;
      for (int s = 0; s < batch; ++s) {
        const int64_t token = (start.trace_tokens[static_cast<size_t>(s)] + step) % trace.tokens;
        for (const int16_t id : trace.at(token, layer)) ids.push_back(id);
      }
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      table.plan(layer, ids, config.fetch_of_misses, promotions, plan);
      if (step < kUncounted) continue;
      counts.hits += static_cast<double>(plan.hits.size());
      counts.misses += static_cast<double>(plan.fetches.size() + plan.cpu.size());
      counts.promoted += static_cast<double>(plan.promotions.size());
    }
  }
  return counts;
}

struct Case {
  Strategy strategy;
  SplitTable fetched;
  PromotionRate promotions;
};

// The candidate of a case, and the hit rates that its replays predict, a batch each.
DecodeCandidate candidate_of(const Case& one, const ProbeContext& context, std::vector<double>& predicted) {
  DecodeCandidate candidate{std::string(strategy_name(one.strategy)), context.base, {}};
  candidate.config.strategy = one.strategy;
  candidate.config.threads = 1;
  candidate.config.slots = kSlots;
  candidate.config.fetch_of_misses = one.fetched;
  candidate.config.promote_bytes_per_layer = one.promotions.bytes(context.model.weights->formats.expert_bytes_max);
  for (const int batch : context.batches) {
    const std::vector<TraceSequence> sequences = split_trace(*context.trace, batch);
    ReplayOptions options{kSlots, one.fetched, one.promotions};
    options.discard_steps = 16;
    options.max_distinct = context.trace->top_k * context.base.max_batch;
    options.fill_first = true;
    options.content_of_middle = true;
    const ReplayResult result = replay(sequences, options);
    DecodeStart start{result.content, {}};
    for (const TraceSequence& sequence : sequences) {
      start.trace_tokens.push_back(sequence.begin + result.content_step);
    }
    candidate.starts.push_back(std::move(start));
    predicted.push_back(result.hit_rate);
  }
  return candidate;
}

std::unique_ptr<Probe> decode_probe() {
  for (std::unique_ptr<Probe>& one : make_probes()) {
    if (one->id() == "decode") return std::move(one);
  }
  return nullptr;
}

}  // namespace

TEST_CASE("a run with forced routing meets the misses of its replay from the middle of the trace on") {
  ProbeSessionOptions options;
  options.weights.model_path = std::string(std::getenv("FT_TEST_DATA")) + "/tiny-moe";
  options.weights.synthetic = true;
  options.threads = {1};
  options.batches = {1, 2};
  options.contexts = {24, 40};  // prompts that force other tokens before
  options.budget_seconds = 1;
  options.add_candidates = false;
  ProbeSession session(options);
  ProbeContext& context = session.context();
  const RoutingTrace& trace = *context.trace;
  const int distinct = trace.top_k * 2;
  const std::vector<Case> cases = {{Strategy::kOffload, constant_share(distinct, 1), 0},
                                   {Strategy::kCpu, constant_share(distinct, 0), PromotionRate::one_in(4)},
                                   {Strategy::kHybrid, constant_share(distinct, 0.5), 0}};
  std::vector<double> predicted;  // hit rates, per case and batch
  for (const Case& one : cases) context.candidates.push_back(candidate_of(one, context, predicted));
  const std::unique_ptr<Probe> probe = decode_probe();
  const std::vector<Samples> series = probe->run(context);
  probe->verify(context);
  REQUIRE(series.size() == context.contexts.size() * context.batches.size() * cases.size());
  for (const Samples& samples : series) {
    CAPTURE(samples.name);
    const auto index = static_cast<size_t>(samples.at.at("candidate"));
    const size_t b = samples.at.at("batch") == 1 ? 0 : 1;
    const DecodeCandidate& candidate = context.candidates[index];
    const auto steps = static_cast<int64_t>(samples.at.at("steps"));
    const Counts want = walk(trace, candidate.config, cases[index].promotions, candidate.starts[b], steps);
    CHECK(samples.at.at("expert_hits") == want.hits);
    CHECK(samples.at.at("expert_fetched") + samples.at.at("expert_cpu") == want.misses);
    CHECK(samples.at.at("expert_promoted") == want.promoted);
    // Over at least as many steps as were counted, the two are the same but for where they wrap.
    if (steps >= trace.tokens / 2)
      CHECK(std::abs(want.hits / (want.hits + want.misses) - predicted[2 * index + b]) < 0.1);
  }
}

}  // namespace ft
