#include "probes/decode_run.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr double kSteadyDifference = 0.02;  // of the halves' hit rates

}  // namespace

DecodeRun::DecodeRun(Engine& engine, const std::vector<int32_t>& text) : engine_(engine), text_(text) {
  FT_CHECK(!text.empty());
  for (int i = 0; i < engine.config().max_batch; ++i) sequences_.push_back(engine.open_sequence());
  ids_.resize(sequences_.size());
  runs_.reserve(sequences_.size());
  mark();
}

DecodeRun::~DecodeRun() {
  for (const int sequence : sequences_) engine_.close_sequence(sequence);
}

int64_t DecodeRun::base_of(int64_t context, int64_t max_context) {
  return std::max<int64_t>(0, std::min(context, max_context) - kMaxSettleSteps - kTimedSteps);
}

// Sequences of a batch read the text apart from each other.
int64_t DecodeRun::apart(int sequence) const {
  return sequence * static_cast<int64_t>(text_.size()) / static_cast<int64_t>(sequences_.size());
}

void DecodeRun::fill(int64_t length) {
  rewind();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    int64_t kept = std::min(length, length_);
    if (!engine_.can_rewind(sequences_[i], kept)) kept = 0;
    engine_.rewind_sequence(sequences_[i], kept);
    ids.clear();
    for (int64_t p = kept; p < length; ++p) ids.push_back(token(apart(static_cast<int>(i)) + p));
    if (!ids.empty()) engine_.prefill(sequences_[i], ids);
  }
  length_ = position_ = length;
  mark();
}

void DecodeRun::copy_from(const DecodeRun& filled) {
  FT_CHECK(sequences_.size() == filled.sequences_.size() && filled.position_ == filled.length_);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    engine_.copy_sequence(sequences_[i], filled.engine_, filled.sequences_[i]);
  }
  length_ = position_ = filled.length_;
  mark();
}

void DecodeRun::mark() {
  starts_.clear();
  for (const int sequence : sequences_) starts_.push_back(engine_.mark_sequence(sequence));
}

void DecodeRun::rewind() {
  for (int i = 0; i < batch_ && position_ > length_; ++i) {
    engine_.rewind_sequence(sequences_[static_cast<size_t>(i)], starts_[static_cast<size_t>(i)]);
  }
  position_ = length_;
}

double DecodeRun::start(const SlotTable::Content& content, int batch, std::span<const int64_t> text_at) {
  FT_CHECK(batch >= 1 && batch <= static_cast<int>(sequences_.size()));
  FT_CHECK(text_at.empty() || text_at.size() == static_cast<size_t>(batch));
  rewind();
  batch_ = batch;
  text_at_.assign(text_at.begin(), text_at.end());
  for (int i = static_cast<int>(text_at.size()); i < batch; ++i) text_at_.push_back(apart(i) + length_);
  steps_taken_ = 0;
  if (!content.key_of_slot.empty()) engine_.restore_cache(content);
  double seconds = 0;
  for (int turn = 0; turn < kDiscardedTurns; ++turn) seconds = timed_steps(kTimedSteps) / kTimedSteps;
  engine_.reset_counters();
  marks_ = {Mark{}};
  return seconds;
}

double DecodeRun::tokens_per_second() {
  rewind();
  const int64_t room = engine_.config().max_context - length_ - kTimedSteps;
  timed_steps(static_cast<int>(std::clamp<int64_t>(settle_steps_, 0, std::max<int64_t>(0, room))));
  const double seconds = timed_steps(kTimedSteps);
  const EngineCounters counters = engine_.counters();
  marks_.push_back({counters.expert_hits, counters.expert_hits + counters.expert_fetched + counters.expert_cpu});
  return kTimedSteps * batch_ / seconds;
}

double DecodeRun::timed_steps(int count) {
  const double begin = now_seconds();
  for (int i = 0; i < count; ++i) step();
  return now_seconds() - begin;
}

void DecodeRun::step() {
  if (position_ == engine_.config().max_context) rewind();
  runs_.clear();
  for (int i = 0; i < batch_; ++i) {
    const auto index = static_cast<size_t>(i);
    ids_[index] = token(text_at_[index]++);
    runs_.push_back({sequences_[index], position_, std::span(ids_).subspan(index, 1), false, true});
  }
  engine_.step(runs_);
  ++position_;
  ++steps_taken_;
}

double DecodeRun::hit_rate(size_t from, size_t to) const {
  const uint64_t experts = marks_[to].experts - marks_[from].experts;
  if (experts == 0) return 0;
  return static_cast<double>(marks_[to].hits - marks_[from].hits) / static_cast<double>(experts);
}

void DecodeRun::describe(Samples& samples) const {
  const size_t last = marks_.size() - 1, middle = last / 2;
  const EngagedRecord engaged = engine_.engaged();
  samples.at["hit_rate"] = hit_rate(0, last);
  samples.at["hit_rate_first_half"] = hit_rate(0, middle);
  samples.at["hit_rate_second_half"] = hit_rate(middle, last);
  samples.at["threads_worked"] = engaged.threads_worked;
  samples.at["fetched_share"] = engaged.fetched_share;
  // What it did, in counts: two candidates with the same ones over the same steps are one.
  const EngineCounters counters = engine_.counters();
  samples.at["steps"] = static_cast<double>(counters.decode_steps);
  samples.at["expert_hits"] = static_cast<double>(counters.expert_hits);
  samples.at["expert_fetched"] = static_cast<double>(counters.expert_fetched);
  samples.at["expert_cpu"] = static_cast<double>(counters.expert_cpu);
  samples.at["expert_promoted"] = static_cast<double>(counters.expert_promoted);
  samples.at["expert_prefetched"] = static_cast<double>(counters.expert_prefetched);
  samples.at["copy_engine"] = engine_.config().fetch_mechanism == FetchMechanism::kCopyEngine ? 1 : 0;
  if (middle > 0 && std::abs(hit_rate(0, middle) - hit_rate(middle, last)) > kSteadyDifference) {
    samples.remarks.push_back("not steady: hit rates of the halves differ by more than 2 points");
  }
}

}  // namespace ft
