// One split of attention_decode.cu: its copies, scores, exponentials and values, by the warps of a team.
#pragma once

#include <limits>

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/attention.h"

namespace ft::cuda {

inline constexpr int kSplit = kAttentionSplit;
inline constexpr int kRingBytes = 8192;  // of one warp
inline constexpr int kStageRows = 4;
inline constexpr int kRowPitch =
    kSplit + 4;  // floats, of a head's scores where a thread reads four positions at a time

template <int kDim>
struct Shape {
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kStageBytes = kStageRows * kRowBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;  // of a ring
  static constexpr int kBlocks = kDim / (2 * kLanes);       // of a canonical sum
};

// ---- copies

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// 16 bytes; zeros without reading when not `there`.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_stages() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Chunk c of row r stands at c ^ 4 in odd rows, so that the two halves of a warp read different banks.
__device__ __forceinline__ int swizzled(int row, int byte) { return byte ^ (row & 1) << 6; }

// One warp's part of a split: its positions, and the stages of its ring: keys of these, then values. Stages are issued
// one after the other.
template <int kDim>
struct RowStream {
  using S = Shape<kDim>;
  static constexpr int kCopies = kStageRows * S::kChunks / kWarp;                 // of a thread, in a stage
  static constexpr int kRowCopies = S::kChunks > kWarp ? S::kChunks / kWarp : 1;  // of them, in a row
  static constexpr int kRowStep = S::kChunks > kWarp ? 1 : kWarp / S::kChunks;    // rows between those that follow
  static constexpr int kCopyStep = kWarp * 16;                                    // bytes between those of a row
  __device__ __forceinline__ static constexpr int row_of(int copy) { return copy / kRowCopies * kRowStep; }
  __device__ __forceinline__ static constexpr int byte_of(int copy) { return copy % kRowCopies * kCopyStep; }

  int64_t stride = 0, values = 0;  // bytes between positions, and from a position's key to its value
  int begin = 0, newest = 0;       // visible: [begin, newest]
  int first = 0;                   // this warp's first position
  int count = 0;                   // stages of keys, and of values
  std::byte* ring = nullptr;
  const std::byte* from = nullptr;  // this thread's first 16 bytes of the next stage
  uint32_t to = 0;                  // and where they go in a ring's first stage
  const bf16* inside = nullptr;     // an address of the cache, for what is not read
  bool whole = false;               // all of the warp's positions are visible and in the cache

  // `keys` is row 0 of this key/value head, first_row the row of `first`. Issues a ring full of stages. The newest
  // position's rows are not in the cache yet: patch() brings them.
  __device__ __forceinline__ void start(const bf16* keys, int first_row, int lane) {
    const int row = lane / S::kChunks, byte = lane % S::kChunks * 16;
    from = reinterpret_cast<const std::byte*>(keys) + (first_row + row) * stride + byte;
    to = shared_address(ring) + row * S::kRowBytes + swizzled(row, byte);
    whole = first >= begin && first + count * kStageRows <= newest;
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) issue(i, lane, true);
  }

  __device__ __forceinline__ std::byte* stage(int i) const { return ring + i % S::kStages * S::kStageBytes; }

  __device__ __forceinline__ void issue(int i, int lane, bool skip_newest) {
    if (i < 2 * count) {
      const uint32_t stage_to = to + i % S::kStages * S::kStageBytes;
      if (whole) {
#pragma unroll
        for (int j = 0; j < kCopies; ++j) copy_16(place_of(stage_to, j), from + row_of(j) * stride + byte_of(j), true);
      } else {
        issue_part(stage_to, first + (i < count ? i : i - count) * kStageRows + lane / S::kChunks, skip_newest);
      }
      from += kStageRows * stride;
      if (i == count - 1) from += values - count * kStageRows * stride;
    }
    end_stage();
  }

 private:
  __device__ __forceinline__ static uint32_t place_of(uint32_t stage_to, int j) {
    const uint32_t place = stage_to + row_of(j) * S::kRowBytes + byte_of(j);
    return place ^ (row_of(j) & 1) << 6;  // as swizzled()
  }
  // Zeros for positions that are not visible, which are not read.
  __device__ __forceinline__ void issue_part(uint32_t stage_to, int position, bool skip_newest) const {
#pragma unroll
    for (int j = 0; j < kCopies; ++j) {
      const int t = position + row_of(j);
      const bool there = t >= begin && t <= newest;
      if (skip_newest && t == newest) continue;
      const std::byte* source = from + row_of(j) * stride + byte_of(j);
      copy_16(place_of(stage_to, j), there ? source : reinterpret_cast<const std::byte*>(inside), there);
    }
  }

 public:
  __device__ __forceinline__ void patch(const uint16_t (&rows)[2][kDim], int lane) const {
    if (newest < first || newest >= first + count * kStageRows) return;
    const int row = (newest - first) % kStageRows;
#pragma unroll
    for (int value = 0; value < 2; ++value) {
      const int i = (newest - first) / kStageRows + value * count;
      if (i >= S::kStages) continue;  // issued after the row was stored
      for (int byte = lane * 4; byte < S::kRowBytes; byte += kWarp * 4) {
        *reinterpret_cast<uint32_t*>(stage(i) + row * S::kRowBytes + swizzled(row, byte)) =
            *reinterpret_cast<const uint32_t*>(reinterpret_cast<const std::byte*>(rows[value]) + byte);
      }
    }
    __syncwarp();
  }
};

// ---- scores

// Where e of a head and a position stand. kRows: a row a head, else a row a position.
template <int kHeads, bool kRows>
__device__ __forceinline__ int score_place(int head, int t) {
  return kRows ? head * kRowPitch + t : t * kHeads + head;
}

template <int kHeads, int kDim, bool kRows>
__device__ __forceinline__ void score_keys(RowStream<kDim>& stream, const float (&queries)[kHeads + 2][kDim],
                                           float scale, int lane_in_warp, float* scores) {
  using S = Shape<kDim>;
  constexpr int kSums = 2 * kHeads;  // of two positions
  constexpr int kSumBits = __builtin_ctz(kSums);
  const int half = lane_in_warp / kLanes, lane = lane_in_warp % kLanes;
  const int own = lane >> (4 - kSumBits);  // the sum that this thread ends with: position * kHeads + head
  float q[kHeads][S::kBlocks][2];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      const float2 pair =
          *reinterpret_cast<const float2*>(&queries[h ^ (own & (kHeads - 1))][b * 2 * kLanes + 2 * lane]);
      q[h][b][0] = pair.x, q[h][b][1] = pair.y;
    }
  }
  const int own_row = half + 2 * (lane >> 3);
#pragma unroll 1
  for (int i = 0; i < stream.count; ++i) {
    wait_stages<S::kStages - 1>();
    __syncwarp();
    const std::byte* stage = stream.stage(i) + 4 * lane;
    float sums[kSums] = {};
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int row = own_row ^ 2 * p;
        const uint32_t pair =
            *reinterpret_cast<const uint32_t*>(stage + row * S::kRowBytes + ((b ^ half) * 2 * kLanes * 2));
        const float odd = high_bf16(pair), even = low_bf16(pair);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          sums[p * kHeads + h] = f32::fma(q[h][b][1], odd, sums[p * kHeads + h]);
          sums[p * kHeads + h] = f32::fma(q[h][b][0], even, sums[p * kHeads + h]);
        }
      }
    }
    __syncwarp();
    stream.issue(i + S::kStages, lane_in_warp, false);
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // the tree's widths 8, 4, 2, 1
      const int count = kSums >> (step + 1);
      const int width = kLanes >> (step + 1);
      if (count == 0) {
        sums[0] = f32::add(sums[0], __shfl_xor_sync(kFullWarp, sums[0], width));
        continue;
      }
#pragma unroll
      for (int k = 0; k < kSums / 2; ++k) {
        if (k < count) sums[k] = f32::add(sums[k], __shfl_xor_sync(kFullWarp, sums[k + count], width));
      }
    }
    if ((lane & ((kLanes >> kSumBits) - 1)) == 0) {
      const int t = stream.first % kSplit + i * kStageRows + own_row;
      scores[score_place<kHeads, kRows>(own & (kHeads - 1), t)] = f32::mul(sums[0], scale);
    }
  }
}

// Scores of one head to e, its maximum and sum, by kThreadsOfHead threads; all of a warp come along. `first` and `last`
// are the visible positions of the split. e of the others is -0, which leaves sums and products with the zeros that
// stand for their values as they are, the sign of a zero included.
template <int kHeads, bool kRows, int kThreadsOfHead>
__device__ __forceinline__ void softmax_head(float* scores, int head, int j, int first, int last, float& m,
                                             float& sum) {
  constexpr int kEach = kSplit / kThreadsOfHead;
  constexpr int kClasses = kLanes / kThreadsOfHead;  // of t mod 16 in a thread
  float e[kEach];
  float larger = -std::numeric_limits<float>::infinity();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = j + i * kThreadsOfHead;
    e[i] = scores[score_place<kHeads, kRows>(head, t)];
    if (t >= first && t <= last) larger = f32::max(e[i], larger);
  }
#pragma unroll
  for (int width = kThreadsOfHead / 2; width >= 1; width /= 2) {
    larger = f32::max(__shfl_xor_sync(kFullWarp, larger, width), larger);
  }
  float sums[kClasses];
#pragma unroll
  for (int c = 0; c < kClasses; ++c) sums[c] = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = j + i * kThreadsOfHead;
    e[i] = t >= first && t <= last ? f32::exp(f32::sub(e[i], larger)) : -0.0f;
    scores[score_place<kHeads, kRows>(head, t)] = e[i];
    sums[i % kClasses] = f32::add(sums[i % kClasses], e[i]);
  }
#pragma unroll
  for (int count = kClasses / 2; count >= 1; count /= 2) {
#pragma unroll
    for (int c = 0; c < count; ++c) sums[c] = f32::add(sums[c], sums[c + count]);
  }
#pragma unroll
  for (int width = kThreadsOfHead / 2; width >= 1; width /= 2) {
    sums[0] = f32::add(sums[0], __shfl_xor_sync(kFullWarp, sums[0], width));
  }
  m = larger;
  sum = sums[0];
}

// ---- values

// What a thread of a team of W warps owns of a split's out: kOwn heads from `head` on, dimensions from `dim` on.
template <int kHeads, int kDim, int W>
struct ValueTile {
  static constexpr int kOwn = W < kHeads ? kHeads / W : 1;
  static constexpr int kParts = W <= kHeads || kDim < 128 ? 1 : kDim > 256 ? 4 : 2;  // warps that share a head
  static constexpr int kDims = kDim / kWarp / kParts;
  static constexpr bool kRows = kOwn == 1;  // how e stands

  int head, dim;
  bool active;
  float out[kOwn][kDims];

  __device__ __forceinline__ ValueTile(int warp_in_team, int lane) : out{} {
    head = warp_in_team / kParts * kOwn;
    dim = warp_in_team % kParts * (kDim / kParts) + lane * kDims;
    active = head < kHeads;
  }

  __device__ __forceinline__ static void load_words(const std::byte* from, uint32_t (&words)[kDims / 2]) {
    if constexpr (kDims == 16) {
      const uint4 x = *reinterpret_cast<const uint4*>(from), y = *reinterpret_cast<const uint4*>(from + 16);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
      words[4] = y.x, words[5] = y.y, words[6] = y.z, words[7] = y.w;
    } else if constexpr (kDims == 8) {
      const uint4 x = *reinterpret_cast<const uint4*>(from);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (kDims == 4) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      words[0] = x.x, words[1] = x.y;
    } else {
      static_assert(kDims == 2);
      words[0] = *reinterpret_cast<const uint32_t*>(from);
    }
  }

  // e of this thread's heads at positions t .. t + 3 of the split.
  __device__ __forceinline__ void load_e(const float* e, int t, float (&to)[kStageRows][kOwn]) const {
    if constexpr (kRows) {
      const float4 x = *reinterpret_cast<const float4*>(e + score_place<kHeads, true>(head, t));
      to[0][0] = x.x, to[1][0] = x.y, to[2][0] = x.z, to[3][0] = x.w;
    } else {
#pragma unroll
      for (int r = 0; r < kStageRows; ++r) {
        const float* from = e + score_place<kHeads, false>(head, t + r);
        if constexpr (kOwn % 4 == 0) {
#pragma unroll
          for (int h = 0; h < kOwn; h += 4) {
            const float4 x = *reinterpret_cast<const float4*>(from + h);
            to[r][h] = x.x, to[r][h + 1] = x.y, to[r][h + 2] = x.z, to[r][h + 3] = x.w;
          }
        } else {
          const float2 x = *reinterpret_cast<const float2*>(from);
          to[r][0] = x.x, to[r][1] = x.y;
        }
      }
    }
  }

  __device__ __forceinline__ void add_stage(const std::byte* stage, const float* scores, int t) {
    float e[kStageRows][kOwn];
    load_e(scores, t, e);
#pragma unroll
    for (int r = 0; r < kStageRows; ++r) {
      uint32_t words[kDims / 2];
      load_words(stage + r * kDim * 2 + swizzled(r, dim * 2), words);
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        const float v = d % 2 == 0 ? low_bf16(words[d / 2]) : high_bf16(words[d / 2]);
#pragma unroll
        for (int h = 0; h < kOwn; ++h) out[h][d] = f32::fma(e[r][h], v, out[h][d]);
      }
    }
  }

  __device__ __forceinline__ void store(float* outs) const {  // (kHeads, kDim)
#pragma unroll
    for (int h = 0; h < kOwn; ++h) {
#pragma unroll
      for (int d = 0; d < kDims; d += 2) {
        *reinterpret_cast<float2*>(outs + (head + h) * kDim + dim + d) = {out[h][d], out[h][d + 1]};
      }
    }
  }
};

}  // namespace ft::cuda
