#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/number.cuh"

namespace ft::cuda {
namespace {

// One thread. Bounded: the answer, an abandoned or failed step, or the time limit ends it. Returns how long it
// took.
__device__ uint64_t wait_for_answer(const WaitArgs& args) {
  const uint32_t wanted = *args.ticket;
  if (wanted == 0) return 0;
  const uint64_t begin = nanoseconds_now();
  while (true) {
    // Each read crosses the link (about a microsecond); these three are under way together.
    const uint32_t abandon = load_relaxed_system(&args.box->abandon), failed = load_relaxed_system(&args.box->failed);
    const bool there = reached(load_acquire_system(&args.box->answered), wanted);
    const uint64_t waited = nanoseconds_now() - begin;
    if (there || abandon != 0 || failed != 0) return waited;
    if (waited > args.timeout_ns) {
      store_release_system(&args.box->failed, static_cast<uint32_t>(args.layer + 1));
      return waited;
    }
  }
}

__global__ void wait_kernel(const __grid_constant__ WaitArgs args) {
  let_next_start();
  wait_for_previous();
  args.counters->wait_nanoseconds += wait_for_answer(args);
}

constexpr int kMergeThreads = 512;
constexpr int kMergeColumns = 4;  // of a thread: one block merges 2048 columns, so few blocks poll
constexpr int kMergeAhead = 8;    // rows whose values are under way together

// The merge of kernels/ops/rows.h, then one addition: the chain of a column goes through the slots in order.
__device__ void merge_columns(const MergeArgs& m, int64_t token, int64_t first_column) {
  const int32_t* ids = m.ids + token * m.top_k;
  int slots = 0;
  while (slots < m.top_k && ids[slots] >= 0) ++slots;
  for (int c = 0; c < kMergeColumns; ++c) {
    const int64_t column = first_column + c * kMergeThreads;
    if (column >= m.cols) return;
    float merged = 0.0f;
    for (int begin = 0; begin < slots; begin += kMergeAhead) {
      float value[kMergeAhead];
#pragma unroll
      for (int i = 0; i < kMergeAhead; ++i) {
        if (begin + i >= slots) continue;
        const int64_t pair = token * m.top_k + begin + i;
        const bool from_host = m.from_host != nullptr && m.from_host[pair] != 0;
        value[i] =
            from_host ? __ldcv(m.host_rows + pair * m.host_stride + column) : m.rows[pair * m.rows_stride + column];
      }
#pragma unroll
      for (int i = 0; i < kMergeAhead; ++i) {
        if (begin + i < slots) merged = f32::fma(m.weights[token * m.top_k + begin + i], value[i], merged);
      }
    }
    float* out = m.out + token * m.out_stride + column;
    *out = f32::add(*out, merged);
  }
}

__global__ void __launch_bounds__(kMergeThreads)
    wait_and_merge_kernel(const __grid_constant__ WaitArgs wait, const __grid_constant__ MergeArgs merge) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x == 0) {
    const uint64_t waited = wait_for_answer(wait);
    if (blockIdx.x == 0 && blockIdx.y == 0) wait.counters->wait_nanoseconds += waited;
  }
  __syncthreads();
  merge_columns(merge, blockIdx.y, static_cast<int64_t>(blockIdx.x) * kMergeThreads * kMergeColumns + threadIdx.x);
}

__global__ void finish_kernel(CpuMailbox* box, uint32_t* step_number) {
  const uint32_t number = next_number(*step_number);
  *step_number = number;
  store_release_system(&box->finished, number);
}

}  // namespace

void wait_for_cpu(const WaitArgs& args, StreamHandle stream) { launch(wait_kernel, 1, 1, 0, stream, args); }

void wait_and_merge(const WaitArgs& wait, const MergeArgs& merge, StreamHandle stream) {
  if (merge.tokens == 0 || merge.cols == 0) return;
  FT_CHECK(merge.tokens <= kMaxGridY);
  const auto blocks = static_cast<unsigned>(ceil_div(merge.cols, kMergeThreads * kMergeColumns));
  launch(wait_and_merge_kernel, dim3(blocks, static_cast<unsigned>(merge.tokens)), kMergeThreads, 0, stream, wait,
         merge);
}

void finish_step(CpuMailbox* box, uint32_t* step_number, StreamHandle stream) {
  launch_after_all(finish_kernel, 1, 1, 0, stream, box, step_number);
}

}  // namespace ft::cuda
