// Prompts: experts in host memory against experts at hand and against one pass over the link; and the rate of the
// expert products, which is what a prompt takes longer than with experts of nearly no width.
#include <algorithm>
#include <cmath>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

constexpr int64_t kTokens = 4096;
constexpr double kSlotsPercent = 25;
constexpr int64_t kThin = 64;  // width of the experts that nearly are not there

// After a first chunk that warms.
double prefill_seconds(Engine& engine, std::span<const int32_t> ids) {
  double seconds = 0;
  for (const size_t count : {std::min<size_t>(ids.size(), kMaxPrefillChunk), ids.size()}) {
    const int sequence = engine.open_sequence();
    FT_CHECK(sequence >= 0);
    const double begin = now_seconds();
    engine.prefill(sequence, ids.first(count));
    seconds = now_seconds() - begin;
    engine.close_sequence(sequence);
  }
  return seconds;
}

double prefill_seconds(ModelCase& one, Strategy strategy, int64_t slots, std::span<const int32_t> ids) {
  EngineConfig config = one.config(strategy, slots, 1);
  config.prefill_chunk = kMaxPrefillChunk;
  config.max_context = static_cast<int64_t>(ids.size()) + 1;
  return prefill_seconds(*one.engine(config), ids);
}

void say(Bench& bench, const std::string& name, double seconds, size_t tokens) {
  bench.report.info("prefill", name, seconds, "s",
                    std::to_string(std::llround(static_cast<double>(tokens) / seconds)) + " tok/s");
}

// Against the vendor's library on the same shapes.
void report_rate(ModelCase& one, std::span<const int32_t> ids, double resident) {
  constexpr double kGoal = 0.25;
  Bench& bench = one.bench;
  const std::string name = std::string(one.geometry.name) + " expert products of a resident prefill";
  GeometryCase thin = one.geometry;
  thin.name = "thin";
  thin.intermediate = kThin;
  ModelCase without(bench, thin, true);
  const double rest =
      prefill_seconds(without, Strategy::kResident, without.model.weights->geometry.total_experts(), ids);
  const double operations = 6.0 * static_cast<double>(one.geometry.hidden * (one.geometry.intermediate - kThin)) *
                            one.geometry.top_k * one.moe_layers() * static_cast<double>(ids.size());
  if (resident <= rest) return bench.report.not_run("prefill", name, "no slower than with experts of width 64");
  const double rate = operations / (resident - rest);
  bench.report.info("prefill", name, rate * 1e-12, "Tflop/s",
                    "the same with experts of width 64 takes " + std::to_string(rest).substr(0, 5) + " s");
  const std::optional<double> vendor =
      bench.options.device == Device::kCuda
          ? vendor_expert_rate(one.model.weights->geometry.expert, static_cast<int64_t>(ids.size()))
          : std::nullopt;
  if (!vendor) return bench.report.not_run("prefill", name + " over cuBLAS", "libcublas is not on this machine");
  bench.report.info("prefill", std::string(one.geometry.name) + " cuBLAS, bf16, the same shapes", *vendor * 1e-12,
                    "Tflop/s");
  bench.report.goal({"prefill", name + " over cuBLAS", rate / *vendor, "x", kGoal, false, {}, {}});
}

}  // namespace

void run_prefill(ModelCase& one) {
  constexpr double kGoal = 1.3;
  Bench& bench = one.bench;
  const std::string base(one.geometry.name);
  const std::string name = base + " 4k tokens from host memory over the larger of both";
  if (!bench.has_time(8, "prefill", name)) return;
  bench.report.heading("prefill of " + base);
  bench.progress(name);
  const int64_t tokens = std::min(kTokens, one.model.weights->geometry.max_positions - 1);
  const std::vector<int32_t> ids = some_ids(tokens, one.model.weights->geometry.vocab);
  try {
    const double resident = prefill_seconds(one, Strategy::kResident, one.model.weights->geometry.total_experts(), ids);
    say(bench, base + " 4k tokens, all experts resident", resident, ids.size());
    if (!bench.has_time(3 * resident, "prefill", name)) return;
    const double streamed = prefill_seconds(one, Strategy::kOffload, slots_of(one.geometry, kSlotsPercent), ids);
    say(bench, base + " 4k tokens, experts in host memory", streamed, ids.size());
    double pass = 0;
    if (bench.ceilings.link > 0) {
      pass = static_cast<double>(one.model.weights->formats.expert_bytes_total) / bench.ceilings.link;
      bench.report.info("prefill", base + " one pass of the experts over the link", pass, "s");
    }
    bench.report.goal({"prefill", name, streamed / std::max(pass, resident), "x", kGoal, true, {}, {}});
    report_rate(one, ids, resident);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) throw;
    bench.report.not_run("prefill", name, error.what());
  }
}

}  // namespace ft::bench
