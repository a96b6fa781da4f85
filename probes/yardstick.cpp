#include "probes/yardstick.h"

#include "kernels/base/clock.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

constexpr size_t kCodes = 4096;
constexpr int kRepeats = 8;    // of the data in a pass: 32768 products
constexpr size_t kChains = 8;  // sums that do not wait for each other

}  // namespace

Yardstick::Yardstick() : codes_(kCodes), values_(kCodes), table_(16) {
  Random random(1);
  for (uint8_t& code : codes_) code = static_cast<uint8_t>(random.below(256));
  for (float& value : values_) value = static_cast<float>(random.normal());
  for (float& entry : table_) entry = static_cast<float>(random.normal());
}

void Yardstick::pass() {
  float sums[kChains] = {};
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (size_t i = 0; i < kCodes; i += kChains) {
      for (size_t chain = 0; chain < kChains; ++chain) {
        const uint8_t code = codes_[i + chain];
        sums[chain] = sums[chain] * 0.5f + (table_[code & 15u] + table_[code >> 4u]) * values_[i + chain];
      }
    }
  }
  for (const float sum : sums) sum_ = sum_ * 0.5f + sum;
}

double Yardstick::seconds() {
  pass();
  const double start = now_seconds();
  pass();
  // The sum is a member of an object that others see: the pass is done when the clock is read again.
  asm volatile("" : : "g"(&sum_) : "memory");
  return now_seconds() - start;
}

}  // namespace ft
