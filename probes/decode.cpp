// The real engine, candidate by candidate, interleaved: what the tuner checks its predictions with. Each candidate
// starts from the cache content that its trace replay ended with and a KV cache filled to the context; its text goes on
// where the prompt ended, so that routing is a real text's.
#include <algorithm>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/engine_setup.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr int kStepsPerSample = 4;          // caches of one candidate stay its own for so many tokens
constexpr int kDiscardedSamples = 2;        // the first 8 tokens
constexpr double kPrefillShare = 0.5;       // of the budget, for filling KV caches
constexpr double kSteadyDifference = 0.02;  // of the halves' hit rates

struct Mark {
  uint64_t hits = 0, experts = 0;
};

// One candidate at one (context, batch).
class Running {
 public:
  Running(Engine& engine, const DecodeCandidate& candidate, const std::vector<int32_t>& text, int batch)
      : engine_(engine), text_(text), batch_(batch), ids_(static_cast<size_t>(batch)) {
    for (int i = 0; i < batch; ++i) sequences_.push_back(engine.open_sequence());
    content_ = &candidate.content;
  }
  ~Running() {
    for (const int sequence : sequences_) engine_.close_sequence(sequence);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void fill(int64_t context) {
    std::vector<int32_t> prompt(static_cast<size_t>(context - position_));
    for (int i = 0; i < batch_; ++i) {
      for (size_t p = 0; p < prompt.size(); ++p) prompt[p] = token(i, position_ + static_cast<int64_t>(p));
      if (!prompt.empty()) engine_.prefill(sequences_[static_cast<size_t>(i)], prompt);
    }
    position_ = context;
  }

  void start() {
    if (!content_->key_of_slot.empty()) engine_.restore_cache(*content_);
    for (int i = 0; i < kDiscardedSamples * kStepsPerSample; ++i) step();
    engine_.reset_counters();
    marks_ = {Mark{}};
  }

  double tokens_per_second() {
    const double begin = now_seconds();
    for (int i = 0; i < kStepsPerSample; ++i) step();
    const double seconds = now_seconds() - begin;
    const EngineCounters counters = engine_.counters();
    const uint64_t experts = counters.expert_hits + counters.expert_fetched + counters.expert_cpu;
    marks_.push_back({counters.expert_hits, experts});
    return kStepsPerSample * batch_ / seconds;
  }

  double hit_rate(size_t from, size_t to) const {
    const uint64_t experts = marks_[to].experts - marks_[from].experts;
    if (experts == 0) return 0;
    return static_cast<double>(marks_[to].hits - marks_[from].hits) / static_cast<double>(experts);
  }

  void describe(Samples& samples) const {
    const size_t last = marks_.size() - 1, middle = last / 2;
    const EngagedRecord engaged = engine_.engaged();
    samples.at["hit_rate"] = hit_rate(0, last);
    samples.at["hit_rate_first_half"] = hit_rate(0, middle);
    samples.at["hit_rate_second_half"] = hit_rate(middle, last);
    samples.at["threads_worked"] = engaged.threads_worked;
    samples.at["fetched_share"] = engaged.fetched_share;
    if (middle > 0 && std::abs(hit_rate(0, middle) - hit_rate(middle, last)) > kSteadyDifference) {
      samples.remarks.push_back("not steady: hit rates of the halves differ by more than 2 points");
    }
  }

  std::string answer() const { return engine_.counters().logits_hash; }
  int64_t position() const { return position_; }

 private:
  int32_t token(int sequence, int64_t position) const {
    const auto size = static_cast<int64_t>(text_.size());
    return text_[static_cast<size_t>((position + sequence * size / batch_) % size)];
  }

  void step() {
    std::vector<TokenRun> runs;
    for (int i = 0; i < batch_; ++i) {
      ids_[static_cast<size_t>(i)] = token(i, position_);
      runs.push_back({sequences_[static_cast<size_t>(i)], position_, std::span(ids_).subspan(static_cast<size_t>(i), 1),
                      false, true});
    }
    engine_.step(runs);
    ++position_;
  }

  Engine& engine_;
  const std::vector<int32_t>& text_;
  const SlotTable::Content* content_ = nullptr;
  int batch_ = 1;
  std::vector<int32_t> ids_;
  std::vector<int> sequences_;
  int64_t position_ = 0;
  std::vector<Mark> marks_ = {Mark{}};
};

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
    const auto points = static_cast<double>(context.contexts.size() * context.batches.size());
    size_t begin = 0;
    while (begin < context.candidates.size()) {
      const size_t end = group_end(context, begin);
      const auto part = static_cast<double>(end - begin) / static_cast<double>(context.candidates.size());
      std::vector<std::unique_ptr<Engine>> engines;
      for (size_t i = begin; i < end; ++i) {
        engines.push_back(std::make_unique<Engine>(context.model, context.candidates[i].config, context.memory_inputs));
        if (context.base.weights.synthetic && context.trace != nullptr) engines.back()->set_routing(context.trace);
      }
      for (const int64_t position : context.contexts) {
        for (const int batch : context.batches) {
          if (context.interrupted && context.interrupted()) return result;
          run_point(context, begin, engines, position, batch, part / points, result);
        }
      }
      if (context.progress) context.progress("decode", part);
      begin = end;
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (mismatch_.empty()) return;
    throw Error(ErrorKind::kFailed, {.what = "decode engaged or answered otherwise than asked", .value = mismatch_});
  }

 private:
  // Candidates whose engines fit in memory together are interleaved; the others follow.
  static size_t group_end(const ProbeContext& context, size_t begin) {
    const ModelWeights& weights = *context.model.weights;
    int64_t left = context.memory_inputs.host_memory_bytes - weights.formats.expert_bytes_total;
    size_t end = begin;
    for (; end < context.candidates.size(); ++end) {
      const EngineConfig& config = context.candidates[end].config;
      left -= plan_memory(weights.geometry, weights.formats, config, context.memory_inputs).device_bytes;
      if (left < 0 && end > begin) break;
    }
    return end;
  }

  // The context that can be filled in time, judged by the first chunk of the first candidate.
  static int64_t affordable_context(const ProbeContext& context, Running& first, int64_t wanted, int batch,
                                    size_t candidates, double seconds) {
    const int64_t chunk = std::min<int64_t>(context.base.prefill_chunk, wanted);
    const double begin = now_seconds();
    first.fill(chunk);
    const double per_token = std::max(1e-9, (now_seconds() - begin) / static_cast<double>(chunk * batch));
    const double tokens = kPrefillShare * seconds / per_token / static_cast<double>(candidates) / batch;
    return std::clamp(static_cast<int64_t>(tokens), chunk, wanted);
  }

  void run_point(ProbeContext& context, size_t first_candidate, std::vector<std::unique_ptr<Engine>>& engines,
                 int64_t asked_context, int batch, double share, std::vector<Samples>& result) {
    MeasureOptions options = measure_options(context, share);
    options.discard_rounds = 0;  // the engines discard their first tokens before the counters start
    const int64_t room = context.base.max_context / kStepsPerSample - kDiscardedSamples;
    options.budget.max_samples = static_cast<int>(std::clamp<int64_t>(room, 1, options.budget.max_samples));
    const int64_t steps = int64_t{options.budget.max_samples + kDiscardedSamples} * kStepsPerSample;
    const int64_t wanted =
        std::clamp<int64_t>(asked_context, 1, std::max<int64_t>(1, context.base.max_context - steps));

    std::vector<std::unique_ptr<Running>> running;
    for (size_t i = 0; i < engines.size(); ++i) {
      running.push_back(
          std::make_unique<Running>(*engines[i], context.candidates[first_candidate + i], context.text_ids, batch));
    }
    const int64_t filled =
        affordable_context(context, *running[0], wanted, batch, engines.size(), options.budget.seconds);
    std::vector<Series> series;
    for (size_t i = 0; i < running.size(); ++i) {
      running[i]->fill(filled);
      running[i]->start();
      series.push_back(make_series(context, first_candidate + i, *running[i], filled, asked_context, batch));
    }
    options.budget.seconds *= 1 - kPrefillShare;
    measure(series, options);
    check(context, first_candidate, engines, running);
    for (size_t i = 0; i < running.size(); ++i) running[i]->describe(series[i].samples);
    for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
  }

  static Series make_series(const ProbeContext& context, size_t index, Running& running, int64_t filled,
                            int64_t asked_context, int batch) {
    const DecodeCandidate& candidate = context.candidates[index];
    Series one;
    one.samples.name = candidate.name + ".context=" + std::to_string(asked_context) + ".batch=" + std::to_string(batch);
    one.samples.unit = "tok/s";
    one.samples.discarded = kDiscardedSamples;
    one.samples.at = {
        {"candidate", static_cast<double>(index)},       {"context", static_cast<double>(asked_context)},
        {"context_filled", static_cast<double>(filled)}, {"batch", batch},
        {"threads", candidate.config.threads},           {"slots", static_cast<double>(candidate.config.slots)}};
    if (filled < asked_context) {
      one.samples.reduced = true;
      one.samples.remarks.push_back("context filled to " + std::to_string(filled) + " tokens only");
    }
    one.sample = [&running] { return running.tokens_per_second(); };
    return one;
  }

  // What worked must be what was asked, and all candidates must give the same answer, bit by bit, at the same token.
  void check(const ProbeContext& context, size_t first_candidate, std::vector<std::unique_ptr<Engine>>& engines,
             const std::vector<std::unique_ptr<Running>>& running) {
    for (size_t i = 0; i < engines.size(); ++i) {
      const DecodeCandidate& candidate = context.candidates[first_candidate + i];
      const EngagedRecord engaged = engines[i]->engaged();
      if (engaged.strategy != strategy_name(candidate.config.strategy) || engaged.slots != candidate.config.slots ||
          engaged.threads_worked != candidate.config.threads) {
        mismatch_ = candidate.name + " engaged " + engaged.strategy + ", " + std::to_string(engaged.slots) +
                    " slots, " + std::to_string(engaged.threads_worked) + " threads";
      }
      if (running[i]->position() != running[0]->position()) continue;  // interrupted within a round
      if (running[i]->answer() != running[0]->answer()) {
        mismatch_ = candidate.name + " gave other logits than " + context.candidates[first_candidate].name;
      }
    }
  }

  std::string mismatch_;
};

}  // namespace

std::unique_ptr<Probe> make_decode_probe() { return std::make_unique<DecodeProbe>(); }

}  // namespace ft
