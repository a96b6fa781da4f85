#include "probes/layer_sweep.h"

#include <algorithm>
#include <set>
#include <string>

#include "kernels/base/error.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr double kPairShare = 0.1;  // of a thread count's time, for pairs of two engines

std::vector<int> arm_counts(int top_k, bool coarse) {
  std::set<int> counts = {0, 1, top_k};
  if (top_k >= 2) counts.insert(std::max(1, top_k / 2));
  if (!coarse && top_k >= 2) counts.insert(2);
  if (!coarse && top_k >= 4) counts.insert(3 * top_k / 4);
  return {counts.begin(), counts.end()};
}

int arms(const SweepPoint& point) {
  return (point.hits > 0 ? 1 : 0) + (point.fetched > 0 ? 1 : 0) + (point.cpu > 0 ? 1 : 0);
}

class LayerSweepProbe final : public Probe {
 public:
  std::string_view id() const override { return "layer_sweep"; }
  std::string_view measures() const override {
    return "All MoE layers in sequence, as the engine runs them, over counts of fetched, CPU and hit experts.";
  }
  std::string_view unit() const override { return "us"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.model.weights == nullptr) return {false, "no model is given"};
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
      const std::unique_ptr<Engine> predicting = make_look_ahead_engine(context, *engine);
      const bool first = threads == context.thread_counts.front();
      const std::unique_ptr<Engine> copying = first ? make_copy_engine_engine(context, *engine) : nullptr;
      const double pairs = kPairShare * share;
      run_engine(context, *engine, share - (predicting != nullptr ? pairs : 0) - (copying != nullptr ? pairs : 0),
                 result);
      // A layer that has nothing to do but to route.
      if (predicting != nullptr) {
        const int batch = context.base.max_batch;
        run_pairs(context, {*engine, *predicting, kLookAheadCoordinate, {"off", "router"}, {{1}, {batch}}}, pairs,
                  result);
      }
      if (copying != nullptr) {
        const int some = std::max(2, engine->geometry().expert.top_k / 2);
        run_pairs(context, {*engine, *copying, kCopyEngineCoordinate, {"off", "on"}, {{1, 0, 1}, {1, 0, some}}}, pairs,
                  result);
      }
      spoilt_ = spoilt_ || answer_hash(*engine) != before;
    }
    return result;
  }

  void verify(ProbeContext&) override {
    if (spoilt_) {
      throw Error(ErrorKind::kFailed, {.what = "the engine answers differently after layer_sweep: slots were spoilt"});
    }
  }

 private:
  // A round takes all points once. When min_samples rounds would not fit, the coarse grid is taken.
  static bool needs_coarse(const std::vector<SweepPoint>& grid, Engine& engine, PlanMaker& plans, double seconds,
                           int rounds) {
    SweepPoint heaviest = grid.front();
    for (const SweepPoint& point : grid) {
      if (point.tokens == 1 && point.experts() >= heaviest.experts() && point.cpu >= heaviest.cpu) heaviest = point;
    }
    LayerLoop loop(engine, plans, heaviest);
    const double sample = loop.microseconds_per_layer() * 1e-6 * static_cast<double>(loop.layers_per_sample());
    return sample * static_cast<double>(grid.size()) * (rounds + 1) > seconds;
  }

  static void run_engine(ProbeContext& context, Engine& engine, double share, std::vector<Samples>& result) {
    const ExpertGeometry& expert = engine.geometry().expert;
    MeasureOptions options = measure_options(context, share);
    options.shuffle_seed = 1;
    PlanMaker plans(engine.geometry(), context.trace, engine.config().slots);
    const auto grid_of = [&](bool coarse) {
      return sweep_grid(expert, context.base.max_batch, engine.config().slots, coarse);
    };
    std::vector<SweepPoint> grid = grid_of(false);
    const bool coarse = needs_coarse(grid, engine, plans, options.budget.seconds, options.budget.min_samples);
    if (coarse) grid = grid_of(true);
    std::vector<std::unique_ptr<LayerLoop>> loops;
    std::vector<Series> series;
    for (const SweepPoint& point : grid) {
      if (context.interrupted && context.interrupted()) break;
      loops.push_back(std::make_unique<LayerLoop>(engine, plans, point));
      Series one;
      one.samples.name = "h" + std::to_string(point.hits) + ".f" + std::to_string(point.fetched) + ".c" +
                         std::to_string(point.cpu) + ".p" + std::to_string(point.promoted) +
                         ".tokens=" + std::to_string(point.tokens) +
                         ".threads=" + std::to_string(engine.config().threads);
      one.samples.unit = "us";
      one.samples.reduced = coarse;
      one.samples.at = sweep_coordinates(point, engine.config().threads, expert.top_k);
      one.samples.at["layers"] = static_cast<double>(loops.back()->layers_per_sample());
      one.sample = [loop = loops.back().get()] { return loop->microseconds_per_layer(); };
      series.push_back(std::move(one));
    }
    measure(series, options);
    for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
  }

  struct Pairs {
    Engine &without, &with;
    const char* coordinate;
    const char* words[2];  // in names: without, with
    std::set<SweepPoint> points;
  };
  // The points on both engines in turn.
  static void run_pairs(ProbeContext& context, const Pairs& pairs, double share, std::vector<Samples>& result) {
    std::vector<std::unique_ptr<PlanMaker>> plans;
    std::vector<std::unique_ptr<LayerLoop>> loops;
    std::vector<Series> series;
    for (const SweepPoint& point : pairs.points) {
      for (Engine* engine : {&pairs.without, &pairs.with}) {
        plans.push_back(std::make_unique<PlanMaker>(engine->geometry(), context.trace, engine->config().slots));
        loops.push_back(std::make_unique<LayerLoop>(*engine, *plans.back(), point));
        const int threads = engine->config().threads, is_with = engine == &pairs.with ? 1 : 0;
        Series one;
        one.samples.name = std::string(pairs.coordinate) + "=" + pairs.words[is_with] +
                           (point.fetched > 0 ? ".f" + std::to_string(point.fetched) : "") +
                           ".tokens=" + std::to_string(point.tokens) + ".threads=" + std::to_string(threads);
        one.samples.unit = "us";
        one.samples.at = sweep_coordinates(point, threads, engine->geometry().expert.top_k);
        one.samples.at[pairs.coordinate] = is_with;
        one.sample = [loop = loops.back().get()] { return loop->microseconds_per_layer(); };
        series.push_back(std::move(one));
      }
    }
    measure(series, measure_options(context, share));
    for (Samples& samples : samples_of(series)) result.push_back(std::move(samples));
  }

  bool spoilt_ = false;
};

}  // namespace

std::vector<SweepPoint> sweep_grid(const ExpertGeometry& expert, int max_batch, int64_t slots, bool coarse) {
  const int top_k = expert.top_k;
  const std::vector<int> counts = arm_counts(top_k, coarse);
  std::set<SweepPoint> points;
  const auto add = [&](const SweepPoint& point) {
    if (point.hits + point.fetched + point.promoted > slots) return;
    if (point.experts() > std::min(expert.experts, point.tokens * top_k)) return;
    points.insert(point);
  };
  for (const int hits : counts) {
    for (const int fetched : counts) {
      for (const int cpu : counts) {
        const SweepPoint point{1, hits, fetched, cpu, 0};
        if (point.experts() <= top_k && !(coarse && arms(point) > 2)) add(point);
      }
    }
  }
  for (const int promoted : {1, std::max(1, top_k / 2)}) add({1, 0, 0, top_k, promoted});
  // Promotions beside hits and fetches, as a hybrid has them.
  if (top_k >= 4) add({1, top_k / 2, 0, top_k / 2, 1});
  if (top_k >= 4 && !coarse) {
    for (int promoted = 1; promoted <= std::min(2, top_k / 4); ++promoted) {
      add({1, top_k / 2, top_k / 4, top_k / 4, promoted});
    }
  }
  if (max_batch > 1) {
    add({max_batch, 0, 0, 0, 0});
    // Up to every expert that a batch can choose: real batches choose about half as many as they have picks.
    for (int n = 1; n <= max_batch * top_k; n = n == 1 && top_k > 1 ? top_k : 2 * n) {
      if (n > top_k && max_batch * top_k % n != 0) continue;  // rows are shared evenly only then
      add({max_batch, n, 0, 0, 0});
      add({max_batch, 0, n, 0, 0});
      add({max_batch, 0, 0, n, 0});
    }
  }
  std::vector<SweepPoint> grid(points.begin(), points.end());
  std::stable_sort(grid.begin(), grid.end(),
                   [](const SweepPoint& a, const SweepPoint& b) { return arms(a) < arms(b); });
  return grid;
}

int picks_of(const SweepPoint& point, int experts, int top_k) {
  const int all = point.experts();
  if (all <= top_k) return experts * point.tokens;
  return static_cast<int>(int64_t{point.tokens} * top_k * experts / all);
}

std::map<std::string, double> sweep_coordinates(const SweepPoint& point, int threads, int top_k) {
  return {{"threads", threads},
          {"tokens", point.tokens},
          {"hits", point.hits},
          {"fetched", point.fetched},
          {"cpu", point.cpu},
          {"promoted", point.promoted},
          {"hit_picks", picks_of(point, point.hits, top_k)},
          {"fetched_picks", picks_of(point, point.fetched, top_k)},
          {"cpu_picks", picks_of(point, point.cpu, top_k)}};
}

std::unique_ptr<Probe> make_layer_sweep_probe() { return std::make_unique<LayerSweepProbe>(); }

}  // namespace ft
