// Part `profile`: which kernels the time of a step goes to, for the cases that goals are set for.
#include <cstdio>
#include <functional>

#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "tests/bench/bench.h"
#include "tests/bench/step_trace.h"

namespace ft::bench {
namespace {

// Between two steps the host samples and launches: 100 us and more under the tracer. Inside one no kernel waits that
// long for its launch.
constexpr uint64_t kStepGapNs = 50'000;
constexpr int kSteps = 24;
constexpr double kSlotsPercent = 25;

class Profiler {
 public:
  explicit Profiler(ModelCase& one) : one_(one), report_(one.bench.report) {}

  void run() {
    if (!trace_.why_not().empty()) return report_.not_run("profile", name("all of it"), trace_.why_not());
    const int64_t slots = slots_of(one_.geometry, kSlotsPercent);
    // What promotions cost, kernel by kernel: the same hybrid without any and with one a layer.
    for (const int promotions : {0, 1}) promoting(slots, promotions);
    resident("T_res, context 32", one_.config(Strategy::kOffload, slots, 1), 1, kShortContext);
    EngineConfig longest = one_.config(Strategy::kOffload, slots, 1);
    longest.max_context = kLongContext + 1;
    resident("T_res, context 32k", longest, 1, kLongContext);
    for (const Strategy strategy : {Strategy::kOffload, Strategy::kHybrid}) {
      for (const bool ahead : {false, true}) decoding(strategy, slots, 1, ahead);
    }
    decoding(Strategy::kHybrid, slots, 4, false);
  }

 private:
  static constexpr int64_t kLongContext = 32'768;

  std::string name(const std::string& what) const { return std::string(one_.geometry.name) + " " + what; }

  void resident(const std::string& what, const EngineConfig& config, int batch, int64_t context) {
    step(what, [&] {
      const std::unique_ptr<Engine> engine = one_.engine(config);
      engine->set_routing(one_.traces("q38-mixed").tails(batch));
      trace_.restart();
      return resident_seconds(*engine, batch, context, kSteps);
    });
  }

  void decoding(Strategy strategy, int64_t slots, int batch, bool ahead) {
    const std::string what = std::string(strategy_name(strategy)) + " 25% q38-mixed" +
                             (batch > 1 ? " batch " + std::to_string(batch) : "") + (ahead ? " look-ahead" : "");
    step(what, [&] {
      TraceSet traces = one_.traces("q38-mixed");
      if (ahead) predict_ahead(traces);
      DecodePlan plan = plan_decode(one_, traces, strategy, slots, batch);
      if (ahead) look_ahead(plan.config);
      const std::unique_ptr<Engine> engine = one_.engine(plan.config);
      trace_.restart();
      return median(decode(*engine, plan, traces, batch, one_.bench.options.warm_steps, kSteps).step_seconds);
    });
  }

  void promoting(int64_t slots, int promotions) {
    const std::string what = "hybrid 25% q38-mixed, " + std::to_string(promotions) + " promotions a layer";
    step(what, [&] {
      TraceSet traces = one_.traces("q38-mixed");
      DecodePlan plan = plan_decode(one_, traces, Strategy::kHybrid, slots, 1);
      plan.config.promote_bytes_per_layer = promotions * one_.blob_bytes();
      const std::unique_ptr<Engine> engine = one_.engine(plan.config);
      trace_.restart();
      return median(decode(*engine, plan, traces, 1, one_.bench.options.warm_steps, kSteps).step_seconds);
    });
  }

  void step(const std::string& what, const std::function<double()>& traced) {
    if (!one_.bench.has_time(4, "profile", name(what))) return;
    one_.bench.progress("profile: " + name(what));
    try {
      const double seconds = traced();
      print(what, seconds, profile_steps(trace_.kernels(), kStepGapNs));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kInterrupted) throw;
      report_.not_run("profile", name(what), error.what());
    }
  }

  void print(const std::string& what, double seconds, const StepProfile& profile) {
    if (profile.steps == 0) return report_.not_run("profile", name(what), "the tracer saw no kernels");
    char note[160];
    std::snprintf(note, sizeof note, "%d steps traced; %.0f us from first to last kernel; tracing slows the step",
                  profile.steps, profile.span_us);
    report_.info("profile", name(what) + ": step", 1e6 * seconds, "us", note);
    for (const ProfileRow& row : profile.rows) {
      std::snprintf(note, sizeof note, "%.0f launches of %.2f us; %.1f us before them nothing ran", row.launches,
                    row.duration_us, row.idle_before_us);
      report_.info("profile", name(what) + ": " + row.name, row.exposed_us, "us", note);
    }
  }

  ModelCase& one_;
  Report& report_;
  StepTrace trace_;
};

}  // namespace

void run_profile(ModelCase& one) {
  if (one.bench.options.device != Device::kCuda) {
    return one.bench.report.not_run("profile", std::string(one.geometry.name),
                                    "it traces a GPU's kernels; the host device has none");
  }
  one.bench.report.heading("profile of a step, " + std::string(one.geometry.name) + ": time on the device's time line");
  Profiler(one).run();
}

}  // namespace ft::bench
