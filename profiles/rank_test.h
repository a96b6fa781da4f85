// The rank-sum test of two independent samples (Wilcoxon 1945; Mann and Whitney 1947), exact, and the shift that goes
// with it (Hodges and Lehmann 1963). Nothing is assumed about the form of the noise.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <span>

namespace ft {

inline constexpr size_t kMaxRankValues = 32;  // of either side: C(64, 32) orders are counted exactly enough in fp64

// P(U >= u) when both samples are of one distribution: U counts the pairs in which the second's value is the greater.
// REQUIRES first, second in [1, kMaxRankValues]. u <= 0 gives 1.
double rank_sum_tail(size_t first, size_t second, double u);

// How likely `second` would stand this high above `first` + shift, or higher, by chance alone. Equal values count
// against it, so that rounding makes nothing significant. REQUIRES 1 to kMaxRankValues values each.
double p_of_greater(std::span<const double> first, std::span<const double> second, double shift);

// How far `second` lies above `first`: the median of all differences, and the interval of those shifts that a two-sided
// rank-sum test with this confidence does not refuse. Too few values for the confidence: all differences.
struct Shift {
  double estimate = 0, low = 0, high = 0;
};
Shift estimate_shift(std::span<const double> first, std::span<const double> second, double confidence);

}  // namespace ft
