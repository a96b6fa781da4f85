// One engine decoding real text again and again at one context: what `decode` takes its samples from.
//
// A sample is a turn: back to the start of a short window before the context, a few untimed steps that bring weights
// and KV back into the caches that another engine used meanwhile (a server has them for itself), then the timed ones.
// So every sample is at the context asked for, however many there are. The text goes on through all turns, as does a
// forced routing: no turn repeats the tokens of another.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "probes/probe.h"

namespace ft {

inline constexpr int kTimedSteps = 4;      // of a turn
inline constexpr int kMaxSettleSteps = 8;  // untimed ones before them
inline constexpr int kDiscardedTurns = 2;  // the first 8 tokens of a point

class DecodeRun {
 public:
  // Opens max_batch sequences of `engine`, which has none open. Both references stay valid. REQUIRES text not empty.
  DecodeRun(Engine& engine, const std::vector<int32_t>& text);
  ~DecodeRun();
  DecodeRun(const DecodeRun&) = delete;
  DecodeRun& operator=(const DecodeRun&) = delete;

  // Tokens that every sequence holds before a turn for `context`; `turn_steps` more make the context.
  static int64_t base_of(int64_t context, int64_t max_context);

  int64_t length() const { return length_; }  // of every sequence, between turns
  void fill(int64_t length);                  // prefills or forgets, so that every sequence has so many tokens
  void copy_from(const DecodeRun& filled);    // the same tokens and keys and values, without computing them

  // A point of `batch` sequences from here on: starts the cache from `content` (empty: as it is), discards the first
  // turns, clears the counters. Gives the seconds of a step. The sequences read the text on from the indexes `text_at`,
  // one each (empty: from where their prompts ended).
  double start(const SlotTable::Content& content, int batch, std::span<const int64_t> text_at);
  int sequence(int index) const { return sequences_[static_cast<size_t>(index)]; }  // of the engine
  void settle_with(int steps) { settle_steps_ = steps; }  // 1 .. kMaxSettleSteps; fewer when max_context is small
  double tokens_per_second();                             // one turn, over all sequences

  // Hit rates and what was engaged, into at and remarks.
  void describe(Samples& samples) const;
  std::string answer() const { return engine_.counters().logits_hash; }
  uint64_t steps_taken() const { return steps_taken_; }  // since start: equal in two runs, so are their answers

 private:
  struct Mark {
    uint64_t hits = 0, experts = 0;
  };
  int64_t apart(int sequence) const;  // in the text, from the first sequence
  int32_t token(int64_t at) const { return text_[static_cast<size_t>(at) % text_.size()]; }
  double hit_rate(size_t from, size_t to) const;
  void mark();
  void rewind();
  void step();
  double timed_steps(int count);  // seconds

  Engine& engine_;
  const std::vector<int32_t>& text_;
  std::vector<int> sequences_;
  std::vector<int32_t> ids_;
  std::vector<TokenRun> runs_;
  std::vector<SequenceMark> starts_;  // of every sequence at length_
  int batch_ = 1;
  int settle_steps_ = kMaxSettleSteps;
  int64_t length_ = 0;            // of the sequences between turns
  int64_t position_ = 0;          // of the batch within a turn
  std::vector<int64_t> text_at_;  // of every sequence: its next token
  uint64_t steps_taken_ = 0;
  std::vector<Mark> marks_ = {Mark{}};
};

// Candidates whose engines fit in memory together are interleaved by `decode`; the others follow. The end of the group
// of context.candidates that begins at `begin`: at least one more. The plan says what may be used, the system what is
// left of it now. Throws Error(kFailed) where not even the first fits.
size_t decode_group_end(const ProbeContext& context, size_t begin);

}  // namespace ft
