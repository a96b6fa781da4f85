#include "engine/server/service_watch.h"

#include <utility>

#include "engine/server/drift_text.h"
#include "kernels/base/error.h"

namespace ft {

ServiceWatch::ServiceWatch(Engine& engine, DriftOptions options)
    : engine_(engine), options_(std::move(options)), watch_(options_.expected) {
  if (options_.throttled_cpu_seconds) cpu_seconds_before_ = options_.throttled_cpu_seconds();
  read();
}

void ServiceWatch::stepped(std::span<const TokenRun> runs, double seconds) {
  int64_t positions = 0;
  for (const TokenRun& run : runs) {
    if (run.prompt || run.ids.size() != 1) return;
    positions += run.position + 1;
  }
  const auto batch = static_cast<int>(runs.size());
  watch_.add_step(batch, static_cast<double>(positions) / batch, seconds);
}

// Throttling is counted all the time, and shared out between decode and prefill by their time.
DriftReading ServiceWatch::read() {
  const EngineCounters counters = engine_.counters();
  const bool host = engine_.config().device == Device::kHost;
  DriftReading reading;
  reading.hits = counters.expert_hits;
  reading.fetched = counters.expert_fetched;
  reading.cpu = counters.expert_cpu;
  if (host) reading.link_wait_seconds = counters.decode_link_wait_seconds;
  if (host) reading.attention_seconds = counters.attention_seconds;
  reading.cpu_wait_seconds = counters.cpu_wait_seconds;
  const double decode = counters.decode_seconds - std::exchange(decode_seconds_before_, counters.decode_seconds);
  const double prefill = counters.prefill_seconds - std::exchange(prefill_seconds_before_, counters.prefill_seconds);
  if (options_.throttled_cpu_seconds && decode > 0) {
    const double now = options_.throttled_cpu_seconds();
    const double stopped = (now - std::exchange(cpu_seconds_before_, now)) / engine_.config().threads;
    throttled_seconds_ += stopped * decode / (decode + prefill);
  }
  reading.throttled_seconds = throttled_seconds_;
  return reading;
}

void ServiceWatch::say(std::string_view text, bool warning) const {
  if (options_.say) options_.say(text, warning);
}

void ServiceWatch::say_outside_once() {
  if (said_outside_ || watch_.summary().steps_not_judged < kWindowSteps) return;
  said_outside_ = true;
  say(drift_outside_text(watch_.summary(), watch_.expected()), false);
}

void ServiceWatch::fall_back(const DriftEvent& event, const DriftReading& reading) {
  if (!offload_may_help(event.term)) {
    say("drift: does not fall back: offload fetches every miss, and fetching is what has become slow", true);
    return;
  }
  const FallbackPlan plan = std::move(*options_.fallback);
  options_.fallback.reset();
  const std::string from = engine_.engaged().strategy;
  try {
    engine_.change_split(plan.strategy, plan.fetch_of_misses, plan.promote_bytes_per_layer);
  } catch (const Error& error) {
    say(std::string("drift: cannot fall back: ") + error.what(), true);
    return;
  }
  fell_back_from_ = from;
  watch_.expect(plan.expected, reading);
  say("drift: falls back from " + from + " to " + std::string(strategy_name(plan.strategy)) +
          " until the next start; answers stay the same" +
          (plan.expected.empty() ? ", the profile does not say how fast: no longer judged" : ""),
      true);
}

void ServiceWatch::between_steps() {
  if (!watch_.window_is_full()) return;
  const DriftReading reading = read();
  const std::optional<DriftEvent> event = watch_.close_window(reading);
  say_outside_once();
  if (!event) return;
  say(drift_text(*event), event->state == DriftState::kBelow);
  if (event->state == DriftState::kBelow && options_.fallback) fall_back(*event, reading);
}

DriftStats ServiceWatch::stats() const {
  DriftStats stats;
  stats.summary = watch_.summary();
  stats.judged = !watch_.expected().empty();
  stats.throttled_seconds = throttled_seconds_;
  stats.has_fallback = options_.fallback.has_value();
  stats.fell_back_from = fell_back_from_;
  return stats;
}

}  // namespace ft
