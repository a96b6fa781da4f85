// Pairs of a chunk by expert: how many each has, where they begin, which they are in order, and the tiles over them.
// Two launches: counts, then a block per item, which adds up what lies before it and picks its pairs from all ids. The
// ids of 4096 tokens with 8 experts are 128 KiB, so 128 blocks read 16 MiB from L2.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/prefill.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kCountThreads = 256;
constexpr int64_t kPairsPerCountBlock = 4096;

__global__ __launch_bounds__(kCountThreads) void count_kernel(const PrefillGroupArgs args) {
  const int64_t begin = blockIdx.x * kPairsPerCountBlock;
  const int64_t end = min(static_cast<long long>(args.pairs), static_cast<long long>(begin + kPairsPerCountBlock));
  for (int64_t pair = begin + threadIdx.x; pair < end; pair += kCountThreads) {
    const int32_t id = args.ids[pair];
    if (id >= 0) atomicAdd(args.lists.counts + id, 1);
  }
}

__device__ __forceinline__ int32_t tiles_of(int32_t count) {
  return (count + kPrefillTileTokens - 1) / kPrefillTileTokens;
}

// Sums over the block; all threads get them.
__device__ int2 block_sum(int2 value, int2* scratch) {
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int width = kWarp / 2; width >= 1; width /= 2) {
    value.x += __shfl_xor_sync(kFullWarp, value.x, width);
    value.y += __shfl_xor_sync(kFullWarp, value.y, width);
  }
  if (thread % kWarp == 0) scratch[thread / kWarp] = value;
  __syncthreads();
  int2 sum = make_int2(0, 0);
  for (int i = 0; i < kWarps; ++i) {
    sum.x += scratch[i].x;
    sum.y += scratch[i].y;
  }
  return sum;
}

__global__ __launch_bounds__(kThreads) void fill_kernel(const PrefillGroupArgs args) {
  __shared__ int2 scratch[kWarps];
  __shared__ int32_t found[kWarps];
  const auto thread = static_cast<int>(threadIdx.x);
  const auto item = static_cast<int>(blockIdx.x);
  const int32_t expert = args.expert_of_item[item];
  const int32_t count = args.lists.counts[expert];
  int2 before = make_int2(0, 0);
  for (int i = thread; i < item; i += kThreads) {
    const int32_t other = args.lists.counts[args.expert_of_item[i]];
    before.x += other;
    before.y += tiles_of(other);
  }
  before = block_sum(before, scratch);
  if (thread == 0) {
    args.lists.tile_begin[item] = before.y;
    if (item + 1 == args.experts) args.lists.tile_begin[item + 1] = before.y + tiles_of(count);
  }
  for (int i = thread; i < tiles_of(count); i += kThreads) {
    const int32_t begin = i * kPrefillTileTokens;
    args.lists.tiles[before.y + i] = {item, before.x + begin, min(count - begin, kPrefillTileTokens)};
  }
  if (count == 0) return;

  // A warp looks through one stretch of the pairs: how many are the expert's, then, knowing its place, which.
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int64_t stretch = (args.pairs + kThreads - 1) / kThreads * kWarp;
  const int64_t begin = warp * stretch;
  const int64_t end = min(static_cast<long long>(args.pairs), static_cast<long long>(begin + stretch));
  int32_t own = 0;
#pragma unroll 8
  for (int64_t pair = begin + lane; pair < end; pair += kWarp) own += args.ids[pair] == expert ? 1 : 0;
#pragma unroll
  for (int width = kWarp / 2; width >= 1; width /= 2) own += __shfl_xor_sync(kFullWarp, own, width);
  if (lane == 0) found[warp] = own;
  __syncthreads();
  if (own == 0) return;
  int32_t place = before.x;
  for (int i = 0; i < warp; ++i) place += found[i];
  for (int64_t first = begin; first < end; first += kWarp) {
    const int64_t pair = first + lane;
    const bool is = pair < end && args.ids[pair] == expert;
    const unsigned mask = __ballot_sync(kFullWarp, is);
    if (is) args.lists.order[place + __popc(mask & ((1u << lane) - 1u))] = static_cast<int32_t>(pair);
    place += __popc(mask);
  }
}

}  // namespace

void prefill_group(const PrefillGroupArgs& args, StreamHandle stream) {
  FT_CHECK(args.experts > 0);
  fill_zero(args.lists.counts, args.experts * int64_t{4}, stream);
  if (args.pairs > 0) {
    const auto blocks = static_cast<unsigned>(ceil_div(args.pairs, kPairsPerCountBlock));
    count_kernel<<<blocks, kCountThreads, 0, stream>>>(args);
    require_launched("prefill_group");
  }
  fill_kernel<<<static_cast<unsigned>(args.experts), kThreads, 0, stream>>>(args);
  require_launched("prefill_group");
}

}  // namespace ft::cuda
