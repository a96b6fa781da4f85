// Seeded random numbers that are the same everywhere: SplitMix64 (Steele, Lea, Flood 2014), counter based, so that any
// element of a stream can be made on its own and in parallel.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace ft {

constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed)) {}
  uint64_t next() { return mix64(state_++); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
  double normal() {  // Box-Muller, one value per call
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace ft
