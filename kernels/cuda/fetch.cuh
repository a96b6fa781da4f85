// The device's part of arrival.h: copying units over the link, and waiting for them.
//
// A warp owns a unit: eight loads of 16 bytes a thread are under way, 4 KiB, then they are stored, and one release adds
// to the blob's counter: no barrier of a block is needed, so blocks of any size can fetch. 55 GB/s at 2 us are 110 KB
// under way; 64 blocks of 256 threads, 2 MiB, were as fast as any number [measured, H200].
#pragma once

#include "kernels/cuda/arrival.h"
#include "kernels/cuda/copy_proxy.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/number.cuh"

namespace ft::cuda {

inline constexpr int kUnitLoads = kUnitBytes / (kWarp * 16);

// The bank does not change during a step, so the read-only path is allowed; nothing of a blob is read twice, so L1
// keeps none of it.
__device__ __forceinline__ uint4 load_once(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// A repeated read must cross the link again: a volatile one is served by no cache.
__device__ __forceinline__ uint4 load_again(const std::byte* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void add_release(uint32_t* word, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Lists of copies are written by the kernel before, or by one that runs: past L1.
__device__ __forceinline__ Copy load_copy(const Copy* from) {
  static_assert(sizeof(Copy) == 32);
  const auto* parts = reinterpret_cast<const ulonglong2*>(from);
  const ulonglong2 a = __ldcg(parts), b = __ldcg(parts + 1);
  return {reinterpret_cast<const std::byte*>(a.x),
          reinterpret_cast<std::byte*>(a.y),
          reinterpret_cast<uint32_t*>(b.x),
          {.all = static_cast<uint32_t>(b.y),
           .gate_up = static_cast<uint32_t>(b.y >> 32) & 0xfffffu,
           .tail = static_cast<uint32_t>(b.y >> 52)}};
}

// The place-th unit in order of copying, by a whole warp; then it is counted.
__device__ __forceinline__ void copy_unit(const Copy& copy, uint32_t place, int repeat) {
  const int lane = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x) % kWarp;
  const uint32_t tail = copy.units.tail, unit = place < tail ? copy.units.all - tail + place : place - tail;
  const int64_t offset = int64_t{unit} * kUnitBytes + lane * 16;
  uint4 value[kUnitLoads];
#pragma unroll
  for (int i = 0; i < kUnitLoads; ++i) value[i] = load_once(copy.source + offset + i * kWarp * 16);
#pragma unroll 1  // unrolled it would take the registers of the kernels that fetch
  for (int again = 1; again < repeat; ++again) {
#pragma unroll
    for (int i = 0; i < kUnitLoads; ++i) value[i] = load_again(copy.source + offset + i * kWarp * 16);
  }
#pragma unroll
  for (int i = 0; i < kUnitLoads; ++i) *reinterpret_cast<uint4*>(copy.target + offset + i * kWarp * 16) = value[i];
  __syncwarp();  // the warp's stores before the release
  if (lane == 0) add_release(copy.arrived + (place < copy.units.gate_up ? 0 : 1), 1);
}

// A host's thread makes the copies. By a whole warp. Nothing is posted when no list becomes free: the thread has
// failed, or has not read the posts before within the time limit. Then the copies' waits end by theirs.
__device__ __forceinline__ void post_copies(const Fetch& fetch, int copies) {
  const CopyPost& post = fetch.post;
  const int lane = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x) % kWarp;
  const uint32_t number = next_number(*post.number), list = number % kCopyLists;
  bool may_write = copies <= post.max_copies;
  if (lane == 0) {
    const uint64_t begin = nanoseconds_now();
    while (may_write && !reached(load_acquire_system(&post.box->taken), number - kCopyLists)) {
      may_write = load_relaxed_system(&post.box->broken) == 0 && load_relaxed_system(&post.box->failed) == 0;
      if (nanoseconds_now() - begin <= post.timeout_ns) continue;
      store_release_system(&post.box->failed, 1);
      may_write = false;
    }
  }
  if (!__shfl_sync(kFullWarp, may_write, 0)) return;
  for (int i = lane; i < copies; i += kWarp)
    post.lists[int64_t{list} * post.max_copies + i] = load_copy(fetch.copies + i);
  __syncwarp();
  if (lane != 0) return;
  post.box->count[list] = copies;
  post.box->pending[list] = fetch.pending;
  __threadfence_system();
  store_release_system(&post.box->posted, number);
  *post.number = number;
}

// The share of warp `warp` of `warps`, which all call it, after the copies have been decided on.
__device__ __forceinline__ void fetch_by_warp(const Fetch& fetch, uint32_t warp, uint32_t warps) {
  const auto copies = static_cast<uint32_t>(__ldcg(fetch.count));
  if (copies == 0) return;
  if (fetch.post.box != nullptr) {
    if (warp == 0) post_copies(fetch, static_cast<int>(copies));
    return;
  }
  const uint32_t units = load_copy(fetch.copies).units.all, all = copies * units;
  uint32_t done = 0;
#pragma unroll 1
  for (uint32_t at = warp; at < all; at += warps, ++done) {
    copy_unit(load_copy(fetch.copies + at / units), at % units, fetch.repeat);
  }
  const int lane = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x) % kWarp;
  if (lane == 0 && done > 0 && fetch.pending != nullptr) atomicSub(fetch.pending, done);
}

// By one thread; a barrier behind it makes the part's bytes visible to the block. part: 0 for gate_up, 1 for down, by
// which time part 0 is there. Loads of the slot must not be moved before it, and not take the async proxy without a
// fence. looks: this thread looks at the mailbox, one for each item, resident no later than the item's other blocks.
//
// A thousand blocks wait at once, and what they do while they wait is what the copies go through. With polls 100 ns
// apart that acquired, and a look at the mailbox, across the link, at every 64th, a step of geometry A at 25 % took
// 229 ms, 20 times its bound; with a look of every block each millisecond eight fetched experts of 9.4 MB took 5.5 ms
// where the link takes 1.5, and six of 50 MB 192 ms [measured, H200], as if reads of one line of host
// memory were served one by one. So polls pause up to 2 us, which hides behind the part of the blob that still comes,
// do not acquire, and one block of an item looks for all: what it sees it tells the others by the counters.
__device__ __forceinline__ void wait_for_arrival(const Arrivals& arrivals, int32_t arrival, int part, bool looks) {
  constexpr uint64_t kLookNs = 1'000'000;
  constexpr uint32_t kFirstPauseNs = 250, kLongestPauseNs = 2000;
  uint32_t* const counters = arrivals.counters + kArrivalParts * arrival;
  const uint32_t wanted = part == 0 ? arrivals.units.gate_up : arrivals.units.all - arrivals.units.gate_up;
  const uint64_t begin = nanoseconds_now();
  uint64_t next_look = begin + kLookNs;
  uint32_t pause = kFirstPauseNs;
  while (load_relaxed_system(counters + part) < wanted) {
    __nanosleep(pause);
    pause = min(2 * pause, kLongestPauseNs);
    const uint64_t now = nanoseconds_now();
    if (now < next_look) continue;
    next_look = now + kLookNs;
    const bool late = now - begin > arrivals.timeout_ns;
    const bool given_up =
        looks && (load_relaxed_system(&arrivals.box->abandon) != 0 || load_relaxed_system(&arrivals.box->failed) != 0);
    if (late && !given_up) store_release_system(&arrivals.box->failed, static_cast<uint32_t>(arrivals.layer + 1));
    if (late || given_up) {
      for (int i = 0; i < kArrivalParts; ++i) atomicMax(counters + i, kGivenUp);
    }
  }
  load_acquire_system(counters + part);
}

}  // namespace ft::cuda
