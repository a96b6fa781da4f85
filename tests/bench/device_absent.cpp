// Device side of gpu-bench in a build without CUDA. Bench's constructor has refused --device cuda.
#include "kernels/base/error.h"
#include "tests/bench/bench.h"

namespace ft::bench {

void measure_device_ceilings(Bench&) { FT_CHECK(false); }
std::shared_ptr<const cuda::RegisteredMemory> lock_memory(const HostBuffer&) { FT_CHECK(false); }
std::optional<double> vendor_expert_rate(const ExpertGeometry&, int64_t) { return std::nullopt; }
Curve fetch_curve_of_link(ModelCase&) { FT_CHECK(false); }
void run_experts_on_cpu(ModelCase& one) {
  one.bench.report.not_run("cpu", std::string(one.geometry.name) + " experts on the CPU over a plain read",
                           "this build has no CUDA device, and with it no CPU arm");
}

}  // namespace ft::bench
