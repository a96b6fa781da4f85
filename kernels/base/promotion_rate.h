// How many experts that the CPU computed get a slot: a rate per planned layer, which may be a fraction of one. A layer
// with a fraction promotes one expert in some of its plans, spread as evenly as the multiples of the golden ratio lie
// on a circle (Weyl's sequence), so that no layer count makes the same layers promote in every step. What a plan does
// not use is not saved up. One definition for the slot table, the tuner's replay and the kernel that plans on a GPU.
// Pure values.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

namespace ft {

class PromotionRate {
 public:
  static constexpr int kOne = 1 << 16;
  static constexpr int kMaxExperts = 4096;  // a plan; what asks for more gets so many

  constexpr PromotionRate() = default;
  // Implicit: a whole number of experts a plan.
  constexpr PromotionRate(int experts) : per_65536_(static_cast<uint32_t>(clamped(experts)) * kOne) {}
  static constexpr PromotionRate one_in(int plans) { return of_65536(kOne / plans); }
  // What a budget of so many bytes a plan allows, rounded down to a 65,536th. expert_bytes >= 1.
  static constexpr PromotionRate of_bytes(int64_t budget_bytes, int64_t expert_bytes) {
    if (budget_bytes / expert_bytes >= kMaxExperts) return kMaxExperts;
    // Bytes of an expert stay below 2^40, so the product fits.
    const int64_t rest = budget_bytes % expert_bytes * kOne / expert_bytes;
    return of_65536(static_cast<uint32_t>(budget_bytes / expert_bytes * kOne + rest));
  }
  // Of per_plan(), as files have it. Not negative.
  static constexpr PromotionRate of_experts(double per_plan) {
    return of_65536(static_cast<uint32_t>(std::min<double>(per_plan, kMaxExperts) * kOne + 0.5));
  }
  // The least budget that allows this rate.
  constexpr int64_t bytes(int64_t expert_bytes) const {
    const int64_t whole = per_65536_ / kOne * expert_bytes, rest = per_65536_ % kOne * expert_bytes;
    return whole + (rest + kOne - 1) / kOne;
  }

  constexpr bool any() const { return per_65536_ != 0; }
  constexpr double per_plan() const { return per_65536_ / static_cast<double>(kOne); }
  // Of the plan() call with this number.
  constexpr int of_plan(uint64_t plan) const {
    constexpr uint32_t kGoldenRatio = 0x9E3779B9;  // 2^32 / 1.618..
    return static_cast<int>((per_65536_ + (static_cast<uint32_t>(plan) * kGoldenRatio >> 16)) / kOne);
  }
  auto operator<=>(const PromotionRate&) const = default;

 private:
  static constexpr int clamped(int experts) { return experts < 0 ? 0 : std::min(experts, kMaxExperts); }
  static constexpr PromotionRate of_65536(uint32_t value) {
    PromotionRate rate;
    rate.per_65536_ = value;
    return rate;
  }

  uint32_t per_65536_ = 0;
};

}  // namespace ft
