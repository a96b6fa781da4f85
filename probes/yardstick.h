// A loop that no change of this project makes faster or slower: how fast the machine itself was while a probe measured.
// `ft-tune compare` tells with it a slower machine from a slower build, so it stays as it is: whoever changes the loop
// raises kYardstickVersion, and profiles with another version have no yardstick in common.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace ft {

inline constexpr int kYardstickVersion = 1;      // of the loop
inline constexpr int kTeamYardstickVersion = 1;  // of the loop on several threads

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

// The same loop on all threads of a measurement at once. One thread does not see what becomes of its speed when the
// others work too: two virtual CPUs are at times two cores and at times the two threads of one, for half a second to
// minutes. Has threads of its own that sleep between calls, placed as WorkerPool places the threads that are measured.
class TeamYardstick {
 public:
  // `cpus`: WorkerPoolOptions::cpus. REQUIRES threads >= 1. May throw Error as WorkerPool does.
  TeamYardstick(int threads, std::span<const int> cpus);
  ~TeamYardstick();
  TeamYardstick(const TeamYardstick&) = delete;
  TeamYardstick& operator=(const TeamYardstick&) = delete;
  // Of the slowest thread, in the fastest of three passes that all begin together: some 45 us where every thread has a
  // core, and 200 us for the caller. From one thread at a time.
  double seconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
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
