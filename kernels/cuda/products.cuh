// The canonical dot product (kernels/ops/matvec.h) spread over a block: what dense and expert products share.
//
// A unit is one block of k of one row tile. Half a warp, 16 threads, owns a unit: thread = lane of the block, all four
// rows of the tile, so that an activation serves four weights. Units are independent of each other, whatever their tile
// or expert: each puts its block sums P and its scales into cells of shared memory, and after a barrier the cells of a
// row are folded in order of blocks, so the bits are those of one warp that walks the row. Thus even 128 rows of 2048
// are 256 units at once, and every weight of a pass is asked for before any of them is used.
//
// Activations lie in shared memory as bf16 pairs, [block][octet of the lane's k][lane] 16 bytes: one conflict-free load
// brings eight of them for 32 weights.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

inline constexpr int kMaxTokensPerPass = 8;

// This thread in its block, whose threads are in one dimension.
struct BlockThread {
  int thread, threads, warp, warps, half, lane;
  __device__ BlockThread()
      : thread(static_cast<int>(threadIdx.x)),
        threads(static_cast<int>(blockDim.x)),
        warp(thread / kWarp),
        warps(threads / kWarp),
        half(thread / kLanes % 2),
        lane(thread % kLanes) {}
};

// Quotients by a number that is known at the launch: exact for u * divisor < 2^32.
struct Divider {
  uint32_t divisor = 1, magic = 0;  // ceil(2^32 / divisor); 0: by 1
  Divider() = default;
  explicit Divider(int64_t d)
      : divisor(static_cast<uint32_t>(d)),
        magic(d == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + static_cast<uint64_t>(d) - 1) / d)) {}
  __device__ __forceinline__ int quotient(int u) const {
    return magic == 0 ? u : static_cast<int>(__umulhi(static_cast<uint32_t>(u), magic));
  }
  __device__ __forceinline__ int rest(int u, int quotient) const { return u - quotient * static_cast<int>(divisor); }
};

// Shape of a packed matrix, and where a tile of it is.
struct TileShape {
  int blocks = 0;
  int last_lanes = 0;
  int64_t rows = 0;
  int64_t row_tiles = 0;
  int64_t code_bytes_per_tile = 0;
  int64_t scale_bytes_per_tile = 0;
  int64_t scales_offset = 0;
};
inline TileShape tile_shape(const PackedLayout& layout) {
  return {static_cast<int>(layout.blocks), static_cast<int>(layout.last_lanes), layout.rows,         layout.row_tiles,
          layout.code_bytes_per_tile,      layout.scale_bytes_per_tile,         layout.scales_offset};
}

// One block of k of one tile; its words start at codes, the scales of its tile at scales.
template <FormatId kFormat>
struct Unit {
  const uint32_t* codes;
  const std::byte* scales;
  int block;
  __device__ __forceinline__ Unit(const TileShape& shape, const std::byte* matrix, int tile, int block_of_row)
      : codes(reinterpret_cast<const uint32_t*>(matrix + tile * shape.code_bytes_per_tile) +
              block_of_row * (Decode<kFormat>::kWords * kRowsPerTile * kLanes)),
        scales(matrix + shape.scales_offset + tile * shape.scale_bytes_per_tile),
        block(block_of_row) {}
};

// What a thread reads of a unit.
template <FormatId kFormat>
struct UnitWords {
  static constexpr int kWords = Decode<kFormat>::kWords;
  uint32_t code[kRowsPerTile][kWords];
  uint32_t scale;

  __device__ __forceinline__ void load_full(const Unit<kFormat>& unit, int lane) {
    const uint32_t* words = unit.codes + lane;
#pragma unroll
    for (int h = 0; h < kWords; ++h) {
#pragma unroll
      for (int row = 0; row < kRowsPerTile; ++row) {
        code[row][h] = load_weight_word(words + (h * kRowsPerTile + row) * kLanes);
      }
    }
    scale = Decode<kFormat>::load_scale(unit.scales, unit.block, lane);
  }

  // A block of `lanes` lanes: the others' codes and scales are zero.
  __device__ __forceinline__ void load_short(const Unit<kFormat>& unit, int lanes, int lane) {
    const bool present = lane < lanes;
    const uint32_t* words = unit.codes + lane;
#pragma unroll
    for (int h = 0; h < kWords; ++h) {
#pragma unroll
      for (int row = 0; row < kRowsPerTile; ++row) {
        code[row][h] = present ? load_weight_word(words) : 0u;
        words += lanes;
      }
    }
    scale = present ? Decode<kFormat>::load_scale(unit.scales, unit.block, lane) : 0u;
  }
};

// Units a thread has under way: 16 or 32 words, 2 or 4 KiB a warp.
template <FormatId kFormat, int kMost>
inline constexpr int kUnitsAhead = kMost > 1 || Decode<kFormat>::kWords > 4 ? 1 : 2;

// Number of the i-th unit of this half warp in the pass that starts at `base`, and units of a pass.
__device__ __forceinline__ int unit_number(const BlockThread& at, int base, int i) {
  return base + (i * at.warps + at.warp) * 2 + at.half;
}
template <int kUnits>
__device__ __forceinline__ int units_per_pass(const BlockThread& at) {
  return at.warps * 2 * kUnits;
}

// Reads units base + ... of `units` ones; unit_of(u) is the u-th. Where only one half of a warp has a unit the other
// reads the same one (no more bytes), and drops it later.
template <FormatId kFormat, int kUnits, class UnitOf>
__device__ __forceinline__ void load_units(UnitWords<kFormat> (&words)[kUnits], int base, int units,
                                           const TileShape& shape, const BlockThread& at, UnitOf&& unit_of) {
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int own = unit_number(at, base, i);
    if (own - at.half >= units) continue;
    const Unit<kFormat> unit = unit_of(own < units ? own : own - 1);
    const int lanes = unit.block + 1 == shape.blocks ? shape.last_lanes : kLanes;
    if (__all_sync(kFullWarp, lanes == kLanes)) {
      words[i].load_full(unit, at.lane);
    } else {
      words[i].load_short(unit, lanes, at.lane);
    }
  }
}

// Packed activation rows in shared memory, `stride` vectors apart.
template <FormatId kFormat>
struct StagedRows {
  static constexpr int kOctets = Decode<kFormat>::kGroup / 8;
  static constexpr int kBlockVectors = kOctets * kLanes;
  static constexpr int kPackedBlocks = Decode<kFormat>::kGroup / 16;  // blocks of a packed row in one of ours
  uint4* data;
  int stride;
  // Vectors of lane `lane` in block `block`; the next octet is kLanes vectors on.
  __device__ __forceinline__ const uint4* at(int block, int lane) const { return data + block * kBlockVectors + lane; }
  // Where pair i of a row (elements 2i and 2i + 1) is, in words from the row's start.
  static __device__ __forceinline__ int word_of_pair(int i) {
    const int packed_block = i / 128, packed_lane = i % 128 / 8, pair = i % 8;
    if constexpr (kPackedBlocks == 1) {
      return ((packed_block * kOctets + pair / 4) * kLanes + packed_lane) * 4 + pair % 4;
    } else {
      const int lane = packed_block % 2 * 8 + packed_lane / 2;
      return ((packed_block / 2 * kOctets + packed_lane % 2 * 2 + pair / 4) * kLanes + lane) * 4 + pair % 4;
    }
  }
};

// A pair times 2^kShift. `huge` becomes true when a finite element would overflow.
template <int kShift>
__device__ __forceinline__ uint32_t scale_pair(uint32_t pair, bool& huge) {
  if constexpr (kShift == 0) return pair;
  constexpr uint32_t kInfinity = 0x7f80u, kFirstHuge = (255u - kShift) << 7;
  const uint32_t low = pair & 0x7fffu, high = pair >> 16 & 0x7fffu;
  huge = huge || (low >= kFirstHuge && low < kInfinity) || (high >= kFirstHuge && high < kInfinity);
  constexpr float kPower = 1 << kShift;
  const float even = f32::mul(low_bf16(pair), kPower), odd = f32::mul(high_bf16(pair), kPower);
  return __byte_perm(__float_as_uint(even), __float_as_uint(odd), 0x7632);  // exact: the low halves are zero
}

// Blocks [first, first + blocks) of `count` packed rows (of packed_blocks * 256 k; row r starts at words_of(r)) into
// rows 0 .. count - 1 of `rows`. row_of(u) is u / blocks. Returns whether an activation is too huge for the scale. All
// rows are one line of vectors, so that a thread's loads do not wait for each other.
template <FormatId kFormat, bool kScaled, class RowOf, class WordsOf>
__device__ __forceinline__ bool stage_rows_as(int count, int packed_blocks, int first, int blocks,
                                              const StagedRows<kFormat>& rows, const BlockThread& at, RowOf&& row_of,
                                              WordsOf&& words_of) {
  using Rows = StagedRows<kFormat>;
  constexpr int kShift = kScaled ? Decode<kFormat>::kShift : 0;
  bool huge = false;
#pragma unroll 2
  for (int i = at.thread; i < count * blocks * Rows::kBlockVectors; i += at.threads) {
    const int row = row_of(i / Rows::kBlockVectors);
    const int block_of_row = i / Rows::kBlockVectors - row * blocks;
    const int block = first + block_of_row, octet = i / kLanes % Rows::kOctets, lane = i % kLanes;
    const int packed_block = Rows::kPackedBlocks == 1 ? block : 2 * block + lane / 8;
    const int packed_lane = Rows::kPackedBlocks == 1 ? lane : lane % 8 * 2 + octet / 2;
    uint4 v = {0, 0, 0, 0};
    if (packed_block < packed_blocks) {
      const uint32_t* from = words_of(row) + packed_block * 128 + octet % 2 * 64 + packed_lane;
      v = {from[0], from[kLanes], from[2 * kLanes], from[3 * kLanes]};
    }
    uint4* to = rows.data + row * rows.stride + block_of_row * Rows::kBlockVectors + octet * kLanes + lane;
    *to = {scale_pair<kShift>(v.x, huge), scale_pair<kShift>(v.y, huge), scale_pair<kShift>(v.z, huge),
           scale_pair<kShift>(v.w, huge)};
  }
  return huge;
}

// stage(std::bool_constant: scaled) stages all rows and says whether an activation is too huge for the scale; then they
// are staged again without it. Returns whether they are scaled. Ends with a barrier.
template <FormatId kFormat, class Stage>
__device__ __forceinline__ bool stage_scaled_if_possible(Stage&& stage) {
  const bool huge = stage(std::true_type());
  if constexpr (Decode<kFormat>::kShift == 0) {
    __syncthreads();
    return true;
  } else {
    if (__syncthreads_or(huge) == 0) return true;
    stage(std::false_type());
    __syncthreads();
    return false;
  }
}

// p[row][t]: sums of the unit's products with kTokens rows, x those of token t `stride` vectors on.
template <FormatId kFormat, int kTokens, bool kScaled>
__device__ __forceinline__ void unit_products(const UnitWords<kFormat>& words, const uint4* x,
                                              const int (&offset)[kTokens], float (&p)[kRowsPerTile][kTokens]) {
  using Format = Decode<kFormat>;
  constexpr int kWordsPerOctet = 4 / Format::kPairs;
#pragma unroll
  for (int row = 0; row < kRowsPerTile; ++row) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) p[row][t] = 0.0f;
  }
#pragma unroll
  for (int octet = 0; octet < Format::kGroup / 8; ++octet) {
    uint4 vectors[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) vectors[t] = x[octet * kLanes + offset[t]];
#pragma unroll
    for (int word = 0; word < kWordsPerOctet; ++word) {
      float w[kRowsPerTile][2 * Format::kPairs];
#pragma unroll
      for (int row = 0; row < kRowsPerTile; ++row) {
        Format::template word<kScaled>(words.code[row][octet * kWordsPerOctet + word], w[row]);
      }
#pragma unroll
      for (int i = 0; i < Format::kPairs; ++i) {
        const int pair = word * Format::kPairs + i;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const uint4& v = vectors[t];
          const uint32_t two = pair == 0 ? v.x : pair == 1 ? v.y : pair == 2 ? v.z : v.w;
          const float even = low_bf16(two);
          const float odd = high_bf16(two);
#pragma unroll
          for (int row = 0; row < kRowsPerTile; ++row) {
            p[row][t] = f32::fma(w[row][2 * i + 1], odd, p[row][t]);
            p[row][t] = f32::fma(w[row][2 * i], even, p[row][t]);
          }
        }
      }
    }
  }
}

// Cells of the units of a round: [unit][token, then scale][row][lane]. The padding puts the two halves of a warp on
// different banks.
template <FormatId kFormat, int kMost>
struct Cells {
  static constexpr bool kHasScales = Decode<kFormat>::kHasScales;
  static constexpr int kPlane = kRowsPerTile * kLanes;
  static constexpr int kStride = (kMost + (kHasScales ? 1 : 0)) * kPlane + kLanes;
  float* data;

  template <int kTokens>
  __device__ __forceinline__ void put(int unit, int lane, uint32_t scale_word,
                                      const float (&p)[kRowsPerTile][kTokens]) {
    float* cell = data + unit * kStride + lane;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int row = 0; row < kRowsPerTile; ++row) cell[t * kPlane + row * kLanes] = p[row][t];
    }
    if constexpr (kHasScales) {
      float scales[kRowsPerTile];
      Decode<kFormat>::scales(scale_word, scales);
#pragma unroll
      for (int row = 0; row < kRowsPerTile; ++row) cell[kMost * kPlane + row * kLanes] = scales[row];
    }
  }

  // acc after `count` units from `unit` on, in this order.
  __device__ __forceinline__ float fold(int unit, int count, int t, int row, int lane, float acc) const {
    const float* cell = data + unit * kStride + row * kLanes + lane;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float scale = kHasScales ? cell[i * kStride + kMost * kPlane] : 1.0f;
      acc = f32::fma(cell[i * kStride + t * kPlane], scale, acc);
    }
    return acc;
  }
};

// Products of the units that load_units read. place(u, offset) gives the first vectors of unit u (its block and this
// lane) and the offsets of its tokens' rows.
template <FormatId kFormat, int kMost, int kTokens, int kUnits, class Place>
__device__ __forceinline__ void put_products(const UnitWords<kFormat>& words, int own, int units, bool scaled,
                                             const BlockThread& at, Cells<kFormat, kMost> cells, Place&& place) {
  int offset[kTokens];
  const uint4* x = place(own < units ? own : own - 1, offset);
  float p[kRowsPerTile][kTokens];
  if (Decode<kFormat>::kShift == 0 || scaled) {
    unit_products<kFormat, kTokens, true>(words, x, offset, p);
  } else {
    unit_products<kFormat, kTokens, false>(words, x, offset, p);
  }
  if (own < units) cells.put(own, at.lane, words.scale, p);
}

// Smallest of 1, 2, 4, 8 that is at least `tokens`: a token more costs products, another pass would cost the decoding.
template <int kMost, class F>
__device__ __forceinline__ void with_tokens(int tokens, F&& f) {
  if constexpr (kMost == 1) {
    f(std::integral_constant<int, 1>());
  } else if (tokens > 4) {
    f(std::integral_constant<int, 8>());
  } else if (tokens > 2) {
    f(std::integral_constant<int, 4>());
  } else if (tokens > 1) {
    f(std::integral_constant<int, 2>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// What a launcher may ask for: the smallest limit of sm_80 and later (sm_86 and sm_89).
inline constexpr int64_t kMaxSharedBytes = int64_t{96} << 10;

template <FormatId kFormat>
constexpr int64_t staged_row_bytes(int64_t blocks) {
  return blocks * StagedRows<kFormat>::kBlockVectors * static_cast<int64_t>(sizeof(uint4));
}
template <FormatId kFormat, int kMost>
constexpr int64_t cell_bytes(int64_t units) {
  return units * Cells<kFormat, kMost>::kStride * static_cast<int64_t>(sizeof(float));
}

// 48 KiB need no asking, a kernel's static shared memory included, which is at most half of them here.
template <class Kernel>
void allow_shared(Kernel kernel, int64_t bytes) {
  if (bytes <= 24 << 10) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMaxSharedBytes)),
        "cannot give a product kernel its shared memory");
}

}  // namespace ft::cuda
