// Where a decode step's time goes on the device: kernels as a tracer recorded them, summed by name.
//
// Kernels of a step overlap (programmatic launches start before the one before has ended), so a duration alone says
// little. The step's time line is therefore given to kernels in order of their start: of each the part that begins
// when everything before it has ended is `exposed`, what lies between is `idle`. Exposed and idle sum to the span. A
// kernel that runs beside all others, as the copier does, has no part of it but its duration. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ft::bench {

struct KernelSpan {
  std::string name;  // as the tracer has it: mangled or not
  uint64_t start_ns = 0, end_ns = 0;
};

struct ProfileRow {
  std::string name;           // readable: "ft::cuda::gate_up" becomes "gate_up"
  double launches = 0;        // a step
  double duration_us = 0;     // median of one launch
  double exposed_us = 0;      // a step; 0 of what runs beside the others
  double idle_before_us = 0;  // a step: nothing ran before these launches began
};
struct StepProfile {
  std::vector<ProfileRow> rows;  // largest exposed + idle first
  double span_us = 0;            // a step, first start to last end
  int steps = 0;
};

inline constexpr std::string_view kBesideOthers = "copier_kernel";

// A step is everything between two kernels that are more than `gap_ns` apart, which the host's own work is: steps of
// another number of kernels than the median are left out. Empty without kernels.
StepProfile profile_steps(std::vector<KernelSpan> kernels, uint64_t gap_ns);

// Without namespaces, template arguments and parameters.
std::string readable_kernel_name(std::string_view name);

}  // namespace ft::bench
