#include "kernels/cuda/error.cuh"
#include "kernels/cuda/moe.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnitBytes = kThreads * 16;  // what a block reads at once: blobs are whole units
// Units in flight per block: 64 blocks hold 1 MiB of reads, many times what the link has under way (50 GB/s * 2 us =
// 100 KB); 16 blocks still hold 256 KiB.
constexpr int kInFlight = 4;
static_assert(kUnitBytes == 4096);

// Banks are filled before a step and do not change during it, so the read-only path is allowed; nothing of a blob is
// read twice, so L1 keeps none of it.
__device__ uint4 load_once(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// A repeated read must cross the link again: a volatile one is served by no cache.
__device__ uint4 load_again(const std::byte* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// All copies are one line of units; block b takes units b, b + blocks, ...: the blocks stay within a few MB of each
// other, which the device's address cache covers, and end within one unit of each other whatever the number of copies.
template <bool kAgain>
__device__ void copy_units(const LayerWork& work, uint32_t first_copy, uint32_t copies, uint32_t units_per_blob) {
  const uint32_t units = copies * units_per_blob, blocks = gridDim.x;
  for (uint32_t begin = blockIdx.x; begin < units; begin += blocks * kInFlight) {
    uint4 value[kInFlight];
    std::byte* target[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const uint32_t unit = begin + static_cast<uint32_t>(i) * blocks;
      target[i] = nullptr;
      if (unit >= units) continue;
      const uint32_t copy = first_copy + unit / units_per_blob;
      const int64_t offset = static_cast<int64_t>(unit % units_per_blob) * kUnitBytes + threadIdx.x * 16;
      target[i] = work.copy_target[copy] + offset;
      const std::byte* source = work.copy_source[copy] + offset;
      value[i] = kAgain ? load_again(source) : load_once(source);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (target[i] != nullptr) *reinterpret_cast<uint4*>(target[i]) = value[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const LayerWork work, int kind, uint32_t units_per_blob, int repeat) {
  const auto copies = static_cast<uint32_t>(work.copy_counts[kind]);
  if (copies == 0) return;
  uint32_t first = 0;
  for (int i = 0; i < kind; ++i) first += static_cast<uint32_t>(work.copy_counts[i]);
  copy_units<false>(work, first, copies, units_per_blob);
  for (int i = 1; i < repeat; ++i) copy_units<true>(work, first, copies, units_per_blob);
}

}  // namespace

void gather(const GatherArgs& args, StreamHandle stream) {
  // 2^20 units: 4 GiB of one blob; times kMaxPlanExperts copies it is a 32-bit number of units.
  FT_CHECK(args.blob_bytes > 0 && args.blob_bytes % kUnitBytes == 0 && args.blob_bytes / kUnitBytes < 1 << 20);
  FT_CHECK(args.blocks >= 0 && args.repeat >= 1);
  FT_CHECK(!args.promotions || !args.prefetches);
  const int usual = args.promotions ? kPromotionBlocks : args.prefetches ? kPrefetchBlocks : kGatherBlocks;
  const int blocks = args.blocks > 0 ? args.blocks : usual;
  gather_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      args.work,
      args.promotions   ? 1
      : args.prefetches ? 2
                        : 0,
      static_cast<uint32_t>(args.blob_bytes / kUnitBytes), args.repeat);
  require_launched("gather");
}

}  // namespace ft::cuda
