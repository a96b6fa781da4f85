// The priority of a cached expert as a number that does not change while the expert is not used: the lowest one is the
// victim. One definition for the slot table, the tuner's replay and the kernel that plans a layer on the device.
//
// LRU: the time of the last use. LRFU (Lee et al., 2001): every use weighs 2^(-age / half-life), and an expert is worth
// the sum over its uses. All sums shrink by the same factor while time passes, so their order is kept by
//   time + half-life * log2(sum at that time),
// which changes only when the expert is used: after a use at `now`, priority = now + H log2(1 + 2^((before - now) /
// H)). In integers, so that every device decides alike: time counts 64 units a plan() call, H is a power of two.
// tests/experts compares with the sum in floating point.
#pragma once

#include <bit>
#include <cstdint>

namespace ft {

inline constexpr int kUnitsPerPlanLog2 = 6;
inline constexpr int kMinHalfLifeLog2 = kUnitsPerPlanLog2;  // one plan() call
inline constexpr int kMaxHalfLifeLog2 = 32;
// More than 200 days of 40 layers at 40 steps a second. Priorities stay below 2^42: with them a slot table orders up to
// 2^22 slots in one 64-bit word.
inline constexpr uint64_t kMaxPlans = uint64_t{1} << 35;

// 65536 log2(1 + 2^(-i / 16)): a sixteenth of a half-life is 4 % of a use's weight.
struct UseBonusTable {
  static constexpr int kStepsPerHalfLifeLog2 = 4;
  static constexpr int kHalfLives = 16;  // from there on a use weighs less than 2^-16 of a new one
  static constexpr int kSize = kHalfLives << kStepsPerHalfLifeLog2;
  uint32_t bonus[kSize] = {};
};

constexpr UseBonusTable make_use_bonus_table() {
  constexpr double kStep = 0.95760328069857364693630563514791544;  // 2^(-1 / 16)
  constexpr double kLog2OfE = 1.44269504088896340735992468100189214;
  UseBonusTable table;
  double x = 1;
  for (uint32_t& bonus : table.bonus) {
    const double z = x / (2 + x);  // log(1 + x) = 2 artanh(z), z <= 1/3
    double sum = 0, power = z;
    for (int n = 1; n < 40; n += 2, power *= z * z) sum += power / n;
    // lround is not constexpr, and the sum is positive. NOLINTNEXTLINE(bugprone-incorrect-roundings)
    bonus = static_cast<uint32_t>(65536 * 2 * sum * kLog2OfE + 0.5);
    x *= kStep;
  }
  return table;
}

// Time of the use of the `place`-th distinct expert of the plan() call with number `plan`, counted from 1.
constexpr uint64_t use_time(uint64_t plan, int place) {
  constexpr int kLast = (1 << kUnitsPerPlanLog2) - 1;
  return (plan << kUnitsPerPlanLog2) + static_cast<uint64_t>(place < kLast ? place : kLast);
}

// half_life_log2: of the half-life in units of time, kMinHalfLifeLog2 or more; 0: LRU. before == 0: never used.
constexpr uint64_t priority_after_use(uint64_t before, uint64_t now, int half_life_log2, const UseBonusTable& table) {
  if (half_life_log2 == 0 || before == 0) return now;
  const uint64_t newer = before > now ? before : now, older = before > now ? now : before;
  const uint64_t step = (newer - older) >> (half_life_log2 - UseBonusTable::kStepsPerHalfLifeLog2);
  if (step >= static_cast<uint64_t>(UseBonusTable::kSize)) return newer;
  return newer + ((static_cast<uint64_t>(table.bonus[step]) << half_life_log2) >> 16);
}

// Victims are taken in order of this: by priority, ties by slot. A stamp of kHeldStamp is above all of them: no victim.
inline constexpr uint64_t kHeldStamp = ~uint64_t{0};
constexpr int slot_bits(int64_t slots) { return std::bit_width(static_cast<uint64_t>(slots > 1 ? slots - 1 : 0)); }
constexpr uint64_t victim_stamp(uint64_t priority, int64_t slot, int slot_bits) {
  return priority << slot_bits | static_cast<uint64_t>(slot);
}

// Whether an expert that is expected to be used is worth the victim's slot: by its past uses it is not much worse.
// Wrong guesses are mostly of experts that were hardly ever used; a copy of them holds up the right ones behind it.
// Half a half-life is a third of a use's weight: with it 70 to 90 % of the copies are used where experts compete for
// slots (bench_policies). LRU has no such measure.
constexpr bool worth_prefetching(uint64_t expected, uint64_t victim, int half_life_log2) {
  return half_life_log2 == 0 || (expected > 0 && expected + (uint64_t{1} << (half_life_log2 - 1)) > victim);
}

// No use at or before that plan() call gives a higher priority: above 16 half-lives ahead of time a use adds nothing,
// and none adds more than a half-life.
constexpr uint64_t max_priority(uint64_t plans, int half_life_log2) {
  const uint64_t ahead = half_life_log2 == 0 ? 0 : (uint64_t{UseBonusTable::kHalfLives} + 1) << half_life_log2;
  return use_time(plans, 1 << kUnitsPerPlanLog2) + ahead;
}

}  // namespace ft
