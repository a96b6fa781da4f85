#include "kernels/base/promotion_rate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

using namespace ft;

TEST_CASE("whole rates are the same number in every plan") {
  for (const int experts : {0, 1, 2, 7, PromotionRate::kMaxExperts - 1, PromotionRate::kMaxExperts}) {
    for (const uint64_t plan : {uint64_t{0}, uint64_t{1}, uint64_t{12345}, uint64_t{UINT32_MAX}, uint64_t{1} << 40}) {
      CHECK(PromotionRate(experts).of_plan(plan) == experts);
    }
  }
  CHECK(PromotionRate(PromotionRate::kMaxExperts + 1) == PromotionRate(PromotionRate::kMaxExperts));
  CHECK(PromotionRate(-1) == PromotionRate(0));
  CHECK_FALSE(PromotionRate().any());
  CHECK(PromotionRate::one_in(PromotionRate::kOne).any());
}

TEST_CASE("fractions: the mean is the rate over any stretch, and no layer is left out of any number of layers") {
  for (const int one_in : {2, 3, 4, 16, 64}) {
    const PromotionRate rate = PromotionRate::one_in(one_in);
    CAPTURE(one_in);
    for (const uint64_t begin : {uint64_t{1}, uint64_t{777777}, uint64_t{UINT32_MAX} - 500}) {
      int count = 0;
      for (uint64_t i = 0; i < 4096; ++i) {
        const int now = rate.of_plan(begin + i);
        CHECK((now == 0 || now == 1));
        count += now;
        // A Weyl sequence of the golden ratio stays within log(n) of its mean.
        CHECK(std::abs(count - static_cast<double>(i + 1) / one_in) < 6);
      }
    }
    // In steps of `layers` plans every layer gets its share: 34, 55, 89 are the ratio's worst cases.
    for (const int layers : {1, 2, 3, 16, 28, 34, 36, 43, 48, 55, 61, 64, 89, 94}) {
      CAPTURE(layers);
      constexpr int kSteps = 20000;
      std::vector<int> of_layer(static_cast<size_t>(layers));
      for (int step = 0; step < kSteps; ++step) {
        for (int layer = 0; layer < layers; ++layer) {
          of_layer[static_cast<size_t>(layer)] += rate.of_plan(static_cast<uint64_t>(step) * layers + layer + 1);
        }
      }
      for (const int count : of_layer) CHECK(count == doctest::Approx(double{kSteps} / one_in).epsilon(0.08));
    }
  }
  const PromotionRate more = PromotionRate::of_experts(2.25);
  int count = 0;
  for (uint64_t plan = 1; plan <= 1000; ++plan) count += more.of_plan(plan);
  CHECK(std::abs(count - 2250) <= 6);
}

TEST_CASE("bytes and rates: the least budget that allows a rate allows that rate; a budget never more than it pays") {
  constexpr int64_t kMiB = 1 << 20;
  for (const int64_t expert : {int64_t{4096}, int64_t{2700} * 1024, 50 * kMiB, int64_t{1} << 39}) {
    CAPTURE(expert);
    for (const PromotionRate rate : {PromotionRate::one_in(16), PromotionRate::one_in(4), PromotionRate(1),
                                     PromotionRate(2), PromotionRate::of_experts(1.5)}) {
      CHECK(PromotionRate::of_bytes(rate.bytes(expert), expert) == rate);
      CHECK(PromotionRate::of_bytes(rate.bytes(expert) - 1, expert) < rate);
      CHECK(PromotionRate::of_experts(rate.per_plan()) == rate);
    }
    CHECK(PromotionRate::of_bytes(0, expert) == PromotionRate(0));
    CHECK(PromotionRate::of_bytes(expert - 1, expert) < PromotionRate(1));
    CHECK(PromotionRate::of_bytes(2 * expert - 1, expert) < PromotionRate(2));
    CHECK(PromotionRate::of_bytes(INT64_MAX, expert) == PromotionRate(PromotionRate::kMaxExperts));
  }
}
