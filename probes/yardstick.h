// A loop that no change of this project makes faster or slower: how fast the machine itself was while a probe measured.
// `ft-tune compare` tells with it a slower machine from a slower build, so it stays as it is: whoever changes the loop
// raises kYardstickVersion, and profiles with another version have no yardstick in common.
#pragma once

#include <cstdint>
#include <memory>

namespace ft {

inline constexpr int kYardstickVersion = 1;

// Integer decoding, table look-ups and single-precision sums over 20 KiB, on the calling thread: some 40 us.
class Yardstick {
 public:
  Yardstick();
  ~Yardstick();
  Yardstick(const Yardstick&) = delete;
  Yardstick& operator=(const Yardstick&) = delete;
  double seconds();  // of one pass over the data, after an untimed one that brings it back into the cache

 private:
  // At the start of a page, as the loop is at that of a cache line: elsewhere it is up to a tenth slower.
  struct Data;
  std::unique_ptr<Data> data_;
};

// How much of the CPUs that this process may use went to others since construction: processes, interrupts, and what a
// hypervisor took away.
class OtherLoad {
 public:
  OtherLoad();
  double share() const;  // 0 to 1; 0 when the system does not say

 private:
  struct Reading {
    double all = 0, busy = 0, own = 0;  // seconds of all those CPUs
  };
  static Reading read();

  Reading start_;
};

}  // namespace ft
