// The real engine, candidate by candidate, interleaved: what the tuner checks its predictions with. Each candidate
// starts with a KV cache filled to the context and the cache content that its trace replay had in the middle of the
// trace, and goes on as the trace does from there: the forced trace itself, whose misses
// are then the replay's, or the text that it was recorded from, behind another prompt. The KV cache is filled once and
// copied: its bits do not depend on the candidate.
#include <algorithm>
#include <cmath>

#include "engine/runtime/device.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "probes/decode_run.h"
#include "probes/engaged_check.h"
#include "probes/engine_setup.h"
#include "probes/measure.h"
#include "probes/memory_guard.h"

namespace ft {
namespace {

constexpr double kPrefillShare = 0.5;     // of the budget at most, for filling KV caches
constexpr double kSettleSeconds = 10e-3;  // of untimed steps in a turn, when that takes fewer than kMaxSettleSteps
constexpr int kMaxRounds = 200;
// Of a point, whatever is left of the budget, when its least number of rounds takes as long: from one round each no two
// candidates can be told apart, and the choice would fall to the simplest (H200, 8 candidates, a budget of 10 s:
// offload at half the rate of a hybrid). Beside engines, caches and prompts it is little.
constexpr double kLeastSeconds = 4;
constexpr int kRoundsBetweenLooks = 8;  // at the interval of the ratio, once max_samples are taken
constexpr double kConfidence = 0.95;

// Candidates that are in memory together, and how far their KV caches are filled.
struct Group {
  size_t begin = 0;  // index of the first candidate
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<DecodeRun>> runs;
  double fill_seconds_left = 0;
};

// The two fastest series are told apart: the interval of their ratio excludes 1.
bool is_resolved(const std::vector<Series>& series) {
  if (series.size() < 2) return true;
  std::vector<const std::vector<double>*> values;
  values.reserve(series.size());
  for (const Series& one : series) values.push_back(&one.samples.values);
  std::sort(values.begin(), values.end(), [](const auto* a, const auto* b) { return median(*a) > median(*b); });
  const Interval ratio = ratio_interval(*values[0], *values[1], kConfidence);
  return ratio.low > 1 || ratio.high < 1;
}

class DecodeProbe final : public Probe {
 public:
  std::string_view id() const override { return "decode"; }
  std::string_view measures() const override {
    return "The real engine decoding, candidate by candidate, interleaved.";
  }
  std::string_view unit() const override { return "tok/s"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.model.weights == nullptr) return {false, "no model is given"};
    if (context.candidates.empty()) return {false, "no candidate is given"};
    if (context.contexts.empty() || context.batches.empty()) return {false, "no context or batch is given"};
    if (context.text_ids.empty()) return {false, "no text is given"};
    return {};
  }

  std::vector<Samples> run(ProbeContext& context) override {
    mismatch_.clear();
    std::vector<Samples> result;
    const double end = now_seconds() + context.budget.seconds;
    for (size_t begin = 0; begin < context.candidates.size();) {
      const size_t next = decode_group_end(context, begin);
      const auto part = static_cast<double>(next - begin) / static_cast<double>(context.candidates.size() - begin);
      run_group(context, begin, next, now_seconds() + part * (end - now_seconds()), result);
      if (context.interrupted && context.interrupted()) return result;
      begin = next;
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (mismatch_.empty()) return;
    throw Error(ErrorKind::kFailed, {.what = "decode answered differently", .value = mismatch_});
  }

 private:
  static bool forces_routing(const ProbeContext& context) {
    return context.base.weights.synthetic && context.trace != nullptr;
  }

  // Every (context, batch) gets an equal share of what the ones before it left of the time.
  void run_group(ProbeContext& context, size_t begin, size_t next, double end, std::vector<Samples>& result) {
    Group group;
    group.begin = begin;
    for (size_t i = begin; i < next; ++i) {
      context.say("engine of " + context.candidates[i].name);
      group.engines.push_back(
          std::make_unique<Engine>(context.model, context.candidates[i].config, context.memory_inputs));
      if (forces_routing(context)) group.engines.back()->set_routing(context.trace);
      group.runs.push_back(std::make_unique<DecodeRun>(*group.engines.back(), context.text_ids));
    }
    group.fill_seconds_left = kPrefillShare * (end - now_seconds());
    size_t points_left = context.contexts.size() * context.batches.size();
    for (const int64_t position : context.contexts) {
      const std::string what = std::to_string(group.runs.size()) + " candidates, context " + std::to_string(position);
      context.say("prompts of " + what);
      fill(context, group, position);
      for (size_t b = 0; b < context.batches.size(); ++b) {
        if (context.interrupted && context.interrupted()) return;
        context.say(what + ", batch " + std::to_string(context.batches[b]));
        const double seconds = std::max(0.0, end - now_seconds()) / static_cast<double>(points_left--);
        run_point(context, group, position, b, seconds, result);
      }
    }
  }

  // The first candidate computes keys and values, chunk by chunk while there is time, the others get copies.
  static void fill(const ProbeContext& context, Group& group, int64_t asked_context) {
    const int64_t wanted = DecodeRun::base_of(asked_context, context.base.max_context);
    const double begin = now_seconds();
    DecodeRun& first = *group.runs[0];
    do {
      first.fill(std::min(wanted, first.length() + context.base.prefill_chunk));
    } while (first.length() < wanted && now_seconds() - begin < group.fill_seconds_left &&
             !(context.interrupted && context.interrupted()));
    for (size_t i = 1; i < group.runs.size(); ++i) group.runs[i]->copy_from(first);
    group.fill_seconds_left -= now_seconds() - begin;
  }

  // Gives the seconds of a step. All candidates of a point go on from the same tokens.
  static double start(const ProbeContext& context, const DecodeCandidate& candidate, Engine& engine, DecodeRun& run,
                      size_t batch_index) {
    const int batch = static_cast<int>(context.batches[batch_index]);
    if (candidate.starts.empty()) return run.start({}, batch, {});
    const DecodeStart& from = candidate.starts[batch_index];
    FT_CHECK(from.trace_tokens.size() == static_cast<size_t>(batch));
    std::vector<int64_t> text_at;
    for (int i = 0; i < batch; ++i) {
      const int64_t token = from.trace_tokens[static_cast<size_t>(i)];
      if (forces_routing(context)) engine.place_in_routing(run.sequence(i), token);
      if (!context.text_of_trace.empty()) text_at.push_back(context.text_of_trace[static_cast<size_t>(token)]);
    }
    return run.start(from.content, batch, text_at);
  }

  void run_point(ProbeContext& context, Group& group, int64_t asked_context, size_t batch_index, double seconds,
                 std::vector<Samples>& result) {
    const int batch = static_cast<int>(context.batches[batch_index]);
    std::vector<Series> series;
    double fastest = seconds, step_of_each = 0;
    for (size_t i = 0; i < group.runs.size(); ++i) {
      const double step =
          start(context, context.candidates[group.begin + i], *group.engines[i], *group.runs[i], batch_index);
      fastest = std::min(fastest, step);
      step_of_each += step;
      series.push_back(make_series(context, group.begin + i, *group.runs[i], asked_context, batch));
    }
    // The same number for all, or their texts would go apart.
    const auto settle = static_cast<int>(
        std::clamp(kSettleSeconds / std::max(fastest, 1e-9), 1.0, static_cast<double>(kMaxSettleSteps)));
    for (const auto& run : group.runs) run->settle_with(settle);
    MeasureOptions options = measure_options(context, 1);
    const double least = options.budget.min_samples * (settle + kTimedSteps) * step_of_each;
    options.budget.seconds = std::max(seconds, std::min(least, kLeastSeconds));
    options.discard_rounds = 0;  // start() discarded the first tokens before the counters start
    const int rounds = options.budget.max_samples;
    options.budget.max_samples = std::max(rounds, kMaxRounds);
    options.enough = [&series, rounds](int taken) {
      return taken >= rounds && (taken - rounds) % kRoundsBetweenLooks == 0 && is_resolved(series);
    };
    measure(series, options);
    for (size_t i = 0; i < group.runs.size(); ++i) group.runs[i]->describe(series[i].samples);
    check(context, group, series);
    for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
  }

  static Series make_series(const ProbeContext& context, size_t index, DecodeRun& run, int64_t asked_context,
                            int batch) {
    const DecodeCandidate& candidate = context.candidates[index];
    const int64_t missing = DecodeRun::base_of(asked_context, context.base.max_context) - run.length();
    const int64_t filled = asked_context - missing;
    Series one;
    one.samples.name = candidate.name + ".context=" + std::to_string(asked_context) + ".batch=" + std::to_string(batch);
    one.samples.unit = "tok/s";
    one.samples.discarded = kDiscardedTurns;
    one.samples.at = {
        {"candidate", static_cast<double>(index)},       {"context", static_cast<double>(asked_context)},
        {"context_filled", static_cast<double>(filled)}, {"batch", batch},
        {"threads", candidate.config.threads},           {"slots", static_cast<double>(candidate.config.slots)}};
    one.samples.reduced = missing > 0;
    one.sample = [&run] { return run.tokens_per_second(); };
    return one;
  }

  // Samples of an engine that did not do what was asked are dropped, and say what differed. All candidates must give
  // the same answer, bit by bit, at the same token.
  void check(const ProbeContext& context, const Group& group, std::vector<Series>& series) {
    const int64_t row_tiles = context.model.weights->bank.layout(0).gate.row_tiles;
    for (size_t i = 0; i < group.engines.size(); ++i) {
      const DecodeCandidate& candidate = context.candidates[group.begin + i];
      const Engine& engine = *group.engines[i];
      const std::string difference =
          engaged_difference(candidate.config, engine.engaged(), engine.counters(), row_tiles);
      Samples& samples = series[i].samples;
      if (!difference.empty() && !samples.values.empty()) {
        samples.discarded += samples.values.size();
        samples.values.clear();
        samples.reduced = true;
        samples.remarks.push_back(std::string(kRefused) + difference);
      }
      if (group.runs[i]->steps_taken() != group.runs[0]->steps_taken()) continue;  // interrupted within a round
      if (group.runs[i]->answer() != group.runs[0]->answer()) {
        mismatch_ = candidate.name + " gave other logits than " + context.candidates[group.begin].name;
      }
    }
  }

  std::string mismatch_;
};

}  // namespace

// The plan says what may be used, the system what is left of it now.
size_t decode_group_end(const ProbeContext& context, size_t begin) {
  const ModelWeights& weights = *context.model.weights;
  const bool on_gpu = context.memory_inputs.device == Device::kCuda;
  MemoryBytes left = memory_left(context);
  // The banks are there once, and on a GPU the dense weights.
  if (on_gpu) left.device = std::min(left.device, offered_device_bytes(*context.gpu) - weights.formats.dense_bytes);
  if (!on_gpu) {
    left.host = std::min(left.host, context.memory_inputs.host_memory_bytes - weights.formats.expert_bytes_total -
                                        weights.formats.dense_bytes);
  }
  size_t end = begin;
  for (; end < context.candidates.size(); ++end) {
    const DecodeCandidate& candidate = context.candidates[end];
    const MemoryBytes needed = engine_bytes(context, candidate.config);
    if (end == begin) {
      require_memory("the decode runs of " + candidate.name, needed, memory_left(context));
    } else if (needed.host > left.host || (on_gpu && needed.device > left.device)) {
      break;
    }
    left.host -= needed.host;
    left.device -= needed.device + (on_gpu ? kDeviceReserveBytes : 0);  // of the next engine: graphs of its own
  }
  return end;
}

std::unique_ptr<Probe> make_decode_probe() { return std::make_unique<DecodeProbe>(); }

}  // namespace ft
