// Experts of one layer: gate and up with the activation between, then down, over a list of items that is in device
// memory. A warp owns one row tile of one item (dot.cuh); blocks past the item count leave.
//
// Items come hits first, then fetches, and blocks take them from the end, so that the link starts at once and the hits
// are computed while blocks of fetched items wait for it. A block of a fetched item copies its tiles to the slot, once
// over the link in pieces of 16 bytes, and computes from there.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

// Two warps: small blocks even out the last wave (1536 warps of eight experts of 768 rows over 132 multiprocessors).
constexpr int kTilesPerBlock = 2;
constexpr int kThreads = kTilesPerBlock * kWarp;
constexpr int kMergeThreads = 256;

enum class Part { kGateUp, kDown };
template <Part kPart>
inline constexpr int kMatrices = kPart == Part::kGateUp ? 2 : 1;

struct ExpertWork {
  TileShape shape;  // of gate and up, or of down
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  int64_t bytes = 0;
  const ExpertItem* items = nullptr;
  const int32_t* item_begin = nullptr;
  const int32_t* item_end = nullptr;
  const int32_t* pairs = nullptr;
  int top_k = 0;
  const uint32_t* x = nullptr;  // rows that are multiplied: of tokens (gate and up) or of pairs (down)
  int64_t x_words = 0;
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Items are read past L1, which could hold what was there before: the kernel that wrote them has ended, but down reads
// them before its wait.
__device__ __forceinline__ ExpertItem load_item(const ExpertItem* item) {
  static_assert(sizeof(ExpertItem) == 24);
  const auto* parts = reinterpret_cast<const unsigned long long*>(item);
  const unsigned long long blob = __ldcg(parts), copy_to = __ldcg(parts + 1), pairs = __ldcg(parts + 2);
  return {.blob = reinterpret_cast<const std::byte*>(blob),
          .copy_to = reinterpret_cast<std::byte*>(copy_to),
          .pair_begin = static_cast<int32_t>(pairs),
          .pair_count = static_cast<int32_t>(pairs >> 32)};
}

__device__ __forceinline__ ExpertTrailer trailer_of(const ExpertWork& work, const std::byte* blob) {
  const float4 trailer = __ldcg(reinterpret_cast<const float4*>(blob + work.trailer_offset));
  return {.gate_global = trailer.x, .up_global = trailer.y, .down_global = trailer.z};
}

// The tiles of a part's matrices in a blob.
template <Part kPart>
__device__ __forceinline__ void tiles_of(const ExpertWork& work, const std::byte* blob, int tile,
                                         Tile (&tiles)[kMatrices<kPart>]) {
  if constexpr (kPart == Part::kGateUp) {
    tiles[0] = tile_of(work.shape, blob, tile);
    tiles[1] = tile_of(work.shape, blob + work.up_offset, tile);
  } else {
    tiles[0] = tile_of(work.shape, blob + work.down_offset, tile);
  }
}

// Of a fetched blob, in mapped host memory. The bank does not change during a step, so the read-only path is allowed;
// nothing is read twice, so L1 keeps none of it.
__device__ __forceinline__ uint4 load_fetched(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_fetched(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

// What a block copies: at most four ranges of the blob, as one line of pieces, so that sixteen of a thread are under
// way at once, 16 KiB of a block: the link needs some 500 KB in flight, and the first blocks of one expert are a
// hundred.
template <class Piece>
struct Ranges {
  static constexpr int kMost = 4, kAhead = 16;
  int64_t begin[kMost];
  int pieces[kMost];
  __device__ __forceinline__ int64_t offset_of(int piece) const {
    int64_t offset = begin[0];
#pragma unroll
    for (int r = 0; r + 1 < kMost; ++r) {
      if (piece < pieces[r]) break;
      piece -= pieces[r];
      offset = begin[r + 1];
    }
    return offset + int64_t{piece} * static_cast<int64_t>(sizeof(Piece));
  }
  __device__ __forceinline__ void copy(const ExpertItem& item, int thread) const {
    int total = 0;
#pragma unroll
    for (int r = 0; r < kMost; ++r) total += pieces[r];
    for (int first = thread; first < total; first += kAhead * kThreads) {
      Piece piece[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = first + i * kThreads;
        if (at < total) piece[i] = load_fetched(reinterpret_cast<const Piece*>(item.blob + offset_of(at)));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = first + i * kThreads;
        if (at < total) *reinterpret_cast<Piece*>(item.copy_to + offset_of(at)) = piece[i];
      }
    }
  }
};

// Bounds of the two ranges of a matrix at `offset` that tiles [tile, tile + tiles) are: codes and scales; with its last
// tile also what lies between codes and scales, and between them and `end`.
__device__ __forceinline__ void bounds_of(const TileShape& shape, int64_t offset, int64_t end, int tile, int tiles,
                                          int64_t (&bounds)[4]) {
  const bool last = tile + tiles == shape.row_tiles;
  const int64_t scales = offset + shape.scales_offset;
  bounds[0] = offset + tile * shape.code_bytes_per_tile;
  bounds[1] = last ? scales : bounds[0] + tiles * shape.code_bytes_per_tile;
  bounds[2] = scales + tile * shape.scale_bytes_per_tile;
  bounds[3] = last ? end : bounds[2] + tiles * shape.scale_bytes_per_tile;
}

template <class Piece, Part kPart>
__device__ __forceinline__ void copy_bounds(const ExpertItem& item, const int64_t (&bounds)[kMatrices<kPart>][4],
                                            int thread) {
  Ranges<Piece> ranges{};
#pragma unroll
  for (int m = 0; m < kMatrices<kPart>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ranges.begin[2 * m + r] = bounds[m][2 * r];
      ranges.pieces[2 * m + r] =
          static_cast<int>((bounds[m][2 * r + 1] - bounds[m][2 * r]) / static_cast<int64_t>(sizeof(Piece)));
    }
  }
  ranges.copy(item, thread);
}

template <Part kPart>
__device__ __forceinline__ void copy_part(const ExpertWork& work, const ExpertItem& item, int tile, int thread) {
  const int tiles = min(static_cast<int>(work.shape.row_tiles) - tile, kTilesPerBlock);
  int64_t bounds[kMatrices<kPart>][4];
  if constexpr (kPart == Part::kGateUp) {
    bounds_of(work.shape, 0, work.up_offset, tile, tiles, bounds[0]);
    bounds_of(work.shape, work.up_offset, work.down_offset, tile, tiles, bounds[1]);
  } else {
    bounds_of(work.shape, work.down_offset, work.bytes, tile, tiles, bounds[0]);
  }
  int64_t all = 0;
#pragma unroll
  for (const auto& of_matrix : bounds) {
#pragma unroll
    for (const int64_t bound : of_matrix) all |= bound;
  }
  if (all % 16 == 0) {
    copy_bounds<uint4, kPart>(item, bounds, thread);
  } else {
    copy_bounds<uint32_t, kPart>(item, bounds, thread);
  }
}

// Groups of 8, 4, 2 and 1 tokens, at most kMost: pass(first token, integral constant: tokens).
template <int kMost, class Pass>
__device__ __forceinline__ void for_token_groups(int tokens, Pass&& pass) {
  int token = 0;
  if constexpr (kMost >= 8) {
    for (; tokens - token >= 8; token += 8) pass(token, std::integral_constant<int, 8>());
    if (tokens - token >= 4) pass(token, std::integral_constant<int, 4>()), token += 4;
    if (tokens - token >= 2) pass(token, std::integral_constant<int, 2>()), token += 2;
  }
  for (; token < tokens; ++token) pass(token, std::integral_constant<int, 1>());
}

// Two rows of the tile of gate and up: one word of the activated row.
__device__ __forceinline__ void write_gate_up(const ExpertWork& work, const ExpertTrailer& trailer, int tile, int j,
                                              int32_t pair, float gate, float up, const Place& place) {
  const float g = f32::mul(f32::tree_sum(gate), trailer.gate_global);
  const float u = f32::mul(f32::tree_sum(up), trailer.up_global);
  const uint32_t own = activation_bits(f32::mul(f32::silu(g), u));
  const uint32_t other = __shfl_down_sync(kFullWarp, own, kLanes);
  const int64_t row = int64_t{tile} * kRowsPerTile + 2 * j;  // and the odd one, in the other half of the warp
  if (place.thread == 0 && row < work.shape.rows) {
    const uint32_t odd = row + 1 < work.shape.rows ? other : 0u;
    work.activated[pair * work.activated_words + activation_word(row)] = own | odd << 16;
  }
}

__device__ __forceinline__ void write_down(const ExpertWork& work, const ExpertTrailer& trailer, int tile, int j,
                                           int32_t pair, float lane_sum, const Place& place) {
  const float sum = f32::tree_sum(lane_sum);
  const int64_t row = int64_t{tile} * kRowsPerTile + place.row(j);
  if (place.lane == 0 && row < work.shape.rows) {
    work.out[pair * work.out_stride + row] = f32::mul(sum, trailer.down_global);
  }
}

// Gate and up let the kernel after them start once they have waited: then the one before has ended, and what that one
// wrote (the items) may be read by the one after without a wait of its own. Down does so: it copies its part of fetched
// items while the last blocks of gate and up still run.
template <FormatId kFormat, Part kPart, int kMost>
__global__ __launch_bounds__(kThreads) void item_kernel(const __grid_constant__ ExpertWork work) {
  constexpr bool kGateUp = kPart == Part::kGateUp;
  constexpr int kCount = kMatrices<kPart>;
  if (kGateUp) wait_for_previous();
  let_next_start();
  const int index = __ldcg(work.item_end) - 1 - static_cast<int>(blockIdx.y);
  if (index < __ldcg(work.item_begin)) {
    if (!kGateUp) wait_for_previous();
    return;
  }
  const ExpertItem item = load_item(work.items + index);
  const ExpertTrailer trailer = trailer_of(work, item.blob);
  const std::byte* blob = item.blob;
  const int first_tile = static_cast<int>(blockIdx.x) * kTilesPerBlock;
  const int tile = first_tile + static_cast<int>(threadIdx.y);
  if (item.copy_to != nullptr) {
    copy_part<kPart>(work, item, first_tile, static_cast<int>(threadIdx.y * kWarp + threadIdx.x));
    __syncthreads();  // makes the block's stores visible to its threads
    blob = item.copy_to;
  }
  if (!kGateUp) wait_for_previous();
  asm volatile("" : "+l"(blob)::"memory");  // no load of weights is moved before this
  if (tile >= work.shape.row_tiles) return;
  const Place place(threadIdx.x);
  Tile tiles[kCount];
  tiles_of<kPart>(work, blob, tile, tiles);
  for_token_groups<kMost>(item.pair_count, [&](int group, auto size) {
    constexpr int kTokens = decltype(size)::value;
    int32_t pairs[kTokens];
    const uint32_t* x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      pairs[t] = work.pairs[item.pair_begin + group + t];
      x[t] = work.x + (kGateUp ? pairs[t] / work.top_k : pairs[t]) * work.x_words;
    }
    Sums<kCount, kTokens> sums;
    fold_tile<kFormat, kCount, kTokens>(work.shape, tiles, place, x, sums);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if constexpr (kGateUp) {
          write_gate_up(work, trailer, tile, j, pairs[t], sums.acc[0][j][t], sums.acc[1][j][t], place);
        } else {
          write_down(work, trailer, tile, j, pairs[t], sums.acc[0][j][t], place);
        }
      }
    }
  });
}

struct MergeWork {
  ExpertMerge merge;
  const float* rows = nullptr;
  int64_t rows_stride = 0;
  int top_k = 0;
  int64_t cols = 0;
};
// merge of kernels/ops/rows.h, then add.
__global__ __launch_bounds__(kMergeThreads) void merge_kernel(const __grid_constant__ MergeWork work) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  if (i >= work.cols) return;
  const int64_t token = blockIdx.y;
  float merged = 0.0f;
  for (int slot = 0; slot < work.top_k; ++slot) {
    const int64_t pair = token * work.top_k + slot;
    if (work.merge.ids[pair] < 0) break;
    merged = f32::fma(work.merge.weights[pair], work.rows[pair * work.rows_stride + i], merged);
  }
  float* residual = work.merge.residual + token * work.merge.residual_stride + i;
  *residual = f32::add(*residual, merged);
}

template <FormatId kFormat, Part kPart, int kMost>
void launch_items(const ExpertWork& work, int max_items, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(work.shape.row_tiles, kTilesPerBlock)),
                  static_cast<unsigned>(max_items));
  launch(item_kernel<kFormat, kPart, kMost>, grid, dim3(kWarp, kTilesPerBlock), 0, stream, work);
}

template <Part kPart>
void launch_part(const ExpertArgs& args, const PackedLayout& matrix, const uint32_t* x, StreamHandle stream) {
  if (args.max_items == 0) return;
  FT_CHECK(args.max_items <= kMaxGridY);
  const ExpertWork work{.shape = tile_shape(matrix),
                        .up_offset = args.layout.up_offset,
                        .down_offset = args.layout.down_offset,
                        .trailer_offset = args.layout.trailer_offset,
                        .bytes = args.layout.bytes,
                        .items = args.items,
                        .item_begin = args.item_begin,
                        .item_end = args.item_end,
                        .pairs = args.pairs,
                        .top_k = args.top_k,
                        .x = x,
                        .x_words = activation_words(matrix.cols),
                        .activated = args.activated,
                        .activated_words = activation_words(args.layout.intermediate),
                        .out = args.out,
                        .out_stride = args.out_stride};
  with_format(matrix.format, [&]<FormatId kFormat>() {
    if (args.max_item_pairs == 1) {
      launch_items<kFormat, kPart, 1>(work, args.max_items, stream);
    } else {
      launch_items<kFormat, kPart, kMaxTokensPerPass>(work, args.max_items, stream);
    }
  });
}

}  // namespace

void expert_gate_up(const ExpertArgs& args, StreamHandle stream) {
  launch_part<Part::kGateUp>(args, args.layout.gate, args.x, stream);
}

void expert_down(const ExpertArgs& args, StreamHandle stream) {
  launch_part<Part::kDown>(args, args.layout.down, args.activated, stream);
}

void expert_down_merge(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  if (merge.tokens == 0) return;
  FT_CHECK(args.out != nullptr && merge.tokens <= kMaxGridY);
  expert_down(args, stream);
  const MergeWork work{merge, args.out, args.out_stride, args.top_k, args.layout.hidden};
  const dim3 grid(static_cast<unsigned>(ceil_div(work.cols, kMergeThreads)), static_cast<unsigned>(merge.tokens));
  launch(merge_kernel, grid, dim3(kMergeThreads), 0, stream, work);
}

}  // namespace ft::cuda
