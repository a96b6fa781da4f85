// Which expert leaves the slots when another one needs room. See kernels/base/use_priority.h for the arithmetic.
//
// Both policies keep what they know of an expert when it leaves its slot: an expert that comes back is judged by all
// its uses, and of several misses those that were used most (LRU: most recently) are the ones worth a slot.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ft {

enum class CachePolicy : uint8_t {
  kLru,   // least recently used
  kLrfu,  // least of recency and frequency: uses that count half after a half-life
};
std::string_view cache_policy_name(CachePolicy policy);  // "lru", "lrfu"
std::optional<CachePolicy> cache_policy_by_name(std::string_view name);

// Who predicts the next layer's experts, so that they are copied ahead of need.
enum class LookAhead : uint8_t {
  kOff,
  kRouter,  // the next MoE layer's router applied to this layer's hidden state; forced routing: the trace's predictions
};
std::string_view look_ahead_name(LookAhead look_ahead);  // "off", "router"
std::optional<LookAhead> look_ahead_by_name(std::string_view name);

inline constexpr int kMaxPrefetchesPerLayer = 64;

// Settings of a SlotTable.
struct SlotPolicy {
  int half_life_log2 = 0;    // of kernels/base/use_priority.h; 0: LRU
  int64_t max_distinct = 0;  // most experts of one plan() call; 0: all of a layer
};

// LRFU's mean life of a use, half-life / log(2), is twice the steps after which a layer's share of the slots would have
// turned over if every use were a miss, and at least 8 steps. On the presets of diverse, mixed and agentic text, at 10,
// 25 and 50 % of the experts of three geometries, no other rule in one constant did better in all cells (README).
SlotPolicy make_slot_policy(CachePolicy policy, int layers, int64_t slots, int max_distinct);

}  // namespace ft
