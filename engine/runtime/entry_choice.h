// Which entries of an index fit a token best: their scores, and the choice among them, for a group of tokens at a time.
// Equal scores go to the lower entry. Thread rule: all threads of a pool call, with barriers between the calls. No
// allocation after the constructor.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/runtime/activation_buffers.h"
#include "kernels/host/worker_pool.h"

namespace ft {

class EntryChoice {
 public:
  static constexpr int64_t kBlock = 64;  // entries of one task

  EntryChoice() = default;
  EntryChoice(int64_t group, int64_t entries, WorkerPool* pool)
      : scores_(group, entries, pool), order_(group, entries, pool) {}

  // Places [0, count) of the group; competing(place) entries of a place compete, `longest` at most; 0: it does not
  // choose. score(place, begin, end, to) scores some of them.
  template <class Competing, class Score>
  void score(int64_t count, int64_t longest, int worker, int workers, Competing&& competing, Score&& score) {
    const int64_t blocks = (longest + kBlock - 1) / kBlock;
    const Range part = split_range(count * blocks, worker, workers);
    for (int64_t task = part.begin; task < part.end; ++task) {
      const int64_t place = task / blocks, begin = task % blocks * kBlock;
      const int64_t end = std::min(begin + kBlock, competing(place));
      if (begin < end) score(place, begin, end, scores_.row(place) + begin);
    }
  }

  // The `kept` best entries of each place that chooses.
  template <class Competing>
  void choose(int64_t count, int64_t kept, int worker, int workers, Competing&& competing) {
    const Range part = split_range(count, worker, workers);
    for (int64_t place = part.begin; place < part.end; ++place) {
      const int64_t all = competing(place);
      if (all == 0) continue;
      uint64_t* order = order_.row(place);
      for (int64_t entry = 0; entry < all; ++entry) order[entry] = rank(scores_.row(place)[entry], entry);
      std::nth_element(order, order + kept, order + all);
      for (int64_t i = 0; i < kept; ++i) order[i] &= 0xffffffffu;
      std::sort(order, order + kept);
    }
  }

  // The index-th entry that a place chose, in order of entries.
  int64_t chosen(int64_t place, int64_t index) const { return static_cast<int64_t>(order_.row(place)[index]); }

 private:
  // Grows with what comes later in the order: smaller scores, then higher entries; NaN is the smallest score.
  static uint64_t rank(float score, int64_t entry) {
    const auto bits = std::bit_cast<uint32_t>(score == 0 ? 0.0f : score);
    const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t{std::isnan(score) ? ~0u : ~ascending} << 32) | static_cast<uint64_t>(entry);
  }

  RowBuffer<float> scores_;    // (group) of entries
  RowBuffer<uint64_t> order_;  // (group) entries by score; those that were chosen
};

}  // namespace ft
