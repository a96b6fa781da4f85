// Embedding rows that stay on disk (engine/model/row_table.h): what a step of some tokens waits for them, all tables of
// the model, through the code that serves. Tokens are random, so their rows lie anywhere in the tables: most come from
// the disk until the kernel has the tables in memory. The same tokens once more say what is not the fetching.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/model/ngram_hash.h"
#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/ngram_rows.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "probes/measure.h"

namespace ft {
namespace {

// Steps of one token in each of some sequences.
class RowSteps {
 public:
  RowSteps(const LoadedModel& model, WorkerPool& pool, int tokens)
      : model_(model),
        pool_(pool),
        tokens_(tokens),
        states_(model.family->geometry().state_floats, tokens),
        rows_(tokens, model.family->width(Slot::kNgram)),
        ids_(static_cast<size_t>(tokens)) {
    tables_ = ngram_tables(*model.family, *model.weights);
  }

  void draw(Random& random) {
    const auto vocab = static_cast<uint64_t>(model_.family->geometry().vocab);
    std::vector<TokenRun> runs;
    for (size_t i = 0; i < ids_.size(); ++i) {
      ids_[i] = static_cast<int32_t>(random.below(vocab));
      runs.push_back({.sequence = static_cast<int>(i), .ids = {&ids_[i], 1}});
    }
    StepBatch batch;
    batch.runs = runs;
    batch.tokens = batch.logits_rows = static_cast<int64_t>(ids_.size());
    batch.decode = true;
    tokens_.assign(batch);
  }
  double microseconds() {
    const double begin = now_seconds();
    for (const NgramEmbedSpec& spec : tables_) {
      embed_ngrams(spec, *model_.weights, pool_, tokens_, states_, {rows_.row(0), rows_.stride()});
    }
    return (now_seconds() - begin) * 1e6;
  }
  // The last table's rows, read one by one.
  bool right() const {
    const NgramHash& hash = *tables_.back().hash;
    const RowTable& table = (*model_.weights)[tables_.back().table];
    std::vector<float> row(static_cast<size_t>(table.width()));
    for (size_t i = 0; i < ids_.size(); ++i) {
      std::vector<int32_t> window(static_cast<size_t>(hash.size()), ids_[i]);
      hash.separate(window, 0);
      for (int64_t head = 0; head < hash.heads(); ++head) {
        table.read(hash.row(window, head), row.data());
        const float* got = rows_.row(static_cast<int64_t>(i)) + head * table.width();
        // A table may hold NaN.
        if (!std::equal(row.begin(), row.end(), got, [](float a, float b) { return a == b || (a != a && b != b); })) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  const LoadedModel& model_;
  WorkerPool& pool_;
  StepTokens tokens_;
  StateCache states_;
  RowBuffer<float> rows_;
  std::vector<int32_t> ids_;
  std::vector<NgramEmbedSpec> tables_;
};

class HostRowsProbe final : public Probe {
 public:
  std::string_view id() const override { return "host_rows"; }
  std::string_view measures() const override {
    return "Reading the embedding rows of a step's tokens from tables that stay on disk, new rows and the same again.";
  }
  std::string_view unit() const override { return "us"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.model.weights == nullptr) return {false, "no model is given"};
    if (context.model.weights->row_tables.empty()) return {false, "the model has no tables whose rows stay on disk"};
    if (context.model.weights->checkpoint == nullptr) return {false, "rows of synthetic weights are made, not read"};
    if (context.batches.empty()) return {false, "no batch is given"};
    return {};
  }

  std::vector<Samples> run(ProbeContext& context) override {
    wrong_ = false;
    std::vector<Samples> result;
    const double share = 1.0 / static_cast<double>(context.thread_counts.size());
    std::vector<int> batches = context.batches;
    batches.push_back(1);
    std::sort(batches.begin(), batches.end());
    batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
    Random random(kSeed);
    for (const int threads : context.thread_counts) {
      if (context.interrupted && context.interrupted()) break;
      context.say(std::to_string(threads) + " threads");
      WorkerPool pool({.threads = threads, .cpus = context.cpus->pinning});
      std::vector<std::unique_ptr<RowSteps>> steps;
      std::vector<Series> series;
      for (const int batch : batches) {
        steps.push_back(std::make_unique<RowSteps>(context.model, pool, batch));
        RowSteps& one = *steps.back();
        series.push_back(make_series(context, threads, batch, false, [&one, &random] {
          one.draw(random);
          return one.microseconds();
        }));
        series.push_back(make_series(context, threads, batch, true, [&one] { return one.microseconds(); }));
      }
      measure(series, measure_options(context, share));
      for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
      for (const auto& one : steps) wrong_ = wrong_ || !one->right();
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (wrong_) throw Error(ErrorKind::kFailed, {.what = "a step read other embedding rows than its tokens have"});
  }

 private:
  static constexpr uint64_t kSeed = 11;

  static Series make_series(const ProbeContext& context, int threads, int batch, bool again,
                            std::function<double()> sample) {
    Series one;
    one.samples.name = std::string(again ? "again." : "new.") + "tokens=" + std::to_string(batch) +
                       ".threads=" + std::to_string(threads);
    one.samples.unit = "us";
    one.samples.at = {{"threads", threads},
                      {"tokens", batch},
                      {"again", again ? 1 : 0},
                      {"bytes", static_cast<double>(context.model.weights->formats.row_bytes_per_token * batch)},
                      {"table_bytes", static_cast<double>(context.model.weights->formats.row_table_bytes)}};
    one.sample = std::move(sample);
    return one;
  }

  bool wrong_ = false;
};

}  // namespace

std::unique_ptr<Probe> make_host_rows_probe() { return std::make_unique<HostRowsProbe>(); }

}  // namespace ft
