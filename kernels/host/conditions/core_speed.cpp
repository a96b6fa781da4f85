#include <algorithm>
#include <cstdint>

#include "kernels/base/clock.h"
#include "kernels/host/conditions.h"

namespace ft {

#if defined(__x86_64__)
namespace {

// imul of two 64-bit registers: 3 cycles on Intel since Nehalem and on AMD since Zen (Agner Fog, "Instruction tables").
// Additions will not do: newer cores finish chains of small ones while they rename registers.
constexpr double kCyclesPerMultiply = 3;
constexpr int kMultipliesPerTurn = 16;
constexpr int kTurns = 1024;  // 20 us at 2.5 GHz: far above the clock's resolution, far below a scheduler's tick
constexpr int kWindows = 16;

uint64_t chain(uint64_t value) {
  for (int turn = 0; turn < kTurns; ++turn) {
    asm volatile(
        ".rept %c1\n\t"
        "imul %0, %0\n\t"
        ".endr"
        : "+r"(value)
        : "i"(kMultipliesPerTurn));
  }
  return value;
}

}  // namespace

double measure_core_ghz() {
  constexpr double kCycles = kCyclesPerMultiply * kMultipliesPerTurn * kTurns;
  double best_seconds = 1;
  uint64_t value = 3;
  for (int window = 0; window < kWindows; ++window) {
    const double start = now_seconds();
    value = chain(value);
    best_seconds = std::min(best_seconds, now_seconds() - start);
  }
  return best_seconds > 0 ? kCycles / best_seconds / 1e9 : 0;
}
#else
double measure_core_ghz() { return 0; }
#endif

}  // namespace ft
