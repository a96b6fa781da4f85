// The decode step with every expert at hand: attention, dense products and head against batch and context. The experts
// run too, as hits, chosen by the trace as in serving (one token on with every step, other tokens for every sequence):
// the tuner takes their time out by the model fitted to layer_sweep. A sample begins with an untimed step, so that
// caches hold what this engine's steps leave and not another point's.
#include "probes/dense.h"

#include <algorithm>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/engine_setup.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr double kSampleSeconds = 2e-3;  // of steps: a few hiccups of the machine are small beside it
constexpr int kMaxSteps = 8;

class DenseProbe final : public Probe {
 public:
  std::string_view id() const override { return "dense"; }
  std::string_view measures() const override {
    return "The decode step without misses: attention, dense products and head against context and batch.";
  }
  std::string_view unit() const override { return "us"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.model.weights == nullptr) return {false, "no model is given"};
    if (context.contexts.empty() || context.batches.empty()) return {false, "no context or batch is given"};
    if (context.trace == nullptr) return {false, "no routing trace is given"};
    return {};
  }

  std::vector<Samples> run(ProbeContext& context) override {
    spoilt_ = false;
    std::vector<Samples> result;
    const double share = 1.0 / static_cast<double>(context.thread_counts.size());
    for (const int threads : context.thread_counts) {
      if (context.interrupted && context.interrupted()) break;
      context.say(std::to_string(threads) + " threads");
      const std::unique_ptr<Engine> engine = make_probe_engine(context, threads);
      const std::string before = answer_hash(*engine);
      engine->set_routing(context.trace);
      std::vector<Series> series;
      for (const int64_t position : positions(context)) {
        for (const int batch : batches(context)) {
          series.push_back(make_series(*engine, *context.trace, batch, position));
        }
      }
      const std::unique_ptr<Engine> promoting = make_promoting_engine(context, *engine);
      if (promoting != nullptr) {
        promoting->set_routing(context.trace);
        for (const int batch : batches(context)) {
          series.push_back(make_series(*promoting, *context.trace, batch, positions(context).back()));
          series.back().samples.name += ".copier";
          series.back().samples.at[kCopierCoordinate] = 1;
        }
      }
      MeasureOptions options = measure_options(context, share);
      options.shuffle_seed = 1;
      measure(series, options);
      engine->set_routing(nullptr);
      if (promoting != nullptr) promoting->set_routing(nullptr);
      for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
      spoilt_ = spoilt_ || answer_hash(*engine) != before;
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (spoilt_) throw Error(ErrorKind::kFailed, {.what = "the engine answers differently after dense steps"});
  }

 private:
  // Beside what is asked for, one position near the start: the line through both gives the cost of a position.
  static std::vector<int64_t> positions(const ProbeContext& context) {
    std::vector<int64_t> result = {1};
    for (const int64_t position : context.contexts) {
      result.push_back(std::clamp<int64_t>(position, 1, context.base.max_context));
    }
    return sorted(result);
  }

  static std::vector<int> batches(const ProbeContext& context) {
    std::vector<int> result = context.batches;
    result.push_back(1);
    return sorted(result);
  }

  template <class T>
  static std::vector<T> sorted(std::vector<T> values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
  }

  static Series make_series(Engine& engine, const RoutingTrace& trace, int batch, int64_t position) {
    const int threads = engine.config().threads;
    Series one;
    one.samples.name = "context=" + std::to_string(position) + ".batch=" + std::to_string(batch) +
                       ".threads=" + std::to_string(threads);
    one.samples.unit = "us";
    one.samples.at = {{"threads", threads},
                      {"tokens", batch},
                      {"context", static_cast<double>(position)},
                      {"hits", mean_distinct(trace, batch, engine.config().max_batch)},
                      {"hit_picks", trace.top_k * batch}};
    one.sample = [&engine, batch, position] {
      const double begin = now_seconds();
      engine.run_dense_step(batch, position);
      const double start = now_seconds();
      const int steps = std::clamp(static_cast<int>(kSampleSeconds / std::max(start - begin, 1e-9)), 1, kMaxSteps);
      for (int i = 0; i < steps; ++i) engine.run_dense_step(batch, position);
      return (now_seconds() - start) * 1e6 / steps;
    };
    return one;
  }

  bool spoilt_ = false;
};

}  // namespace

std::unique_ptr<Probe> make_dense_probe() { return std::make_unique<DenseProbe>(); }

}  // namespace ft
