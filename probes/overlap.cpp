// CPU experts while copies run. One MoE layer after the other reads its experts' weights with the CPU, copies as many
// over the link, or both at once; each series is the bytes that were moved for the arms' work over the time. What each
// arm keeps is told by the sum of both beside each alone.
#include <algorithm>
#include <string>

#include "kernels/base/error.h"
#include "probes/engine_setup.h"
#include "probes/measure.h"

namespace ft {
namespace {

class OverlapProbe final : public Probe {
 public:
  std::string_view id() const override { return "overlap"; }
  std::string_view measures() const override { return "CPU experts while copies to slots run: what each keeps."; }
  std::string_view unit() const override { return "GB/s"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.model.weights == nullptr) return {false, "no model is given"};
    if (context.model.weights->geometry.expert.top_k < 2) return {false, "one expert per token cannot be shared out"};
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
      PlanMaker plans(engine->geometry(), context.trace, engine->config().slots);
      const int half = engine->geometry().expert.top_k / 2;
      std::vector<std::unique_ptr<LayerLoop>> loops;
      std::vector<Series> series;
      add(*engine, plans, "cpu", {1, 0, 0, half, 0}, loops, series);
      add(*engine, plans, "link", {1, 0, half, 0, 0}, loops, series);
      add(*engine, plans, "both", {1, 0, half, half, 0}, loops, series);
      measure(series, measure_options(context, share));
      for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
      spoilt_ = spoilt_ || answer_hash(*engine) != before;
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (spoilt_) throw Error(ErrorKind::kFailed, {.what = "the engine answers differently after overlapped copies"});
  }

 private:
  static void add(Engine& engine, PlanMaker& plans, const std::string& name, const SweepPoint& point,
                  std::vector<std::unique_ptr<LayerLoop>>& loops, std::vector<Series>& series) {
    loops.push_back(std::make_unique<LayerLoop>(engine, plans, point));
    LayerLoop* loop = loops.back().get();
    const int threads = engine.config().threads;
    const double layer_bytes = static_cast<double>(engine.formats().expert_bytes_max * point.experts());
    Series one;
    one.samples.name = name + ".threads=" + std::to_string(threads);
    one.samples.unit = "GB/s";
    one.samples.at = {{"threads", threads},
                      {"cpu", point.cpu},
                      {"fetched", point.fetched},
                      {"bytes", layer_bytes * static_cast<double>(loop->layers_per_sample())}};
    one.sample = [loop, layer_bytes] { return layer_bytes / loop->microseconds_per_layer() * 1e-3; };
    series.push_back(std::move(one));
  }

  bool spoilt_ = false;
};

}  // namespace

std::unique_ptr<Probe> make_overlap_probe() { return std::make_unique<OverlapProbe>(); }

}  // namespace ft
