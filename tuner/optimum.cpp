#include "tuner/optimum.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Uses of experts in order: distinct ones per step and layer.
struct Uses {
  std::vector<int64_t> key;   // layer * experts + expert
  std::vector<int64_t> step;  // of each use
  int64_t keys = 0;
};

Uses uses_of(const std::vector<TraceSequence>& sequences) {
  FT_CHECK(!sequences.empty());
  const RoutingTrace& shape = *sequences[0].trace;
  int64_t steps = sequences[0].tokens;
  for (const TraceSequence& sequence : sequences) steps = std::min(steps, sequence.tokens);
  Uses uses;
  uses.keys = static_cast<int64_t>(shape.layers) * shape.experts;
  std::vector<int64_t> last(static_cast<size_t>(uses.keys), -1);
  for (int64_t step = 0; step < steps; ++step) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (const TraceSequence& sequence : sequences) {
        for (const int16_t id : sequence.trace->at(sequence.begin + step, layer)) {
          const int64_t key = static_cast<int64_t>(layer) * shape.experts + id;
          if (last[static_cast<size_t>(key)] == step) continue;
          last[static_cast<size_t>(key)] = step;
          uses.key.push_back(key);
          uses.step.push_back(step);
        }
      }
    }
  }
  return uses;
}

std::vector<int64_t> next_uses(const Uses& uses) {
  std::vector<int64_t> next(uses.key.size()), seen(static_cast<size_t>(uses.keys), kNever);
  for (size_t i = uses.key.size(); i-- > 0;) {
    int64_t& later = seen[static_cast<size_t>(uses.key[i])];
    next[i] = later;
    later = static_cast<int64_t>(i);
  }
  return next;
}

}  // namespace

OptimumResult offline_optimum(const std::vector<TraceSequence>& sequences, int64_t slots, int64_t discard_steps) {
  FT_CHECK(slots >= 1);
  const Uses uses = uses_of(sequences);
  const std::vector<int64_t> next = next_uses(uses);
  std::vector<int64_t> next_of_key(static_cast<size_t>(uses.keys), -1);  // -1: in no slot
  std::priority_queue<std::pair<int64_t, int64_t>> farthest;             // next use, key; entries may be out of date
  int64_t held = 0;
  OptimumResult result;
  for (size_t i = 0; i < uses.key.size(); ++i) {
    const int64_t key = uses.key[i];
    int64_t& mine = next_of_key[static_cast<size_t>(key)];
    const bool miss = mine < 0;
    if (miss && held == slots) {
      while (next_of_key[static_cast<size_t>(farthest.top().second)] != farthest.top().first) farthest.pop();
      next_of_key[static_cast<size_t>(farthest.top().second)] = -1;
      farthest.pop();
    } else if (miss) {
      ++held;
    }
    mine = next[i];
    farthest.emplace(mine, key);
    if (uses.step[i] < discard_steps) continue;
    ++result.experts;
    result.misses += miss ? 1 : 0;
  }
  return result;
}

}  // namespace ft
