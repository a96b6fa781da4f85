// StepTrace in a build without CUDA or without CUPTI's headers.
#include "kernels/base/error.h"
#include "tests/bench/step_trace.h"

namespace ft::bench {

StepTrace::StepTrace() : why_not_("this build has no CUPTI, which traces a GPU") {}
StepTrace::~StepTrace() = default;
void StepTrace::restart() { kernels(); }
std::vector<KernelSpan> StepTrace::kernels() {
  FT_CHECK(why_not_.empty());
  return {};
}

}  // namespace ft::bench
