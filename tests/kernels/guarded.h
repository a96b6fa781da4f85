// Test buffers with canaries on both sides, seeded values that include everything fp32 has, and equality of bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/base/random.h"

namespace ft::test {

// `lead` marks, `size` zeros, `tail` marks.
std::vector<uint8_t> guarded_bytes(size_t lead, size_t size, size_t tail, uint8_t mark);

// `count` elements at an address that is aligned for T only, with kCanaries marked bytes before and after.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t count) : count_(count), bytes_(guarded_bytes(kLead, size_bytes(), kCanaries, kMark)) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data() + kLead); }
  T& operator[](int64_t i) { return data()[i]; }
  int64_t size() const { return count_; }
  bool intact() const {
    for (size_t i = 0; i < kLead; ++i) {
      if (bytes_[i] != kMark) return false;
    }
    for (size_t i = kLead + size_bytes(); i < bytes_.size(); ++i) {
      if (bytes_[i] != kMark) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kCanaries = 256;
  static constexpr size_t kLead = kCanaries + sizeof(T);  // off any vector alignment
  size_t size_bytes() const { return static_cast<size_t>(count_) * sizeof(T); }
  static constexpr uint8_t kMark = 0xa5;
  int64_t count_;
  std::vector<uint8_t> bytes_;
};

enum class Values {
  kNormal,   // normal distribution
  kWide,     // any finite bit pattern's exponent
  kTiny,     // around the smallest normal number, where flushing shows
  kSpecial,  // normal, with zeros, denormals, infinities, NaN and the largest numbers strewn in
};
inline constexpr Values kAllValues[] = {Values::kNormal, Values::kWide, Values::kTiny, Values::kSpecial};

inline float random_value(Random& random, Values kind) {
  const auto sign = static_cast<uint32_t>(random.next() & 0x80000000u);
  const auto mantissa = static_cast<uint32_t>(random.next() & 0x007fffffu);
  switch (kind) {
    case Values::kNormal:
      break;
    case Values::kWide:
      return std::bit_cast<float>(sign | static_cast<uint32_t>(random.below(255)) << 23 | mantissa);
    case Values::kTiny:
      return std::bit_cast<float>(sign | static_cast<uint32_t>(random.below(4)) << 23 | mantissa);
    case Values::kSpecial: {
      const float specials[] = {0.0f,      -0.0f, 1e-40f,  -1e-40f,  INFINITY,
                                -INFINITY, NAN,   3.4e38f, -3.4e38f, 1.17549435e-38f};
      if (random.below(8) == 0) return specials[random.below(std::size(specials))];
      break;
    }
  }
  return static_cast<float>(random.normal());
}

inline void fill(Random& random, Values kind, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = random_value(random, kind);
}

// Same bits, or both NaN.
inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Index of the first difference, or -1.
inline int64_t first_difference(const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!same(a[i], b[i])) return i;
  }
  return -1;
}

}  // namespace ft::test
