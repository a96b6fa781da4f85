// Weights on their way: a warp's own ring of blocks of k in shared memory, filled by asynchronous copies.
//
// A decode step reads every weight once, and what limits it is how much is under way: at 4.5 TB/s and 0.8 us of latency
// 27 KB for each of 132 multiprocessors. Registers hold one or two blocks of a tile; a ring holds eight, and a warp
// waits for the oldest only, with no barrier of the block. The ring may be started before the kernel before this one
// has ended (weights that no step writes), so that a matrix streams in while its input is still being made.
#pragma once

#include <type_traits>

#include "kernels/cuda/packed_tile.cuh"

namespace ft::cuda {

// Rows of a tile that a half of the warp owns.
inline constexpr int kRowsPerHalf = kRowsPerTile / 2;

// This thread's place in a warp that owns a tile: a half of the warp is the 16 lanes of a row.
struct Place {
  int thread, half, lane;
  __device__ __forceinline__ explicit Place(int thread_in_warp)
      : thread(thread_in_warp), half(thread_in_warp / kLanes), lane(thread_in_warp % kLanes) {}
  // Row in the tile of this half's j-th row.
  __device__ __forceinline__ int row(int j) const { return 2 * j + half; }
};

template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t to, const std::byte* from) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
  }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// kMostStages: 8, or what a warp has blocks.
template <FormatId kFormat, int kMatrices, int kMostStages = 8>
struct RingShape {
  static constexpr int kCodeBytes = Decode<kFormat>::kWords * kRowsPerTile * kLanes * 4;  // of a whole block
  static constexpr int kScaleBytes = kScaleWords<kFormat> * 4;
  static constexpr int kMatrixBytes = kCodeBytes + kScaleBytes;
  static constexpr int kStageBytes = kMatrices * kMatrixBytes;
  // 4 KiB to 17 KiB a warp, by the format.
  static constexpr int kStages = kStageBytes <= 2304 ? kMostStages : (kMostStages + 1) / 2;
  static constexpr int kBytes = kStages * kStageBytes;
};

// Blocks of a tile of each of kMatrices matrices of equal shape.
template <FormatId kFormat, int kMatrices, int kMostStages = 8>
class TileRing {
  using Shape = RingShape<kFormat, kMatrices, kMostStages>;
  using Format = Decode<kFormat>;

 public:
  // `memory`: Shape::kBytes of the warp's own, on a 16-byte boundary.
  __device__ __forceinline__ TileRing(std::byte* memory, const TileShape& shape, int step, const Place& place)
      : memory_(memory),
        address_(static_cast<uint32_t>(__cvta_generic_to_shared(memory))),
        shape_(shape),
        step_(step),
        place_(place) {}

  // Blocks first, first + step, ... are on their way. Again only when all blocks of the start before were taken.
  __device__ __forceinline__ void start(const Tile (&tiles)[kMatrices], int first) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) tiles_[m] = tiles[m];
    next_ = first;
#pragma unroll 1
    for (int stage = 0; stage < Shape::kStages; ++stage) fill(stage);
    stage_ = 0;
  }

  // The oldest block is there; use(stage memory) reads it, then its place is filled again. All lanes call it.
  template <class Use>
  __device__ __forceinline__ void take(Use&& use) {
    wait_for_copies<Shape::kStages - 1>();
    __syncwarp();
    use(memory_ + stage_ * Shape::kStageBytes);
    __syncwarp();
    fill(stage_);
    stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
  }

 private:
  __device__ __forceinline__ void fill(int stage) {
    if (next_ < shape_.blocks) {
      const int lanes = shape_.lanes_of(next_);
      const uint32_t to = address_ + stage * Shape::kStageBytes;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const std::byte* codes = tiles_[m].codes + next_ * Shape::kCodeBytes;
        const uint32_t at = to + m * Shape::kMatrixBytes;
        if (lanes == kLanes) {
#pragma unroll
          for (int i = 0; i < Shape::kCodeBytes / 16; i += kWarp) {
            copy_async<16>(at + (i + place_.thread) * 16, codes + (i + place_.thread) * 16);
          }
        } else {
          for (int i = place_.thread; i < Format::kWords * lanes; i += kWarp)
            copy_async<16>(at + i * 16, codes + i * 16);
        }
        if constexpr (Format::kHasScales) {
          if (place_.half == m % 2 && brings_scale<kFormat>(place_.lane, lanes)) {
            copy_async<4>(at + Shape::kCodeBytes + place_.lane * 4,
                          tiles_[m].scales + Format::scale_offset(next_, place_.lane));
          }
        }
      }
    }
    commit_copies();  // also an empty one: groups are counted
    next_ += step_;
  }

  std::byte* memory_;
  uint32_t address_;
  const TileShape& shape_;
  Tile tiles_[kMatrices];
  int step_, next_ = 0, stage_ = 0;
  Place place_;
};

// ---- the canonical dot product of a block (kernels/ops/matvec.h)

// Word of a packed activation row with pair p of a lane, from the block's first word. A lane of 32 k is two
// neighbouring lanes of the 16-k layout, and its block two of that layout's.
template <int kGroup>
__device__ __forceinline__ int lane_words(int lane) {
  static_assert(kGroup == 16 || kGroup == 32);
  return kGroup == 16 ? lane : lane / 8 * 128 + lane % 8 * 2;
}
template <int kGroup>
__device__ __forceinline__ constexpr int pair_words(int pair) {
  return kGroup == 16 ? pair * kLanes : pair % 8 * kLanes + pair / 8;
}

template <FormatId kFormat, int kMatrices, int kTokens, bool kWhole, class Fold>
__device__ __forceinline__ void multiply_lanes(const std::byte* stage, int lanes, int block, const Place& place,
                                               const uint32_t* const (&x)[kTokens], Fold&& fold) {
  using Format = Decode<kFormat>;
  using Shape = RingShape<kFormat, kMatrices>;
  const bool present = kWhole || place.lane < lanes;
  const int row_words = kWhole ? kLanes : lanes;
  float p[kMatrices][kRowsPerHalf][kTokens] = {};
  const int first = block * (Format::kGroup / 2 * kLanes) + lane_words<Format::kGroup>(place.lane);
#pragma unroll
  for (int h = 0; h < Format::kWords; ++h) {
    float w[kMatrices][kRowsPerHalf][2 * Format::kPairs];
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const auto* codes = reinterpret_cast<const uint32_t*>(stage + m * Shape::kMatrixBytes) + place.lane;
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) {
        const uint32_t code = present ? codes[(h * kRowsPerTile + place.row(j)) * row_words] : 0u;
        Format::template word<false>(code, w[m][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < Format::kPairs; ++i) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint32_t pair = present ? x[t][first + pair_words<Format::kGroup>(h * Format::kPairs + i)] : 0u;
        const float even = low_bf16(pair);
        const float odd = high_bf16(pair);
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
          for (int j = 0; j < kRowsPerHalf; ++j) {
            p[m][j][t] = f32::fma(w[m][j][2 * i + 1], odd, p[m][j][t]);
            p[m][j][t] = f32::fma(w[m][j][2 * i], even, p[m][j][t]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    float scales[kRowsPerTile];
    const std::byte* words = stage + m * Shape::kMatrixBytes + Shape::kCodeBytes;
    if constexpr (Format::kRowScales) {
#pragma unroll
      for (int r = 0; r < kRowsPerTile; ++r) scales[r] = reinterpret_cast<const float*>(words)[r];
    } else {
      uint32_t word = 0;
      if constexpr (Format::kHasScales) {
        if (present) word = reinterpret_cast<const uint32_t*>(words)[place.lane];
      }
      Format::scales(word, scales);
    }
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const float scale = present ? (place.half == 0 ? scales[2 * j] : scales[2 * j + 1]) : 0.0f;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) fold(m, j, t, p[m][j][t], scale);
    }
  }
}

// Products and scales of one block go to fold(m, j, t, p, scale): p the canonical sum of the lane's k in row
// place.row(j) with token t. x: the tokens' packed rows. Lanes that are not there give +0 and scale +0.
template <FormatId kFormat, int kMatrices, int kTokens, class Fold>
__device__ __forceinline__ void multiply_block(const std::byte* stage, int lanes, int block, const Place& place,
                                               const uint32_t* const (&x)[kTokens], Fold&& fold) {
  if (lanes == kLanes) {
    multiply_lanes<kFormat, kMatrices, kTokens, true>(stage, lanes, block, place, x, fold);
  } else {
    multiply_lanes<kFormat, kMatrices, kTokens, false>(stage, lanes, block, place, x, fold);
  }
}

// Sums of a warp's own tile in registers.
template <int kMatrices, int kTokens>
struct Sums {
  float acc[kMatrices][kRowsPerHalf][kTokens] = {};
  __device__ __forceinline__ void operator()(int m, int j, int t, float p, float scale) {
    acc[m][j][t] = f32::fma(p, scale, acc[m][j][t]);
  }
};

// A tile by all kWarps warps of a block: each makes the sums P of its own blocks of k, kWarps of them at a time, and
// these are folded in order of blocks from shared memory, so the bits are those of one warp that walks the tile. A warp
// alone takes 2 us for 2048 k, most of it latency; a multiprocessor has ten tiles in a projection of 5120 rows, and
// room for 64 warps.
template <int kMatrices, int kTokens, int kWarps>
struct SharedWalk {
  static constexpr int kSums = kRowsPerHalf * kTokens;        // of each matrix
  static constexpr int kOwn = (kSums + kWarps - 1) / kWarps;  // folded by a warp: number warp + i * kWarps
  static constexpr int kRow = kRowsPerHalf * (kTokens + 1);   // cells of a matrix and block, times 32
  static constexpr int kBytes = kWarps * kMatrices * kRow * kWarp * 4;

  float* cells;
  int warp;
  float acc[kOwn][kMatrices] = {};

  __device__ __forceinline__ SharedWalk(std::byte* memory, int warp_of_block)
      : cells(reinterpret_cast<float*>(memory)), warp(warp_of_block) {}
  __device__ __forceinline__ float* cell(int of_warp, int m, int j, int t, int thread) const {
    return cells + ((of_warp * kMatrices + m) * kRow + j * (kTokens + 1) + t) * kWarp + thread;
  }

  // Ends with a barrier.
  template <FormatId kFormat, class Ring>
  __device__ __forceinline__ void run(Ring& ring, const TileShape& shape, const Place& place,
                                      const uint32_t* const (&x)[kTokens]) {
    for (int round = 0; round < shape.blocks; round += kWarps) {
      const int block = round + warp;
      if (block < shape.blocks) {
        ring.take([&](const std::byte* stage) {
          multiply_block<kFormat, kMatrices>(stage, shape.lanes_of(block), block, place, x,
                                             [&](int m, int j, int t, float p, float scale) {
                                               *cell(warp, m, j, t, place.thread) = p;
                                               if (t == 0) *cell(warp, m, j, kTokens, place.thread) = scale;
                                             });
        });
      }
      __syncthreads();
      const int blocks = shape.blocks - round < kWarps ? shape.blocks - round : kWarps;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int sum = warp + i * kWarps;
        if (sum >= kSums) break;
        const int j = sum % kRowsPerHalf, t = sum / kRowsPerHalf;
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
          for (int b = 0; b < kWarps; ++b) {
            if (b >= blocks) break;
            acc[i][m] = f32::fma(*cell(b, m, j, t, place.thread), *cell(b, m, j, kTokens, place.thread), acc[i][m]);
          }
        }
      }
      __syncthreads();
    }
  }
  // use(j, t, lane sums of the matrices) for what this warp folded.
  template <class Use>
  __device__ __forceinline__ void for_sums(Use&& use) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int sum = warp + i * kWarps;
      if (sum < kSums) use(sum % kRowsPerHalf, sum / kRowsPerHalf, acc[i]);
    }
  }
};

// Tokens that share one decoding of the weights: 64 sums in registers for gate and up together.
inline constexpr int kMaxTokensPerPass = 8;

// Calls pass(integral constant: tokens) with the smallest of 1, 2, 4, 8 that is not below `tokens` <= kMost.
template <int kMost, class Pass>
__device__ __forceinline__ void with_tokens(int tokens, Pass&& pass) {
  if constexpr (kMost == 1) {
    pass(std::integral_constant<int, 1>());
  } else {
    if (tokens == 1) return pass(std::integral_constant<int, 1>());
    if (tokens == 2) return pass(std::integral_constant<int, 2>());
    if (tokens <= 4) return pass(std::integral_constant<int, 4>());
    pass(std::integral_constant<int, kMost>());
  }
}

}  // namespace ft::cuda
