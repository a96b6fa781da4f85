// The least time that a decode step can take, from what its arms need when each is measured alone.
//
//   bound = T_res + sum over layers of E[ min over f of max(t_fetch(f), t_cpu(m - f)) ],   offload: f = m
//
// over the run's own miss counts m. T_res is the step with every expert in a slot, counted at most as kResidentCap
// times what its bytes need at the device's own read rate: a slow kernel must not loosen the bound. The smooth bound is
// T_res + M / (B_f + B_c): M bytes missed a step, shared between both arms at their best rates without rounding.
// Pure. Times are seconds, rates bytes a second.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_config.h"

namespace ft::bench {

// Seconds for n experts at once, measured at some n. Between them linear, from (0, 0) on; beyond the last point with
// the slope of the last stretch.
class Curve {
 public:
  Curve() = default;
  // REQUIRES counts > 0, ascending; as many seconds as counts.
  Curve(std::vector<double> counts, std::vector<double> seconds);
  bool empty() const { return counts_.empty(); }
  double at(double count) const;  // REQUIRES not empty, count >= 0
  std::span<const double> counts() const { return counts_; }
  std::span<const double> seconds() const { return seconds_; }
  // Experts a second at the point where that is largest.
  double best_rate() const;

 private:
  std::vector<double> counts_, seconds_;
};

struct Curves {
  Curve fetch, cpu;
};

// The split of m misses that makes the layer shortest, and how long it is then. Of equal ones the one that fetches
// more: what is fetched may hit the next time.
struct Split {
  int fetched = 0;
  double seconds = 0;
};
Split best_split(const Curves& curves, int misses);
// best_split for 0 .. max_misses, as the engine takes it.
SplitTable split_table(const Curves& curves, int max_misses);

// layers_with[m]: layers of the run with m misses. Seconds of a step beside T_res. With `fetch_all` every miss is
// fetched (offload). REQUIRES steps > 0.
double miss_seconds(const Curves& curves, std::span<const uint64_t> layers_with, uint64_t steps, bool fetch_all);
double misses_per_step(std::span<const uint64_t> layers_with, uint64_t steps);

inline constexpr double kResidentCap = 2.5;
double counted_resident_seconds(double measured, double bytes, double device_read_rate);

// Offload: the rate of the CPU arm is 0.
double smooth_bound_seconds(double resident, double missed_bytes, double fetch_rate, double cpu_rate);

}  // namespace ft::bench
