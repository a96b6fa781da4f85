#include "engine/program/drift_config.h"

#include <spdlog/fmt/fmt.h>

#include "kernels/base/error.h"

namespace ft {
namespace {

using Q = StepQuantity;

double part_seconds(const ExpectedPoint& point, std::initializer_list<std::string_view> names) {
  double seconds = 0;
  for (const ExpectedPart& part : point.parts) {
    for (const std::string_view name : names) seconds += part.name == name ? part.seconds : 0;
  }
  return seconds;
}

ExpectedStep expected_step(const ExpectedPoint& point, Device device) {
  const auto batch = static_cast<double>(point.batch);
  ExpectedStep step;
  step.context = point.context;
  step.batch = static_cast<int>(point.batch);
  StepValues& values = step.values;
  values[Q::kSeconds] = batch / point.tok_s;
  values[Q::kSecondsLow] = batch / point.high_tok_s;
  values[Q::kSecondsHigh] = batch / point.low_tok_s;
  values[Q::kFetched] = batch * point.fetched_per_token;
  values[Q::kCpu] = batch * point.cpu_per_token;
  // Without misses any number of hits is a rate of 1.
  const double misses = values[Q::kFetched] + values[Q::kCpu];
  values[Q::kHits] = point.hit_rate < 1 && misses > 0 ? misses * point.hit_rate / (1 - point.hit_rate) : 1;
  for (const ExpectedPart& part : point.parts) values[Q::kPartsSeconds] += part.seconds;
  values[Q::kMissSeconds] = part_seconds(point, {"fetch", "idle", "cpu"});
  values[Q::kAttentionSeconds] = part_seconds(point, {"attention"});
  if (device == Device::kHost) {
    values[Q::kLinkWaitSeconds] = part_seconds(point, {"fetch", "idle"});
    values[Q::kCpuWaitSeconds] = part_seconds(point, {"synchronization"});
  } else {
    values[Q::kCpuWaitSeconds] = part_seconds(point, {"cpu", "synchronization"});
  }
  return step;
}

}  // namespace

ExpectedSteps expected_steps(const std::vector<ExpectedPoint>& points, Device device) {
  std::vector<ExpectedStep> steps;
  steps.reserve(points.size());
  for (const ExpectedPoint& point : points) steps.push_back(expected_step(point, device));
  return ExpectedSteps(steps);
}

DriftOptions drift_options(const Serve& serve, bool fall_back) {
  const Device device = serve.device == device_name(Device::kCuda) ? Device::kCuda : Device::kHost;
  const auto refuse = [](std::string what, std::string action, std::string path) {
    throw Error(ErrorKind::kUsage,
                {.what = std::move(what), .value = "absent", .action = std::move(action), .path = std::move(path)});
  };
  DriftOptions drift;
  drift.expected = expected_steps(serve.expected, device);
  if (!fall_back) return drift;
  if (serve.expected.empty()) {
    refuse("--on-drift fallback needs a profile that says what to expect", "tune again with this version",
           "$.serve.expected");
  }
  if (!serve.fallback) {
    refuse("--on-drift fallback has nothing to fall back to with strategy " + serve.strategy + " and " +
               std::to_string(serve.slots) + " slots",
           "leave --on-drift out", "$.serve.fallback");
  }
  drift.fallback = FallbackPlan{.strategy = *strategy_by_name(serve.fallback->strategy),  // names: the schema's
                                .fetch_of_misses = serve.fallback->fetch_of_misses,
                                .promote_bytes_per_layer = serve.fallback->promote_bytes_per_layer,
                                .expected = expected_steps(serve.fallback->expected, device)};
  return drift;
}

std::string watch_text(const DriftOptions& drift) {
  if (drift.expected.empty()) return "drift: not judged, the profile does not say what to expect (serve.expected)";
  const ExpectedSteps& expected = drift.expected;
  std::string text =
      fmt::format("drift: judged at contexts {:.0f} to {:.0f} and batches {} to {}", expected.low_context(),
                  expected.high_context(), expected.low_batch(), expected.high_batch());
  if (drift.fallback) {
    text += fmt::format("; below its band the engine falls back to {}", strategy_name(drift.fallback->strategy));
  }
  return text;
}

}  // namespace ft
