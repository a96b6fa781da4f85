#include "engine/runtime/drift.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"

namespace ft {
namespace {

// Less of a step is left at context 0 only if the profile is wrong about attention.
constexpr double kLeastWithoutAttention = 0.1;
// Steps of one side of the contexts or batches, as a share of all, that are enough to tell the sides apart.
constexpr double kLeastSide = 0.2;
// Misses more than expected, as a share of all experts, that are no rounding.
constexpr double kLeastMissShare = 0.005;

double change(uint64_t now, uint64_t before) { return static_cast<double>(now - before); }

StepValues between(const StepValues& a, const StepValues& b, double share) {
  StepValues mix;
  for (size_t i = 0; i < mix.value.size(); ++i) mix.value[i] = a.value[i] + share * (b.value[i] - a.value[i]);
  return mix;
}

// Attention is proportional to the positions.
StepValues without_attention(const StepValues& values) {
  StepValues rest = values;
  const double attention = values[StepQuantity::kAttentionSeconds];
  for (const StepQuantity quantity :
       {StepQuantity::kSeconds, StepQuantity::kSecondsLow, StepQuantity::kSecondsHigh, StepQuantity::kPartsSeconds}) {
    rest[quantity] = std::max(values[quantity] - attention, kLeastWithoutAttention * values[quantity]);
  }
  rest[StepQuantity::kAttentionSeconds] = 0;
  return rest;
}

}  // namespace

std::string_view drift_state_name(DriftState state) {
  constexpr std::string_view kNames[] = {"not judged", "inside", "below", "above"};
  return kNames[static_cast<size_t>(state)];
}

std::string_view drift_term_name(DriftTerm term) {
  constexpr std::string_view kNames[] = {"compute",    "hit rate",  "fetch",   "CPU waits",
                                         "throttling", "attention", "context", "batch"};
  return kNames[static_cast<size_t>(term)];
}

ExpectedSteps::ExpectedSteps(const std::vector<ExpectedStep>& points) {
  bool parts = true;
  for (const ExpectedStep& point : points) {
    if (point.context != points[0].context) break;
    FT_CHECK(batches_.empty() || point.batch > batches_.back());
    batches_.push_back(point.batch);
    parts = parts && point.values[StepQuantity::kPartsSeconds] > 0;
  }
  if (points.empty()) return;
  FT_CHECK(points.size() % batches_.size() == 0);
  if (parts) {
    contexts_.push_back(0);
    for (size_t batch = 0; batch < batches_.size(); ++batch) {
      values_.push_back(without_attention(points[batch].values));
    }
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const auto context = static_cast<double>(points[i].context);
    FT_CHECK(points[i].batch == batches_[i % batches_.size()]);
    if (i % batches_.size() == 0) {
      FT_CHECK(contexts_.empty() || context > contexts_.back());
      contexts_.push_back(context);
    }
    FT_CHECK(context == contexts_.back() && points[i].values[StepQuantity::kSeconds] > 0);
    values_.push_back(points[i].values);
  }
}

StepValues ExpectedSteps::at_batch(double context, size_t batch) const {
  const auto above = std::lower_bound(contexts_.begin(), contexts_.end(), context);
  const auto high = static_cast<size_t>(above - contexts_.begin());
  const auto value = [&](size_t index) -> const StepValues& { return values_[index * batches_.size() + batch]; };
  if (*above == context) return value(high);
  return between(value(high - 1), value(high),
                 (context - contexts_[high - 1]) / (contexts_[high] - contexts_[high - 1]));
}

bool ExpectedSteps::at(double context, int batch, StepValues& out) const {
  if (empty() || context < low_context() || context > high_context()) return false;
  if (batch < low_batch() || batch > high_batch()) return false;
  const auto above = std::lower_bound(batches_.begin(), batches_.end(), batch);
  const auto high = static_cast<size_t>(above - batches_.begin());
  out = at_batch(context, high);
  if (*above == batch) return true;
  const double share = static_cast<double>(batch - batches_[high - 1]) / (batches_[high] - batches_[high - 1]);
  out = between(at_batch(context, high - 1), out, share);
  return true;
}

void DriftWatch::Side::add(const Side& other) {
  steps += other.steps;
  seconds += other.seconds;
  expected += other.expected;
}

void DriftWatch::Window::add(const Window& other) {
  steps += other.steps;
  outside += other.outside;
  seconds += other.seconds;
  all_seconds += other.all_seconds;
  context += other.context;
  batch += other.batch;
  for (size_t i = 0; i < expected.value.size(); ++i) expected.value[i] += other.expected.value[i];
  short_contexts.add(other.short_contexts);
  long_contexts.add(other.long_contexts);
  small_batches.add(other.small_batches);
  large_batches.add(other.large_batches);
  hits += other.hits;
  fetched += other.fetched;
  cpu += other.cpu;
  link_wait_seconds += other.link_wait_seconds;
  cpu_wait_seconds += other.cpu_wait_seconds;
  attention_seconds += other.attention_seconds;
  throttled_seconds += other.throttled_seconds;
  measures_waits = measures_waits && other.measures_waits;
}

DriftWatch::DriftWatch(ExpectedSteps expected) : expected_(std::move(expected)) {}

void DriftWatch::add_step(int batch, double context, double seconds) {
  if (expected_.empty()) return;
  window_.all_seconds += seconds;
  StepValues values;
  if (!expected_.at(context, batch, values)) {
    ++window_.outside;
    ++summary_.steps_not_judged;
    summary_.outside_context = context;
    summary_.outside_batch = batch;
    return;
  }
  ++window_.steps;
  window_.seconds += seconds;
  window_.context += context;
  window_.batch += batch;
  for (size_t i = 0; i < values.value.size(); ++i) window_.expected.value[i] += values.value[i];
  const Side side{1, seconds, values[StepQuantity::kSeconds]};
  const bool is_short = 2 * context <= expected_.low_context() + expected_.high_context();
  (is_short ? window_.short_contexts : window_.long_contexts).add(side);
  (batch == expected_.low_batch() ? window_.small_batches : window_.large_batches).add(side);
}

void DriftWatch::count(const DriftReading& reading) {
  Window& w = window_;
  w.hits = change(reading.hits, last_.hits);
  w.fetched = change(reading.fetched, last_.fetched);
  w.cpu = change(reading.cpu, last_.cpu);
  w.cpu_wait_seconds = reading.cpu_wait_seconds - last_.cpu_wait_seconds;
  w.throttled_seconds = reading.throttled_seconds - last_.throttled_seconds;
  w.measures_waits = reading.link_wait_seconds.has_value() && reading.attention_seconds.has_value();
  w.link_wait_seconds = reading.link_wait_seconds.value_or(0) - last_.link_wait_seconds.value_or(0);
  w.attention_seconds = reading.attention_seconds.value_or(0) - last_.attention_seconds.value_or(0);
  last_ = reading;
}

// The state that so many windows like this one in a row would lead to; kNotJudged: they would change nothing.
DriftState DriftWatch::leads_to(const Window& window) const {
  const double ratio = window.ratio();
  const DriftState state = summary_.state;
  if (ratio < window.low() / kLeaveFactor)
    return state == DriftState::kBelow ? DriftState::kNotJudged : DriftState::kBelow;
  if (ratio > window.high() * kLeaveFactor)
    return state == DriftState::kAbove ? DriftState::kNotJudged : DriftState::kAbove;
  const bool inside = ratio >= window.low() / kReturnFactor && ratio <= window.high() * kReturnFactor;
  const bool is_out = state == DriftState::kBelow || state == DriftState::kAbove;
  return is_out && inside ? DriftState::kInside : DriftState::kNotJudged;
}

std::optional<DriftEvent> DriftWatch::close_window(const DriftReading& reading) {
  count(reading);
  const Window window = std::exchange(window_, Window());
  if (window.steps == 0 || window.steps < window.outside) return std::nullopt;
  ++summary_.windows;
  summary_.ratio = window.ratio();
  summary_.low = window.low();
  summary_.high = window.high();
  const DriftState next = leads_to(window);
  if (next == DriftState::kNotJudged) {
    in_a_row_ = 0;
    if (summary_.state == DriftState::kNotJudged) summary_.state = DriftState::kInside;
    remember(window);
    return std::nullopt;
  }
  if (next != towards_ || in_a_row_ == 0) streak_ = Window(), in_a_row_ = 0;
  towards_ = next;
  streak_.add(window);
  if (++in_a_row_ < kWindowsInARow) return std::nullopt;
  in_a_row_ = 0;
  summary_.state = next;
  if (next != DriftState::kInside) ++summary_.times_left;
  summary_.last = describe(next, streak_);
  return summary_.last;
}

void DriftWatch::expect(ExpectedSteps expected, const DriftReading& reading) {
  expected_ = std::move(expected);
  window_ = streak_ = Window();
  in_a_row_ = 0;
  reference_.reset();
  last_ = reading;
  summary_.state = DriftState::kNotJudged;
  summary_.ratio = summary_.low = summary_.high = 0;
}

// Inside the band, terms are what they should be.
void DriftWatch::remember(const Window& window) {
  const double ratio = window.ratio();
  if (summary_.state != DriftState::kInside || ratio < window.low() / kReturnFactor ||
      ratio > window.high() * kReturnFactor) {
    return;
  }
  const Offsets now = offsets_of(window);
  if (!reference_) {
    reference_ = now;
    return;
  }
  const auto move = [](double& value, double to) { value += kReferenceWeight * (to - value); };
  move(reference_->seconds, now.seconds);
  move(reference_->misses, now.misses);
  move(reference_->fetch, now.fetch);
  move(reference_->cpu_waits, now.cpu_waits);
  move(reference_->attention, now.attention);
}

DriftWatch::Offsets DriftWatch::offsets_of(const Window& window) {
  using Q = StepQuantity;
  const double step = window.per_step(Q::kSeconds);
  const double fetched = window.counted_per_step(window.fetched), cpu = window.counted_per_step(window.cpu);
  const double more_misses = fetched + cpu - window.per_step(Q::kFetched) - window.per_step(Q::kCpu);
  const double misses = window.per_step(Q::kFetched) + window.per_step(Q::kCpu);
  const double hits = window.counted_per_step(window.hits);
  const double link = window.counted_per_step(window.link_wait_seconds);
  const double waits = window.counted_per_step(window.cpu_wait_seconds);
  // Waits that the expected parts would have with as many experts as there were.
  const auto scaled = [&](Q wait, double count, Q expected) {
    const double should = window.per_step(expected);
    return window.per_step(wait) * (should > 0 ? count / should : 1);
  };
  Offsets offsets;
  offsets.seconds = window.seconds / static_cast<double>(window.steps) / step - 1;
  if (misses > 0 && window.per_step(Q::kMissSeconds) > 0) {
    offsets.misses = more_misses * window.per_step(Q::kMissSeconds) / misses / step;
  } else if (more_misses > kLeastMissShare * (hits + fetched + cpu)) {
    // Nobody knows what a miss costs where none was expected: whatever the step has too much.
    offsets.misses = offsets.seconds;
  }
  const double unexpected_fetch = window.per_step(Q::kFetched) > 0 ? 0 : fetched;  // counted as misses
  if (window.measures_waits && unexpected_fetch == 0) {
    offsets.fetch = (link - scaled(Q::kLinkWaitSeconds, fetched, Q::kFetched)) / step;
  }
  offsets.cpu_waits = (waits - scaled(Q::kCpuWaitSeconds, cpu, Q::kCpu)) / step;
  if (window.measures_waits) {
    offsets.attention =
        (window.counted_per_step(window.attention_seconds) - window.per_step(Q::kAttentionSeconds)) / step;
  }
  return offsets;
}

DriftEvent DriftWatch::describe(DriftState state, const Window& window) const {
  DriftEvent event;
  event.state = state;
  event.ratio = window.ratio();
  event.low = window.low();
  event.high = window.high();
  event.steps = window.steps;
  event.expected_seconds = window.per_step(StepQuantity::kSeconds);
  event.achieved_seconds = window.seconds / static_cast<double>(window.steps);
  event.context = window.context / static_cast<double>(window.steps);
  event.batch = window.batch / static_cast<double>(window.steps);
  event.measures_waits = window.measures_waits;
  if (state != DriftState::kInside) name_term(window, event);
  return event;
}

void DriftWatch::name_term(const Window& window, DriftEvent& event) const {
  using Q = StepQuantity;
  const double step = event.expected_seconds;
  const Offsets now = offsets_of(window), before = reference_.value_or(Offsets());
  const double excess = (now.seconds - before.seconds) * step;
  const double sign = excess < 0 ? -1 : 1;
  const bool parts = window.expected[Q::kPartsSeconds] > 0 || reference_.has_value();
  const auto consider = [&](DriftTerm term, double moved, double expected, double achieved) {
    const double least = std::max(kTermShare * sign * excess, sign * event.moved_seconds);
    if (sign * moved <= least) return;
    event.term = term;
    event.moved_seconds = moved;
    event.expected = expected;
    event.achieved = achieved;
  };
  const double throttled = window.counted_per_step(window.throttled_seconds);
  consider(DriftTerm::kThrottling, throttled, 0, throttled);
  if (event.term == DriftTerm::kThrottling) return;  // it stretches all the others
  const auto share = [](double hits, double misses) { return hits + misses > 0 ? hits / (hits + misses) : 1; };
  consider(DriftTerm::kHitRate, (now.misses - before.misses) * step,
           share(window.per_step(Q::kHits), window.per_step(Q::kFetched) + window.per_step(Q::kCpu)),
           share(window.hits, window.fetched + window.cpu));
  if (parts) {
    const auto counted = [&](double sum) { return window.counted_per_step(sum); };
    const auto wait = [&](DriftTerm term, double moved_share, double achieved) {
      consider(term, moved_share * step, achieved - moved_share * step, achieved);
    };
    wait(DriftTerm::kFetch, now.fetch - before.fetch, counted(window.link_wait_seconds));
    wait(DriftTerm::kCpuWaits, now.cpu_waits - before.cpu_waits, counted(window.cpu_wait_seconds));
    wait(DriftTerm::kAttention, now.attention - before.attention, counted(window.attention_seconds));
  }
  if (event.term != DriftTerm::kNone) return;
  // One side of the contexts or batches alone: `few` is as expected, `many` is not.
  const auto one_side = [&](const Side& few, const Side& many) {
    const double least = kLeastSide * static_cast<double>(window.steps);
    if (static_cast<double>(few.steps) < least || static_cast<double>(many.steps) < least) return false;
    const auto is_off = [&](const Side& side) {
      const double ratio = side.expected / side.seconds;
      return sign > 0 ? ratio < event.low / kLeaveFactor : ratio > event.high * kLeaveFactor;
    };
    return is_off(many) && !is_off(few);
  };
  if (one_side(window.small_batches, window.large_batches)) {
    event.term = DriftTerm::kBatch;
  } else if (one_side(window.short_contexts, window.long_contexts)) {
    event.term = DriftTerm::kContext;
  }
}

}  // namespace ft
