#include "engine/program/banner.h"

#include <spdlog/fmt/fmt.h>

#include "kernels/base/error.h"

namespace ft {

std::string decision_text(const Profile& profile) {
  const Decision& d = profile.decision;
  std::string text = fmt::format("strategy {}: predicted {:.1f} tok/s", d.strategy, d.predicted_tok_s);
  if (d.measured_tok_s > 0) text += fmt::format(", measured {:.1f} tok/s when tuned", d.measured_tok_s);
  text += fmt::format(" on device {}\n", profile.serve.device);
  if (d.runner_up.empty()) {
    text += "  runner-up: none\n";
  } else {
    text += fmt::format("  runner-up: {}; margin {:.2f}x ({:.2f} to {:.2f}){}\n", d.runner_up, d.margin, d.margin_low,
                        d.margin_high, d.tie ? ", a tie: the simpler one was taken" : "");
  }
  if (!d.reason.empty()) text += "  why: " + d.reason + "\n";
  for (const std::string& forced : profile.conditions.forced) text += "  forced: " + forced + "\n";
  for (const std::string& warning : d.warnings) text += "  warning: " + warning + "\n";
  if (profile.serve.synthetic_seed) {
    text += fmt::format("  weights are synthetic (seed {}), routing from {}\n", *profile.serve.synthetic_seed,
                        printable(profile.serve.routing_preset.value_or("the router")));
  }
  text.pop_back();  // the log ends the line
  return text;
}

std::string memory_plan_text(const MemoryPlan& plan, const EngineConfig& config) {
  constexpr double kMiB = 1024.0 * 1024.0;
  std::string text = fmt::format("{:<28} {:>12}  {}\n", "pool", "MiB", "where");
  for (const MemoryPool& pool : plan.pools) {
    text += fmt::format("{:<28} {:>12.2f}  {}\n", pool.name, static_cast<double>(pool.bytes) / kMiB,
                        pool.on_disk     ? "disk"
                        : pool.on_device ? "device"
                                         : "host");
  }
  text += fmt::format("device {:.2f} MiB, host {:.2f} MiB; {} slots ({} to {} possible), batch {}, context {}\n",
                      static_cast<double>(plan.device_bytes) / kMiB, static_cast<double>(plan.host_bytes) / kMiB,
                      config.slots, plan.min_slots, plan.max_slots, config.max_batch, config.max_context);
  return text;
}

}  // namespace ft
