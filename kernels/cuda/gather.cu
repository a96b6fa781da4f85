#include "kernels/cuda/error.cuh"
#include "kernels/cuda/fetch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed_tile.cuh"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads) gather_kernel(const Fetch fetch) {
  fetch_by_warp(fetch, blockIdx.x * kWarps + threadIdx.x / kWarp, gridDim.x * kWarps);
}

// A warp's way through one kind's copies: all units of a step are one line, and warp w takes units w, w + warps, ...
struct Place {
  uint32_t copy = 0, unit = 0;
  // Moves on by units that lie in copies [copy, queued). False: the line ends before.
  __device__ bool find(const Copy* copies, uint32_t queued, Copy& found) {
    while (copy < queued) {
      found = load_copy(copies + copy);
      if (unit < found.units.all) return true;
      unit -= found.units.all;
      ++copy;
    }
    return false;
  }
};

class Copier {
 public:
  __device__ explicit Copier(const CopierArgs& args) : args_(args) {
    for (Place& place : places_) place.unit = blockIdx.x * kWarps + threadIdx.x / kWarp;
  }
  __device__ void run() {
    uint64_t since = nanoseconds_now(), next_look = since + kLookNs;  // since: something was copied
    while (true) {
      const Seen seen = look();
      if ((seen.pending == 0 || args_.drain) && copy_one(seen)) {
        since = nanoseconds_now();
        continue;
      }
      if (args_.drain || (seen.closed != 0 && seen.pending == 0)) return;
      __nanosleep(500);
      if (__shfl_sync(kFullWarp, threadIdx.x % kWarp == 0 && gives_up(since, next_look), 0)) return;
    }
  }

 private:
  static constexpr uint64_t kLookNs = 1'000'000;  // at the mailbox, across the link

  __device__ bool gives_up(uint64_t since, uint64_t& next_look) const {
    const uint64_t now = nanoseconds_now();
    if (now < next_look) return false;
    next_look = now + kLookNs;
    if (load_relaxed_system(&args_.box->abandon) != 0 || load_relaxed_system(&args_.box->failed) != 0) return true;
    if (now - since <= args_.timeout_ns) return false;
    store_release_system(&args_.box->failed, kCopierLeft);
    return true;
  }
  // The words that decide, in one read: what was appended before the queue was closed is seen with its end.
  struct Seen {
    uint32_t queued[kLinkKinds];
    uint32_t pending, closed;
  };
  static_assert(kLinkKinds == 2 && kQueued == 0 && kPending == 2 && kClosed == 3);
  // The warp's threads agree: they see what the first one does.
  __device__ Seen look() {
    Seen seen;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(seen.queued[0]), "=r"(seen.queued[1]), "=r"(seen.pending), "=r"(seen.closed)
                 : "l"(args_.queue.words)
                 : "memory");
    for (uint32_t* word : {&seen.queued[0], &seen.queued[1], &seen.pending, &seen.closed}) {
      *word = __shfl_sync(kFullWarp, *word, 0);
    }
    if (seen.queued[0] + seen.queued[1] != known_) __threadfence();  // the copies behind a new count
    known_ = seen.queued[0] + seen.queued[1];
    return seen;
  }
  __device__ bool copy_one(const Seen& seen) {
    for (const LinkKind kind : {kPrefetch, kPromotion}) {
      Copy copy;
      Place& place = places_[kind];
      if (!place.find(args_.queue.copies[kind], seen.queued[kind], copy)) continue;
      copy_unit(copy, place.unit, args_.repeat);
      place.unit += gridDim.x * kWarps;
      return true;
    }
    return false;
  }

  const CopierArgs& args_;
  Place places_[kLinkKinds];
  uint32_t known_ = 0;
};

__global__ void __launch_bounds__(kThreads) copier_kernel(const __grid_constant__ CopierArgs args) {
  uint32_t* words = args.queue.words;
  if (threadIdx.x == 0) add_release(words + kStarted, 1);
  Copier(args).run();
  __syncthreads();
  if (threadIdx.x != 0) return;
  // The last block to leave: nobody looks at the words any more.
  if (atomicAdd(words + kLeft, 1u) != gridDim.x - 1) return;
  for (int word = 0; word < kLinkWords; ++word) words[word] = 0;
}

__global__ void wait_for_copier_kernel(const uint32_t* started, uint32_t blocks, uint64_t timeout_ns) {
  const uint64_t begin = nanoseconds_now();
  while (load_acquire_system(started) < blocks && nanoseconds_now() - begin <= timeout_ns) {
  }
}

__global__ void __launch_bounds__(kThreads) await_copies_kernel(const Fetch fetch, uint64_t timeout_ns) {
  const uint64_t begin = nanoseconds_now();
  const int copies = __ldcg(fetch.count);
  for (int i = static_cast<int>(threadIdx.x); i < copies; i += kThreads) {
    const Copy copy = load_copy(fetch.copies + i);
    while ((load_acquire_system(copy.arrived) < copy.units.gate_up ||
            load_acquire_system(copy.arrived + 1) < copy.units.all - copy.units.gate_up) &&
           nanoseconds_now() - begin <= timeout_ns) {
    }
  }
}

__global__ void close_kernel(const LinkQueue queue) {
  wait_for_previous();
  add_release(queue.words + kClosed, 1);
}

}  // namespace

BlobUnits blob_units(const ExpertLayout& layout) {
  FT_CHECK(layout.bytes > 0 && layout.bytes % kUnitBytes == 0 && layout.bytes <= UINT32_MAX);
  const auto all = static_cast<uint32_t>(layout.bytes / kUnitBytes);
  const auto before_down = static_cast<uint32_t>(ceil_div(layout.down_offset, kUnitBytes));
  const int64_t after_down = layout.bias_offset > 0 ? layout.bias_offset : layout.trailer_offset;
  const uint32_t tail = all - static_cast<uint32_t>(after_down / kUnitBytes);
  constexpr uint32_t kMostTail = (1u << 12) - 1;
  FT_CHECK(tail <= kMostTail);
  return {.all = all, .gate_up = before_down + tail < all ? before_down + tail : all, .tail = tail};
}

void gather(const Fetch& fetch, int blocks, StreamHandle stream) {
  FT_CHECK(blocks >= 1 && fetch.repeat >= 1);
  gather_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(fetch);
  require_launched("gather");
}

void copy_queued(const CopierArgs& args, StreamHandle stream) {
  FT_CHECK(args.blocks >= 0 && args.repeat >= 1 && args.queue.words != nullptr && args.box != nullptr);
  const int blocks = args.blocks > 0 ? args.blocks : kCopierBlocks;
  // A multiprocessor divides its memory between L1 and shared while it is empty: a copier that stays for a whole step
  // with the least share keeps blocks that need more away from its multiprocessor all the while. It needs none itself.
  allow_shared(copier_kernel, 0);
  launch_after_all(copier_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, args);
}

void await_copies(const Fetch& fetch, uint64_t timeout_ns, StreamHandle stream) {
  await_copies_kernel<<<1, kThreads, 0, stream>>>(fetch, timeout_ns);
  require_launched("await_copies");
}

void wait_for_copier(const CopierArgs& args, StreamHandle stream) {
  const auto blocks = static_cast<uint32_t>(args.blocks > 0 ? args.blocks : kCopierBlocks);
  launch_after_all(wait_for_copier_kernel, 1, 1, 0, stream, args.queue.words + kStarted, blocks, args.timeout_ns);
}

void close_queue(const LinkQueue& queue, StreamHandle stream) { launch(close_kernel, 1, 1, 0, stream, queue); }

}  // namespace ft::cuda
