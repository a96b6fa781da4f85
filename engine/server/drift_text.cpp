#include "engine/server/drift_text.h"

#include <spdlog/fmt/fmt.h>

namespace ft {
namespace {

std::string milliseconds(double seconds) { return fmt::format("{:.3g} ms", 1e3 * seconds); }

std::string term_text(const DriftEvent& event) {
  const std::string moved = fmt::format("{:+.3g} ms a step", 1e3 * event.moved_seconds);
  switch (event.term) {
    case DriftTerm::kHitRate:
      return fmt::format("hit rate moved: {:.0f} % in place of {:.0f} %, {}", 100 * event.achieved,
                         100 * event.expected, moved);
    case DriftTerm::kThrottling:
      return fmt::format("throttling: the CPU quota of the control group stops it for {} a step",
                         milliseconds(event.achieved));
    case DriftTerm::kFetch:
    case DriftTerm::kCpuWaits:
    case DriftTerm::kAttention:
      return fmt::format("{} moved: {} in place of {}, {}", drift_term_name(event.term), milliseconds(event.achieved),
                         milliseconds(event.expected), moved);
    case DriftTerm::kContext:
      return "context moved: only steps in the longer half of the tuned contexts";
    case DriftTerm::kBatch:
      return "batch moved: only steps with more sequences than the smallest tuned batch";
    case DriftTerm::kNone:
      break;
  }
  return event.measures_waits
             ? "compute moved: hit rate, fetch, CPU waits, attention and throttling do not explain it (clocks, other "
               "load on the cores, another kernel)"
             : "compute or fetch moved, which this device does not tell apart: hit rate, CPU waits and throttling do "
               "not explain it";
}

}  // namespace

std::string drift_text(const DriftEvent& event) {
  const std::string rate = fmt::format(
      "{:.2f} of the expected rate (band {:.2f} to {:.2f}): {} a step in place of {}, "
      "over {} steps at context {:.0f}, batch {:.2g}",
      event.ratio, event.low, event.high, milliseconds(event.achieved_seconds), milliseconds(event.expected_seconds),
      event.steps, event.context, event.batch);
  if (event.state == DriftState::kInside) return "drift: inside the band again, " + rate;
  return "drift: decodes at " + rate + "; " + term_text(event);
}

std::string drift_outside_text(const DriftSummary& summary, const ExpectedSteps& expected) {
  return fmt::format(
      "drift: steps at context {:.0f} and batch {} are outside of what was tuned (contexts {:.0f} to "
      "{:.0f}, batches {} to {}) and are not judged",
      summary.outside_context, summary.outside_batch, expected.low_context(), expected.high_context(),
      expected.low_batch(), expected.high_batch());
}

}  // namespace ft
