// Weights of one block's tile, 128 rows x 64 k, from the packed layout to bf16 in shared memory.
//
// A k tile is what fills one 128-byte row of shared memory with whole 32-byte sectors of packed activations: of a block
// of 256 k, 8 neighbouring lanes (half s) and 4 of their 8 pairs (group g). Tile kt = (block * 2 + s) * 2 + g, so two
// tiles in a row are 128 consecutive k, which share a scale of fp8_block. In a row of shared memory, 16-byte chunk
// c = 2 * (pair - 4 g) + q has the pair's words of lanes 8 s + 4 q .. + 3, where it lies in packed activations; chunk c
// of row n is stored at c ^ (n % 8), which keeps ldmatrix and the stores free of bank conflicts.
//
// A bf16 k tile is another 64 of the same block (see its Loader). For one matrix shared row n is weight row n of the
// tile; for gate and up it is 16-row groups of 8 rows of gate, then the same 8 of up, so that a thread's neighbouring
// sums are one output's gate and up.
//
// Loader<format, matrices>: load(kt) brings this thread's words into registers (or, bf16, starts copies into shared
// memory), store(target) decodes them into a tile. kUnit: what the decoded weights have to be multiplied by. Scales
// that are not in them: kBlockScales, of 128 k, or kRowScales.
#pragma once

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packed_tile.cuh"

namespace ft::cuda {

inline constexpr int kTileRows = 128;  // weight rows, of all matrices together
inline constexpr int kTileK = 64;
inline constexpr int kTileRowBytes = kTileK * 2;
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;
inline constexpr int kRowTiles = kTileRows / kRowsPerTile;

// A tile of four rows in its matrix.
struct PackedTile {
  const uint32_t* codes = nullptr;
  const std::byte* scales = nullptr;
  __device__ __forceinline__ PackedTile(const TileShape& shape, const std::byte* matrix, int64_t tile)
      : codes(reinterpret_cast<const uint32_t*>(matrix + tile * shape.code_bytes_per_tile)),
        scales(matrix + shape.scales_offset + tile * shape.scale_bytes_per_tile) {}
};

struct WeightMatrices {
  const std::byte* matrix[2] = {};
  TileShape shape;
  int64_t first_tile = 0;  // row tile of each matrix that the block begins with
  bool aligned = false;    // last_lanes % 4 == 0: words of four lanes are on 16 bytes, and all or none are there
};

// k tiles of `cols`: lanes past the last are not computed.
constexpr int k_tiles(int64_t cols) {
  const int64_t lanes = (cols + 15) / 16;
  return static_cast<int>(lanes / 16 * 4 + (lanes % 16 == 0 ? 0 : lanes % 16 <= 8 ? 2 : 4));
}

struct KTile {
  int block, half, group;
  __device__ __forceinline__ explicit KTile(int kt) : block(kt / 4), half(kt / 2 % 2), group(kt % 2) {}
  // First word of chunk c in a packed activation row.
  __device__ __forceinline__ int activation_words(int c) const {
    return block * 128 + (group * 4 + c / 2) * kLanes + half * 8 + c % 2 * 4;
  }
};

__device__ __forceinline__ uint32_t chunk_address(uint32_t tile, int row, int chunk) {
  return tile + static_cast<uint32_t>(row * kTileRowBytes + ((chunk ^ (row & 7)) << 4));
}

template <int kMatrices>
__device__ __forceinline__ PackedTile packed_tile(const WeightMatrices& weights, int tile, bool& present) {
  const std::byte* matrix = kMatrices == 2 && tile >= kRowTiles / 2 ? weights.matrix[1] : weights.matrix[0];
  const int64_t index = weights.first_tile + (kMatrices == 2 ? tile % (kRowTiles / 2) : tile);
  present = index < weights.shape.row_tiles;
  return {weights.shape, matrix, present ? index : 0};
}
template <int kMatrices>
__device__ __forceinline__ int shared_row(int tile, int row_in_tile) {
  if constexpr (kMatrices == 1) return tile * kRowsPerTile + row_in_tile;
  const int own = tile % (kRowTiles / 2);
  return own / 2 * 16 + tile / (kRowTiles / 2) * 8 + own % 2 * kRowsPerTile + row_in_tile;
}

// Words of lanes lane .. lane + 3, zero where the block of `lanes` lanes has none. p points to the first one.
__device__ __forceinline__ uint4 load_four(const uint32_t* p, int lane, int lanes, bool aligned) {
  uint4 words = make_uint4(0, 0, 0, 0);
  if (aligned) {
    if (lane < lanes) {
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                   : "l"(p));
    }
    return words;
  }
  if (lane < lanes) words.x = load_weight_word(p);
  if (lane + 1 < lanes) words.y = load_weight_word(p + 1);
  if (lane + 2 < lanes) words.z = load_weight_word(p + 2);
  if (lane + 3 < lanes) words.w = load_weight_word(p + 3);
  return words;
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The pair in nibbles `pair` and `pair` + 4 of an E2M1 word, as bf16 of value * 2^-126: exponent and mantissa bits of
// the code become the lowest exponent and the highest mantissa bits.
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t word, int pair) {
  return (shift_left(word, 12 - 4 * pair) & 0x80008000u) | (shift_left(word, 6 - 4 * pair) & 0x01c001c0u);
}

constexpr uint32_t power_pair(int exponent) {
  return static_cast<uint32_t>(exponent + 127) << 7 | static_cast<uint32_t>(exponent + 127) << 23;
}

// Two E4M3 codes, in the low bytes of the halves, as bf16 of value * 2^-120, their NaN as NaN.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t codes) {
  const uint32_t magnitude = codes & 0x007f007fu;
  const uint32_t nan = ((magnitude + 0x00010001u) & 0x00800080u) >> 7;  // 1 in the halves that are NaN
  return (codes & 0x00800080u) << 8 | magnitude << 4 | nan * 0x7fffu;
}

template <FormatId kFormat, int kMatrices>
struct Loader;

// A copy of four words is a chunk as it is. Its k tiles are pairs 2 i and 2 i + 1 of all lanes of a block, 128 bytes of
// packed activations in a row: chunk c has pair c / 4 of them, lanes 4 (c % 4) .. + 3. Whole lines of both operands
// count: on an H200, 4096 x 2048 and 4096 tokens, 379 TFLOP/s (in a tile of 256 rows) against 239 in the order above,
// where nvfp4 in that wide tile, in the same order, gained 1.02. The wide tile takes 145 KB of shared memory, more than
// many devices have.
template <int kMatrices>
struct Loader<FormatId::kBf16, kMatrices> {
  static constexpr int kThreads = 128;
  static constexpr bool kCopies = true;
  static constexpr bool kWholeBlocks = true;
  static constexpr bool kBlockScales = false, kRowScales = false;
  static constexpr float kUnit = 1.0f;
  static constexpr int kTiles = 4;

  __device__ __forceinline__ Loader(const WeightMatrices& weights, int thread)
      : shape_(weights.shape), aligned_(weights.aligned), quad_(thread % 4), row_(thread / 4 % kRowsPerTile) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = thread / 16 + i * (kRowTiles / kTiles);
      codes_[i] = packed_tile<kMatrices>(weights, tile, present_[i]).codes;
      shared_row_[i] = shared_row<kMatrices>(tile, row_);
    }
  }

  __device__ __forceinline__ void copy(int kt, uint32_t target) const {
    const int block = kt / 4;
    const int lanes = block + 1 == shape_.blocks ? shape_.last_lanes : kLanes;
    const int lane = quad_ * 4;
    const int first = block * (8 * kRowsPerTile * kLanes) + lane;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const uint32_t* from = codes_[i] + first + ((kt % 4 * 2 + pair) * kRowsPerTile + row_) * lanes;
        const uint32_t to = chunk_address(target, shared_row_[i], pair * 4 + quad_);
        if (aligned_) {
          const bool there = present_[i] && lane < lanes;
          copy_async_16(to, there ? from : codes_[i], there);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const bool there = present_[i] && lane + j < lanes;
            copy_async_4(to + static_cast<uint32_t>(j) * 4, there ? from + j : codes_[i], there);
          }
        }
      }
    }
  }

 private:
  TileShape shape_;
  bool aligned_;
  int quad_, row_;
  bool present_[kTiles];
  const uint32_t* codes_[kTiles];
  int shared_row_[kTiles];
};

// A code has 2 significant bits, a scale 4: their product is a bf16 exactly. A thread has two rows of a tile, whose
// scales are two bytes of one word, and four lanes. Scales times 2^119 (448 becomes 1.75 * 2^127) meet codes times
// 2^-126; the 2^-7 that is left is kUnit's.
template <int kMatrices>
struct Loader<FormatId::kNvfp4, kMatrices> {
  static constexpr int kThreads = 128;
  static constexpr bool kCopies = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kBlockScales = false, kRowScales = false;
  static constexpr float kUnit = 128.0f;

  __device__ __forceinline__ Loader(const WeightMatrices& weights, int thread)
      : shape_(weights.shape), aligned_(weights.aligned), quad_(thread % 2), rows_(thread / 2 % 2) {
    const int tile = thread / 4;
    const PackedTile packed = packed_tile<kMatrices>(weights, tile, present_);
    codes_ = packed.codes;
    scales_ = reinterpret_cast<const uint32_t*>(packed.scales);
    shared_row_ = shared_row<kMatrices>(tile, 2 * rows_);
  }

  __device__ __forceinline__ void load(int kt) {
    const KTile k(kt);
    const int lanes = k.block + 1 == shape_.blocks ? shape_.last_lanes : kLanes;
    const int lane = k.half * 8 + quad_ * 4;
    const int there = present_ ? lanes : 0;
    const uint32_t* from =
        codes_ + k.block * (2 * kRowsPerTile * kLanes) + (k.group * kRowsPerTile + 2 * rows_) * lanes + lane;
    code_[0] = load_four(from, lane, there, aligned_);
    code_[1] = load_four(from + lanes, lane, there, aligned_);
    scale_ = load_four(scales_ + k.block * kLanes + lane, lane, there, aligned_);
  }

  __device__ __forceinline__ void store(uint32_t target) const {
    uint32_t scales[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = e4m3_pair(word_of(scale_, j) >> (8 * rows_));
      scales[j] = multiply_bf16_pair(multiply_bf16_pair(pair, power_pair(120)), power_pair(119));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t scale = __byte_perm(scales[j], 0, i == 0 ? 0x1010 : 0x3232);
          words[j] = multiply_bf16_pair(e2m1_pair(word_of(code_[i], j), pair), scale);
        }
        store_shared(chunk_address(target, shared_row_ + i, pair * 2 + quad_),
                     make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }

 private:
  TileShape shape_;
  bool aligned_, present_;
  int quad_, rows_, shared_row_;
  const uint32_t* codes_;
  const uint32_t* scales_;
  uint4 code_[2], scale_;
};

// A lane of 32 k is two lanes of activations: words g and g + 2 are the group's pairs of the even and the odd one. A
// thread has one row and four lanes, a whole row of shared memory. Two products, so that no scale is out of range: the
// second is the first rounding, and only of denormals.
template <int kMatrices>
struct Loader<FormatId::kMxfp4, kMatrices> {
  static constexpr int kThreads = 128;
  static constexpr bool kCopies = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kBlockScales = false, kRowScales = false;
  static constexpr float kUnit = 1.0f;

  __device__ __forceinline__ Loader(const WeightMatrices& weights, int thread)
      : shape_(weights.shape), aligned_(weights.aligned), row_(thread % kRowsPerTile) {
    const int tile = thread / kRowsPerTile;
    const PackedTile packed = packed_tile<kMatrices>(weights, tile, present_);
    codes_ = packed.codes;
    scales_ = reinterpret_cast<const uint32_t*>(packed.scales);
    shared_row_ = shared_row<kMatrices>(tile, row_);
  }

  __device__ __forceinline__ void load(int kt) {
    const KTile k(kt);
    const int block = k.block / 2;
    const int lanes = block + 1 == shape_.blocks ? shape_.last_lanes : kLanes;
    const int lane = k.block % 2 * 8 + k.half * 4;
    const int there = present_ ? lanes : 0;
    const uint32_t* from =
        codes_ + block * (4 * kRowsPerTile * kLanes) + (k.group * kRowsPerTile + row_) * lanes + lane;
    code_[0] = load_four(from, lane, there, aligned_);
    code_[1] = load_four(from + 2 * kRowsPerTile * lanes, lane, there, aligned_);
    scale_ = load_four(scales_ + block * kLanes + lane, lane, there, aligned_);
  }

  __device__ __forceinline__ void store(uint32_t target) const {
    uint32_t scales[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t code = word_of(scale_, j) >> (8 * (row_ / 2 + row_ % 2 * 2)) & 0xffu;
      scales[j] = (code == 0xffu ? 0x7fffu : code << 7) * 0x10001u;
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t words[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t code = multiply_bf16_pair(e2m1_pair(word_of(code_[i], j), pair), power_pair(126));
          words[2 * j + i] = multiply_bf16_pair(code, scales[j]);
        }
      }
      store_shared(chunk_address(target, shared_row_, pair * 2), make_uint4(words[0], words[1], words[2], words[3]));
      store_shared(chunk_address(target, shared_row_, pair * 2 + 1),
                   make_uint4(words[4], words[5], words[6], words[7]));
    }
  }

 private:
  TileShape shape_;
  bool aligned_, present_;
  int row_, shared_row_;
  const uint32_t* codes_;
  const uint32_t* scales_;
  uint4 code_[2], scale_;
};

// Codes only: the scale is a fp32 number, for the sums of 128 k or of the row. A thread has one row and four lanes; 256
// threads, because with sums of 128 k a warp keeps two sets.
template <int kMatrices>
struct Fp8Loader {
  static constexpr int kThreads = 256;
  static constexpr bool kCopies = false;
  static constexpr bool kWholeBlocks = false;
  static constexpr float kUnit = 1.0f;

  __device__ __forceinline__ Fp8Loader(const WeightMatrices& weights, int thread)
      : shape_(weights.shape), aligned_(weights.aligned), quad_(thread / 8 % 2), row_(thread % kRowsPerTile) {
    const int tile = thread / 16 * 2 + thread / kRowsPerTile % 2;
    codes_ = packed_tile<kMatrices>(weights, tile, present_).codes;
    shared_row_ = shared_row<kMatrices>(tile, row_);
  }

  __device__ __forceinline__ void load(int kt) {
    const KTile k(kt);
    const int lanes = k.block + 1 == shape_.blocks ? shape_.last_lanes : kLanes;
    const int lane = k.half * 8 + quad_ * 4;
    const int there = present_ ? lanes : 0;
    const uint32_t* from =
        codes_ + k.block * (4 * kRowsPerTile * kLanes) + (k.group * 2 * kRowsPerTile + row_) * lanes + lane;
    code_[0] = load_four(from, lane, there, aligned_);
    code_[1] = load_four(from + kRowsPerTile * lanes, lane, there, aligned_);
  }

  __device__ __forceinline__ void store(uint32_t target) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          words[j] = multiply_bf16_pair(e4m3_pair(word_of(code_[i], j) >> (8 * pair)), power_pair(120));
        }
        store_shared(chunk_address(target, shared_row_, (i * 2 + pair) * 2 + quad_),
                     make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }

 private:
  TileShape shape_;
  bool aligned_, present_;
  int quad_, row_, shared_row_;
  const uint32_t* codes_;
  uint4 code_[2];
};
template <int kMatrices>
struct Loader<FormatId::kFp8Block, kMatrices> : Fp8Loader<kMatrices> {
  static constexpr bool kBlockScales = true, kRowScales = false;
  using Fp8Loader<kMatrices>::Fp8Loader;
};
template <int kMatrices>
struct Loader<FormatId::kFp8Channel, kMatrices> : Fp8Loader<kMatrices> {
  static constexpr bool kBlockScales = false, kRowScales = true;
  using Fp8Loader<kMatrices>::Fp8Loader;
};

}  // namespace ft::cuda
