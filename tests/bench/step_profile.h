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
// Of steps that were traced one by one, whatever gaps they have. Rows are kernels with their template arguments: one
// template makes all products of a prompt.
StepProfile profile_apart(std::vector<std::vector<KernelSpan>> steps);

// Without namespaces, template arguments and parameters.
std::string readable_kernel_name(std::string_view name);
// With template arguments, as the source has them but for enumerators, which are numbers: "product_kernel<3, 1>".
std::string full_kernel_name(std::string_view name);

// What a layer adds to a step.
struct LayerRow {
  std::string name;
  double launches = 0;     // a layer
  double duration_us = 0;  // median of one launch
  double us = 0;           // a layer: exposed, and idle before it
};
struct LayerProfile {
  std::vector<LayerRow> rows;  // largest first
  double launches = 0;         // a layer
  double us = 0;               // a layer: all of it
  double rest_us = 0;          // of it in kernels that layers do not launch, as the head's: noise
};
// From models of which one has `layers` more layers. REQUIRES both profiles have names of one kind.
LayerProfile profile_layer(const StepProfile& fewer, const StepProfile& more, int layers);

}  // namespace ft::bench
