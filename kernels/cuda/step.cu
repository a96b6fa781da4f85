#include <algorithm>

#include "kernels/cuda/embed_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/step.h"

namespace ft::cuda {
namespace {

constexpr int kBeginThreads = 512;
constexpr int kThreads = 256;
// Logits of one block: 151,936 of them are 75 blocks whose writes are all under way at once.
constexpr int kLogitsPerThread = 8;
constexpr int kLogitsPerBlock = kThreads * kLogitsPerThread;

// One block a token. Of a block one thread reads the id: reads of one line of host memory are served one by one, and
// when each of 64 warps read it the kernel took 63 us [measured, H200].
__global__ void __launch_bounds__(kBeginThreads) begin_step_kernel(const __grid_constant__ BeginStepArgs args) {
  __shared__ int32_t id;
  // No let_next_start(): inputs are there when any later kernel of the step starts, before that one waits.
  wait_for_previous();
  const EmbedArgs& embed = args.embed;
  const int64_t token = blockIdx.x, thread = threadIdx.x;
  if (thread == 0) id = __ldcv(embed.ids + token);
  const auto* from = reinterpret_cast<const uint4*>(args.pinned);
  for (int64_t i = token * kBeginThreads + thread; i < (args.bytes + 15) / 16;
       i += gridDim.x * int64_t{kBeginThreads}) {
    reinterpret_cast<uint4*>(args.inputs)[i] = __ldcv(from + i);
  }
  __syncthreads();
  for (int64_t i = thread; i < embed.width; i += kBeginThreads) {
    write_embedded(embed, token, i, embed.table[id * embed.width + i]);
  }
}

// Larger keys are larger values, then lower ids; 0: NaN.
__device__ __forceinline__ unsigned long long key_of(float value, uint32_t id) {
  uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  if (bits == 0x80000000u) bits = 0;
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | ~id;
}

__device__ __forceinline__ LargestLogit largest_of(unsigned long long key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered;
  constexpr uint32_t kMinusInfinity = 0xff800000u;
  if (key == 0 || bits == kMinusInfinity) return {__uint_as_float(kMinusInfinity), -1};
  return {__uint_as_float(bits), static_cast<int32_t>(~static_cast<uint32_t>(key))};
}

// This block's part of a row to pinned memory; its largest key, for thread 0.
__device__ unsigned long long copy_logits(const EndStepArgs& args) {
  __shared__ unsigned long long of_warp[kThreads / kWarp];
  const int64_t row = blockIdx.y;
  const float* from = args.logits + row * args.vocab;
  float* to = args.pinned_logits + row * args.vocab;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLogitsPerBlock + threadIdx.x;
  unsigned long long largest = 0;
  float values[kLogitsPerThread];
#pragma unroll
  for (int i = 0; i < kLogitsPerThread; ++i) {
    const int64_t id = first + i * kThreads;
    values[i] = id < args.vocab ? from[id] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kLogitsPerThread; ++i) {
    const int64_t id = first + i * kThreads;
    if (id >= args.vocab) continue;
    to[id] = values[i];
    largest = max(largest, key_of(values[i], static_cast<uint32_t>(id)));
  }
#pragma unroll
  for (int width = kWarp / 2; width >= 1; width /= 2) {
    largest = max(largest, __shfl_xor_sync(kFullWarp, largest, width));
  }
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = largest;
  __syncthreads();
  for (const unsigned long long other : of_warp) largest = max(largest, other);
  return largest;
}

// The barrier in copy_logits orders the block's writes before thread 0's fence, the counter the blocks'.
__global__ void __launch_bounds__(kThreads) end_step_kernel(const __grid_constant__ EndStepArgs args) {
  wait_for_previous();
  const unsigned long long largest = args.rows > 0 ? copy_logits(args) : 0;
  if (threadIdx.x != 0) return;
  if (args.rows > 0) {
    atomicMax(args.largest + blockIdx.y, largest);
    __threadfence_system();
    if (atomicAdd(args.arrived, 1u) != gridDim.x * gridDim.y - 1) return;
    __threadfence();
    *args.arrived = 0;
    for (int64_t row = 0; row < args.rows; ++row) {
      args.pinned_largest[row] = largest_of(atomicExch(args.largest + row, 0ull));
    }
  }
  const uint32_t number = next_number(*args.step_number);
  *args.step_number = number;
  __threadfence_system();
  store_release_system(&args.box->finished, number);
}

}  // namespace

void begin_step(const BeginStepArgs& args, StreamHandle stream) {
  FT_CHECK(args.embed.tokens >= 1 && args.embed.width >= 1);
  launch_after_all(begin_step_kernel, static_cast<unsigned>(args.embed.tokens), kBeginThreads, 0, stream, args);
}

void end_step(const EndStepArgs& args, StreamHandle stream) {
  FT_CHECK(args.rows <= kMaxGridY);
  const dim3 grid(static_cast<unsigned>(args.rows > 0 ? ceil_div(args.vocab, kLogitsPerBlock) : 1),
                  static_cast<unsigned>(std::max<int64_t>(args.rows, 1)));
  launch_with(!args.after_join, end_step_kernel, grid, kThreads, 0, stream, args);
}

}  // namespace ft::cuda
