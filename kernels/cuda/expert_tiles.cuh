// Weights of experts in shared memory, all of a block's asked for at once by bulk copies.
//
// What a decode step's experts wait for is memory's latency and instructions that are not in the cache: each kernel of
// the step runs its code once a layer, and code that runs once costs 10 to 20 clocks an instruction [measured, H200].
// So there is no ring and no pipeline to fill: a block knows its bytes, asks for them with a few instructions (PTX
// cp.async.bulk), and then all its warps compute, each its own blocks of k, whose x it keeps in registers. The sums P
// of a row's blocks meet in shared memory and are folded in order, so the bits are those of one warp that walks the
// row.
//
// A pair is two neighbouring tiles: four rows a thread, which share x. A half of the warp is the 16 lanes of a row:
// half s owns the rows s and s + 2 of each tile, so that word h of rows 2j and 2j + 1 is 32 neighbouring words.
#pragma once

#include "kernels/cuda/packed_tile.cuh"
#include "kernels/cuda/tile_ring.cuh"

namespace ft::cuda {

inline constexpr int kPair = 2;  // tiles that a warp takes together
inline constexpr int kPairSums = kPair * kRowsPerHalf;

// A pair's `blocks` blocks of k in shared memory: codes of the first tile, of the second, then scales, a word for each
// lane or, with kRowScales, row. Where its codes were, a block's sums P and scales go: [sum][thread] each.
template <FormatId kFormat>
struct PairShape {
  static constexpr int kCodeBytes = Decode<kFormat>::kWords * kRowsPerTile * kLanes * 4;  // of a whole block of a tile
  static constexpr int kScaleBytes = kScaleWords<kFormat> * 4;
  static_assert(kCodeBytes >= kPairSums * kWarp * 4);
  int blocks = 0;
  __host__ __device__ __forceinline__ int bytes() const { return blocks * kPair * (kCodeBytes + kScaleBytes); }
  __device__ __forceinline__ int codes_at(int m, int block) const { return (m * blocks + block) * kCodeBytes; }
  __device__ __forceinline__ int scales_at(int m, int block) const {
    return kPair * blocks * kCodeBytes + (block * kPair + m) * kScaleBytes;
  }
};

// ---- barriers in shared memory that count copies in (from sm_90 on)

#if __CUDA_ARCH__ >= 900
// A barrier with one phase, which the bytes that one thread announces complete.
__device__ __forceinline__ void init_copy_barrier_once(uint32_t barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
}
// A copy lands within microseconds or not at all (an address that is none ends the kernel): the hardware bounds it.
__device__ __forceinline__ void wait_for_copies_of(uint32_t barrier) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n .reg .pred done;\n mbarrier.try_wait.parity.shared.b64 done, [%1], 0;\n selp.u32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  }
}
// What this thread knows to be written by others, in the ordinary way, may now be read by bulk copies.
__device__ __forceinline__ void let_bulk_copies_read() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Two tiles of `bytes` bytes, a multiple of 16 on 16-byte boundaries, as codes are in every layout: from `first` and
// `second` to `to` and `to_second`. By a whole warp.
__device__ __forceinline__ void copy_pair(uint32_t to, uint32_t to_second, const std::byte* first,
                                          const std::byte* second, uint32_t bytes, uint32_t barrier, int lane) {
  if (lane != 0) return;
  uint64_t policy;  // weights are read once in a step: they go out of the L2 cache first
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(kPair * bytes) : "memory");
#pragma unroll 1
  for (int m = 0; m < kPair; ++m) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(m == 0 ? to : to_second),
        "l"(m == 0 ? first : second), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
  }
}
#endif

// ---- the product

// A lane's x in a block of k, as fp32.
template <FormatId kFormat>
struct LaneX {
  static constexpr int kGroup = Decode<kFormat>::kGroup;
  float k[kGroup];
  // Whether the power of two that decoding leaves out of the weights is in x instead: where no x of the warp overflows
  // by it, products, sums and flushes are the same bits.
  bool scaled;

  __device__ __forceinline__ void unpack(const uint32_t (&words)[kGroup / 2]) {
    constexpr int kShift = Decode<kFormat>::kShift;
    float power = 1.0f;
    scaled = true;
    if constexpr (kShift > 0) {
      constexpr uint32_t kExponent = 0x7f800000u, kTooLarge = static_cast<uint32_t>(255 - kShift) << 23;
      bool large = false;
#pragma unroll
      for (const uint32_t word : words) {
        large |= (word & kExponent) >= kTooLarge || (word << 16 & kExponent) >= kTooLarge;
      }
      scaled = !__any_sync(kFullWarp, large);
      power = scaled ? static_cast<float>(1 << kShift) : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i) {
      k[2 * i] = f32::mul(low_bf16(words[i]), power);
      k[2 * i + 1] = f32::mul(high_bf16(words[i]), power);
    }
  }
};

// Words of a lane's x: block `block` of the packed row; zeros for a lane that is not there.
template <FormatId kFormat>
__device__ __forceinline__ void load_lane_x(const uint32_t* row, int block, int lane, bool present,
                                            uint32_t (&words)[Decode<kFormat>::kGroup / 2]) {
  constexpr int kGroup = Decode<kFormat>::kGroup;
  const uint32_t* at = row + block * (kGroup / 2 * kLanes) + lane_words<kGroup>(lane);
#pragma unroll
  for (int i = 0; i < kGroup / 2; ++i) words[i] = present ? __ldcg(at + pair_words<kGroup>(i)) : 0u;
}

// The canonical sums of one block's products, and their scales, of row place.row(j) of tile m: index m * 2 + j.
template <FormatId kFormat, bool kScaled, bool kWhole>
__device__ __forceinline__ void multiply_pair(const std::byte* pair, PairShape<kFormat> shape, int block, int lanes,
                                              const Place& place, const LaneX<kFormat>& x, float (&p)[kPairSums],
                                              float (&scales)[kPairSums]) {
  using Format = Decode<kFormat>;
  const bool present = kWhole || place.lane < lanes;
#pragma unroll
  for (float& sum : p) sum = 0.0f;
#pragma unroll
  for (int h = 0; h < Format::kWords; ++h) {
#pragma unroll
    for (int m = 0; m < kPair; ++m) {
      const auto* codes = reinterpret_cast<const uint32_t*>(pair + shape.codes_at(m, block));
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) {
        const int row = h * kRowsPerTile + 2 * j;
        const uint32_t code = kWhole    ? codes[row * kLanes + place.thread]
                              : present ? codes[(row + place.half) * lanes + place.lane]
                                        : 0u;
        float w[2 * Format::kPairs];
        Format::template word<kScaled>(code, w);
        float& sum = p[m * kRowsPerHalf + j];
#pragma unroll
        for (int i = 0; i < Format::kPairs; ++i) {
          const int k = 2 * (h * Format::kPairs + i);
          sum = f32::fma(w[2 * i + 1], x.k[k + 1], sum);
          sum = f32::fma(w[2 * i], x.k[k], sum);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kPair; ++m) {
    float both[kRowsPerHalf];
    const std::byte* words = pair + shape.scales_at(m, block);
    if constexpr (Format::kRowScales) {
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) both[j] = reinterpret_cast<const float*>(words)[place.row(j)];
    } else {
      uint32_t word = 0;
      if constexpr (Format::kHasScales) {
        if (present) word = reinterpret_cast<const uint32_t*>(words)[place.lane];
      }
      Format::half_scales(word, place.half, both);
    }
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) scales[m * kRowsPerHalf + j] = present ? both[j] : 0.0f;
  }
}

// Block `block` of the pair: its sums and scales to where its codes were.
template <FormatId kFormat>
__device__ __forceinline__ void multiply_in_place(std::byte* pair, PairShape<kFormat> shape, int block, int lanes,
                                                  const Place& place, const LaneX<kFormat>& x) {
  float p[kPairSums], scales[kPairSums];
  if (lanes == kLanes && x.scaled) {
    multiply_pair<kFormat, true, true>(pair, shape, block, lanes, place, x, p, scales);
  } else if (x.scaled) {
    multiply_pair<kFormat, true, false>(pair, shape, block, lanes, place, x, p, scales);
  } else {
    multiply_pair<kFormat, false, false>(pair, shape, block, lanes, place, x, p, scales);
  }
  __syncwarp();  // all lanes have read the codes
  auto* sums = reinterpret_cast<float*>(pair + shape.codes_at(0, block)) + place.thread;
  auto* of_sums = reinterpret_cast<float*>(pair + shape.codes_at(1, block)) + place.thread;
#pragma unroll
  for (int i = 0; i < kPairSums; ++i) {
    sums[i * kWarp] = p[i];
    of_sums[i * kWarp] = scales[i];
  }
}

// Lane sum number `i` of a pair of which every block was multiplied.
template <FormatId kFormat>
__device__ __forceinline__ float fold_blocks(const std::byte* pair, PairShape<kFormat> shape, int i,
                                             const Place& place) {
  const auto* sums = reinterpret_cast<const float*>(pair) + i * kWarp + place.thread;
  const float* scales = sums + shape.codes_at(1, 0) / 4;
  float acc = 0.0f;
#pragma unroll 4
  for (int block = 0; block < shape.blocks; ++block) {
    acc = f32::fma(sums[block * (PairShape<kFormat>::kCodeBytes / 4)],
                   scales[block * (PairShape<kFormat>::kCodeBytes / 4)], acc);
  }
  return acc;
}

}  // namespace ft::cuda
