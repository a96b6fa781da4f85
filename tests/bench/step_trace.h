// Kernels that ran on the GPU while it was recording, from CUPTI's activity records; those of a graph one by one.
//
// Opened at run time: where the library is not there, or the driver lets only an administrator trace, `why_not` says
// so. Recording must begin before the graphs are made whose kernels are wanted. One recording at a time (CUPTI has one
// set of callbacks a process); not thread-safe.
// https://docs.nvidia.com/cupti/api/group__CUPTI__ACTIVITY__API.html
#pragma once

#include <string>
#include <vector>

#include "tests/bench/step_profile.h"

namespace ft::bench {

class StepTrace {
 public:
  StepTrace();
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  const std::string& why_not() const { return why_not_; }  // empty: it records
  // Drops what was recorded so far. The device must be idle.
  void restart();
  // What was recorded since. The device must be idle.
  std::vector<KernelSpan> kernels();

 private:
  std::string why_not_;
};

}  // namespace ft::bench
