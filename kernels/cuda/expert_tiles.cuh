// Weights of experts on their way: each warp's own stages of shared memory, filled ahead by bulk copies, and the
// canonical dot product (kernels/ops/matvec.h) of a pair of row tiles from there.
//
// What a decode step's experts need is bytes under way: at 4.5 TB/s and 1 us of latency 34 KB for each of 132
// multiprocessors, all the time. One token's eight NVFP4 experts are 107 KB a multiprocessor of gate and up and 54 KB
// of down: all of it is asked for at once, by an instruction a kilobyte (PTX cp.async.bulk), and a warp starts with its
// first blocks of k when these are there. No register waits for memory, and no warp for another.
//
// A pair is the tile of gate and the same one of up, or two neighbouring tiles of down: four rows a thread, which share
// the unpacking of x. A half of the warp is the 16 lanes of a row: half s owns the rows s and s + 2 of each tile, so
// that word h of rows 2j and 2j + 1 is 32 neighbouring words.
#pragma once

#include <type_traits>

#include "kernels/cuda/packed_tile.cuh"
#include "kernels/cuda/tile_ring.cuh"

namespace ft::cuda {

inline constexpr int kPair = 2;  // tiles that a warp takes together

// kBlocks whole blocks of k of a pair: codes of the first tile, of the second, then scales, a word for each lane.
template <FormatId kFormat, int kBlocksOfStage>
struct StageShape {
  static constexpr int kBlocks = kBlocksOfStage;
  static constexpr int kCodeBytes = Decode<kFormat>::kWords * kRowsPerTile * kLanes * 4;
  static constexpr int kScaleBytes = Decode<kFormat>::kHasScales ? kLanes * 4 : 0;
  static constexpr int kScalesAt = kPair * kBlocks * kCodeBytes;
  static constexpr int kBytes = kScalesAt + kPair * kBlocks * kScaleBytes;
  static __device__ __forceinline__ int codes_at(int m, int block) { return (m * kBlocks + block) * kCodeBytes; }
  static __device__ __forceinline__ int scales_at(int m, int block) {
    return kScalesAt + (m * kBlocks + block) * kScaleBytes;
  }
};

// ---- barriers in shared memory that count copies in

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kCopiesInBulk = true;
#else
inline constexpr bool kCopiesInBulk = false;  // 16 bytes a thread instead
#endif

// Arrivals that complete a phase: the lane's that announces the bytes of the bulk copies, and one of each lane when its
// own copies have landed.
template <bool kOwnCopies>
inline constexpr uint32_t kStageArrivals = (kCopiesInBulk ? 1 : 0) + (kOwnCopies || !kCopiesInBulk ? kWarp : 0);

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// By the thread that has made them; the other users of the barriers are behind a barrier of the warp or block.
__device__ __forceinline__ void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// The phase of that parity has completed. A copy lands within microseconds or not at all (an address that is none ends
// the kernel), so the wait is bounded by the hardware.
__device__ __forceinline__ bool try_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .pred done;\n mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n .reg .pred done;\n mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return done != 0;
}
// What this thread knows to be written by others, in the ordinary way, may now be read by bulk copies.
__device__ __forceinline__ void let_bulk_copies_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_barrier(uint32_t barrier, uint32_t parity) {
  while (!try_barrier(barrier, parity)) {
  }
}
// This thread's asynchronous copies so far arrive there when they have landed.
__device__ __forceinline__ void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Weights are read once in a step: they go out of the L2 cache first.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// REQUIRES 16-byte boundaries and multiples, which codes have in every layout.
__device__ __forceinline__ void copy_in_bulk(uint32_t to, const std::byte* from, uint32_t bytes, uint32_t barrier,
                                             uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
#endif

// A pair of tiles: codes of the first, bytes from there to the second's, and the scales of tile `half` of the pair.
struct PairOfTiles {
  const std::byte* codes = nullptr;
  const std::byte* own_scales = nullptr;
  int64_t to_second = 0;
};

// A warp's stages. Source: the pairs of tiles that are read, in order: valid(), ready(wait): its bytes are there, which
// it waits for or not; pair(half), next().
template <FormatId kFormat, class Shape, class Source>
class StageRing {
  using Format = Decode<kFormat>;

 public:
  static constexpr int kBarrierBytes = 8;  // of a stage
  // `stages` of Shape::kBytes at `memory`, their barriers at `barriers`: addresses in shared memory. All lanes call.
  __device__ __forceinline__ StageRing(uint32_t memory, uint32_t barriers, int stages, const TileShape& shape,
                                       const Place& place)
      : memory_(memory), barriers_(barriers), stages_(stages), shape_(shape), place_(place), empty_(stages) {
    if (place.thread == 0) {
#pragma unroll 1
      for (int s = 0; s < stages; ++s) init_barrier(barriers + s * kBarrierBytes, kStageArrivals<Format::kHasScales>);
      publish_barriers();
    }
    __syncwarp();
  }

  // As many stages as are empty, while the source has what is there.
  __device__ __forceinline__ void fill(Source& source, bool wait = false) {
#pragma unroll 1
    while (empty_ > 0 && source.valid()) {
      if (block_ == 0) {
        if (!source.ready(wait)) return;
        pair_ = source.pair(place_.half);
      }
      fill_one();
      if (block_ == shape_.blocks) block_ = 0, source.next();
    }
  }

  // Offset of the oldest stage, when it is there.
  __device__ __forceinline__ int oldest(Source& source) {
    if (empty_ == stages_) fill(source, true);
    wait_for_barrier(barriers_ + stage_ * kBarrierBytes, parity_);
    return stage_ * Shape::kBytes;
  }
  // What the oldest stage held has been read.
  __device__ __forceinline__ void release(Source& source) {
    __syncwarp();
    if (++stage_ == stages_) stage_ = 0, parity_ ^= 1;
    ++empty_;
    fill(source);
  }

 private:
  // The first empty stage, with the pair's next blocks.
  __device__ __forceinline__ void fill_one() {
    int stage = stage_ - empty_;
    if (stage < 0) stage += stages_;
    const int blocks = min(Shape::kBlocks, shape_.blocks - block_);
    const uint32_t to = memory_ + stage * Shape::kBytes, barrier = barriers_ + stage * kBarrierBytes;
    const int first = block_ * Shape::kCodeBytes;
    const int bytes = min(blocks * Shape::kCodeBytes, static_cast<int>(shape_.code_bytes_per_tile) - first);
#if __CUDA_ARCH__ >= 900
    if (place_.thread == 0) {
      const uint64_t policy = read_once_policy();
      expect_bytes(barrier, kPair * bytes);
#pragma unroll
      for (int m = 0; m < kPair; ++m) {
        copy_in_bulk(to + Shape::codes_at(m, 0), pair_.codes + m * pair_.to_second + first, bytes, barrier, policy);
      }
    }
#else
#pragma unroll
    for (int m = 0; m < kPair; ++m) {
      for (int at = place_.thread * 16; at < bytes; at += kWarp * 16) {
        copy_async<16>(to + Shape::codes_at(m, 0) + at, pair_.codes + m * pair_.to_second + first + at);
      }
    }
#endif
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int i = 0; i < Shape::kBlocks; ++i) {
        if (i < blocks && place_.lane < shape_.lanes_of(block_ + i)) {
          copy_async<4>(to + Shape::scales_at(place_.half, i) + place_.lane * 4,
                        pair_.own_scales + Format::scale_offset(block_ + i, place_.lane));
        }
      }
    }
    if constexpr (Format::kHasScales || !kCopiesInBulk) arrive_with_copies(barrier);
    block_ += blocks;
    --empty_;
  }

  uint32_t memory_, barriers_;
  int stages_;
  const TileShape& shape_;
  Place place_;
  PairOfTiles pair_;  // that is being read
  int block_ = 0;     // of it, the first that no stage has
  int stage_ = 0;     // the oldest
  int empty_;         // stages that hold nothing: those before the oldest
  uint32_t parity_ = 0;
};

// ---- the product

// x as fp32 in shared memory, one token: [block][four of a lane's k][lane], times 2^kShift where Decode leaves that
// factor out of the weights.
struct FloatRow {
  const float4* x;
  template <int kGroup>
  __device__ __forceinline__ float4 quad(int, int block, int q, int lane, bool) const {
    return x[(block * (kGroup / 4) + q) * kLanes + lane];
  }
};

// Packed rows of kTokens tokens, `at` words from x.
template <int kTokens>
struct PackedRows {
  const uint32_t* x;
  uint32_t at[kTokens];
  template <int kGroup>
  __device__ __forceinline__ float4 quad(int t, int block, int q, int lane, bool present) const {
    const uint32_t* words = x + (at[t] + static_cast<uint32_t>(block * (kGroup / 2 * kLanes) + lane_words<kGroup>(lane)));
    const uint32_t first = present ? words[pair_words<kGroup>(2 * q)] : 0u;
    const uint32_t second = present ? words[pair_words<kGroup>(2 * q + 1)] : 0u;
    return {low_bf16(first), high_bf16(first), low_bf16(second), high_bf16(second)};
  }
};

// Folds block `block` of k, the `in_stage`-th of the stage, into acc[m][j][t]: row place.row(j) of tile m with token t.
template <FormatId kFormat, class Shape, bool kScaled, bool kWhole, int kTokens, class X>
__device__ __forceinline__ void fold_lanes(const std::byte* stage, int in_stage, int block, int lanes,
                                           const Place& place, const X& x,
                                           float (&acc)[kPair][kRowsPerHalf][kTokens]) {
  using Format = Decode<kFormat>;
  constexpr int kWordsAtOnce = Format::kPairs >= 2 ? 1 : 2 / Format::kPairs;
  constexpr int kQuads = kWordsAtOnce * Format::kPairs / 2;  // of one step
  const bool present = kWhole || place.lane < lanes;
  const int row_words = kWhole ? kLanes : lanes;
  float p[kPair][kRowsPerHalf][kTokens] = {};
#pragma unroll
  for (int h = 0; h < Format::kWords; h += kWordsAtOnce) {
    float w[kPair][kRowsPerHalf][kWordsAtOnce][2 * Format::kPairs];
#pragma unroll
    for (int m = 0; m < kPair; ++m) {
      const auto* codes = reinterpret_cast<const uint32_t*>(stage + Shape::codes_at(m, in_stage));
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
        for (int i = 0; i < kWordsAtOnce; ++i) {
          const int row = (h + i) * kRowsPerTile + 2 * j;
          const uint32_t code = kWhole    ? codes[row * kLanes + place.thread]
                                : present ? codes[(row + place.half) * row_words + place.lane]
                                          : 0u;
          Format::template word<kScaled>(code, w[m][j][i]);
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float4 k =
            x.template quad<Format::kGroup>(t, block, h / kWordsAtOnce * kQuads + q, place.lane, present);
#pragma unroll
        for (int m = 0; m < kPair; ++m) {
#pragma unroll
          for (int j = 0; j < kRowsPerHalf; ++j) {
            const auto weight = [&](int i) { return w[m][j][i / (2 * Format::kPairs)][i % (2 * Format::kPairs)]; };
            float& sum = p[m][j][t];
            sum = f32::fma(weight(4 * q + 1), k.y, sum);
            sum = f32::fma(weight(4 * q), k.x, sum);
            sum = f32::fma(weight(4 * q + 3), k.w, sum);
            sum = f32::fma(weight(4 * q + 2), k.z, sum);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kPair; ++m) {
    float scales[kRowsPerHalf];
    uint32_t word = 0;
    if constexpr (Format::kHasScales) {
      const auto* words = reinterpret_cast<const uint32_t*>(stage + Shape::scales_at(m, in_stage));
      if (present) word = words[place.lane];
    }
    Format::half_scales(word, place.half, scales);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const float scale = present ? scales[j] : 0.0f;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) acc[m][j][t] = f32::fma(p[m][j][t], scale, acc[m][j][t]);
    }
  }
}

// All blocks of the pair whose first stage is the oldest. `memory`: where the warp's stages start.
template <FormatId kFormat, class Shape, bool kScaled, int kTokens, class Ring, class Source, class X>
__device__ __forceinline__ void fold_pair(const std::byte* memory, Ring& ring, Source& source, const TileShape& shape,
                                          const Place& place, const X& x,
                                          float (&acc)[kPair][kRowsPerHalf][kTokens]) {
  const int whole = shape.last_lanes == kLanes ? shape.blocks : shape.blocks - 1;
#pragma unroll 1
  for (int first = 0; first < shape.blocks; first += Shape::kBlocks) {
    const std::byte* stage = memory + ring.oldest(source);
    const int end = min(Shape::kBlocks, whole - first);
#pragma unroll 1
    for (int i = 0; i < end; ++i) {
      fold_lanes<kFormat, Shape, kScaled, true, kTokens>(stage, i, first + i, kLanes, place, x, acc);
    }
    if (first + end < min(first + Shape::kBlocks, shape.blocks)) {
      fold_lanes<kFormat, Shape, kScaled, false, kTokens>(stage, end, first + end, shape.last_lanes, place, x, acc);
    }
    ring.release(source);
  }
}

}  // namespace ft::cuda
