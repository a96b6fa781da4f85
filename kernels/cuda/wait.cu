#include "kernels/cuda/error.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/number.cuh"

namespace ft::cuda {
namespace {

__global__ void wait_kernel(CpuMailbox* box, const uint32_t* ticket, int layer, uint64_t timeout_ns,
                            StepCounters* counters) {
  const uint32_t wanted = *ticket;
  if (wanted == 0) return;
  const uint64_t begin = nanoseconds_now();
  uint64_t waited = 0;
  while (true) {
    // Each read crosses the link (about a microsecond); these three are under way together.
    const uint32_t abandon = load_relaxed_system(&box->abandon), failed = load_relaxed_system(&box->failed);
    const bool there = reached(load_acquire_system(&box->answered), wanted);
    waited = nanoseconds_now() - begin;
    if (there || abandon != 0 || failed != 0) break;
    if (waited > timeout_ns) {
      store_release_system(&box->failed, static_cast<uint32_t>(layer + 1));
      break;
    }
  }
  counters->wait_nanoseconds += waited;
}

__global__ void finish_kernel(CpuMailbox* box, uint32_t* step_number) {
  const uint32_t number = next_number(*step_number);
  *step_number = number;
  store_release_system(&box->finished, number);
}

}  // namespace

void wait_for_cpu(const WaitArgs& args, StreamHandle stream) {
  wait_kernel<<<1, 1, 0, stream>>>(args.box, args.ticket, args.layer, args.timeout_ns, args.counters);
  require_launched("wait_for_cpu");
}

void finish_step(CpuMailbox* box, uint32_t* step_number, StreamHandle stream) {
  finish_kernel<<<1, 1, 0, stream>>>(box, step_number);
  require_launched("finish_step");
}

}  // namespace ft::cuda
