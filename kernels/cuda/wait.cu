#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/merge_end.cuh"
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
  for (uint32_t polls = 0;; ++polls) {
    // Each read crosses the link (about a microsecond); these are under way together, and the two that seldom say
    // anything are left out most times.
    constexpr uint32_t kPollsBetweenLooks = 8;
    const bool looks = polls % kPollsBetweenLooks == 0;
    const uint32_t abandon = looks ? load_relaxed_system(&args.box->abandon) : 0;
    const uint32_t failed = looks ? load_relaxed_system(&args.box->failed) : 0;
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

constexpr int kMergeThreads = 256;  // and a column each: 2048 columns of eight rows are 64 KiB, much for one block
constexpr int kMergeAhead = 8;      // rows whose values are under way together

// Rows begin .. begin + kMergeAhead - 1 of a token as far as no answer of the CPU is needed: all loads go out together.
struct MergeRows {
  int32_t id[kMergeAhead];
  float weight[kMergeAhead], value[kMergeAhead];
  bool from_host[kMergeAhead];

  __device__ __forceinline__ void read(const MergeArgs& m, int64_t token, int begin, int64_t column) {
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i) {
      const int64_t pair = token * m.top_k + begin + i;
      const bool there = begin + i < m.top_k;
      id[i] = there ? m.ids[pair] : -1;
      weight[i] = there ? m.weights[pair] : 0.0f;
      value[i] = there ? m.rows[pair * m.rows_stride + column] : 0.0f;
      from_host[i] = there && m.from_host != nullptr && m.from_host[pair] != 0;
    }
  }
};

// The merge of kernels/ops/rows.h, then one addition where there is one: the chain of a column goes through the slots
// in order.
__device__ __forceinline__ void merge_column(const MergeArgs& m, int64_t token, int64_t column, MergeRows& rows,
                                             float before) {
  float merged = 0.0f;
  for (int begin = 0; begin < m.top_k; begin += kMergeAhead) {
    if (begin > 0) rows.read(m, token, begin, column);
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i) {
      if (rows.from_host[i]) {
        rows.value[i] = __ldcv(m.host_rows + (token * m.top_k + begin + i) * m.host_stride + column);
      }
    }
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i) {
      if (rows.id[i] >= 0) merged = f32::fma(rows.weight[i], rows.value[i], merged);
    }
    if (rows.id[kMergeAhead - 1] < 0) break;  // ids below 0 only trail
  }
  merged = merge_shared(m.shared, token, column, merged);
  m.out[token * m.out_stride + column] = m.add ? f32::add(before, merged) : merged;
}

// By one thread of a block. One block reads the mailbox, across the link, and tells the others: eight that read it made
// the answer of one expert come 7 us later [measured, H200].
__device__ void wait_as_a_grid(const WaitArgs& wait, uint32_t ticket) {
  uint32_t* const answered = &wait.counters->answered;
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    wait.counters->wait_nanoseconds += wait_for_answer(wait);
    store_release_system(answered, ticket);
  } else {
    while (load_acquire_system(answered) != ticket) {  // bounded: the first block is resident before this one
    }
  }
}

__global__ void __launch_bounds__(kMergeThreads)
    wait_and_merge_kernel(const __grid_constant__ WaitArgs wait, const __grid_constant__ MergeArgs merge) {
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y, column = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  const uint32_t ticket = *wait.ticket;
  MergeRows rows;
  float before = 0.0f;
  if (column < merge.cols) {
    rows.read(merge, token, 0, column);
    if (merge.add) before = merge.out[token * merge.out_stride + column];
  }
  if (ticket != 0) {
    if (threadIdx.x == 0) wait_as_a_grid(wait, ticket);
    __syncthreads();
  }
  if (column < merge.cols) merge_column(merge, token, column, rows, before);
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
  const auto blocks = static_cast<unsigned>(ceil_div(merge.cols, kMergeThreads));
  launch_with(!merge.after_join, wait_and_merge_kernel, dim3(blocks, static_cast<unsigned>(merge.tokens)),
              kMergeThreads, 0, stream, wait, merge);
}

void finish_step(CpuMailbox* box, uint32_t* step_number, StreamHandle stream) {
  launch_after_all(finish_kernel, 1, 1, 0, stream, box, step_number);
}

}  // namespace ft::cuda
