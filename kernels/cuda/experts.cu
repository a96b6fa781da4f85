// Experts of one layer: gate and up with the activation between, then down, over a list of items that is in device
// memory. A warp owns one row tile of one item (dot.cuh); blocks past the item count leave. Down of items with one pair
// each has a kernel of its own (experts_one.cuh).
//
// Plain kernels are those of experts without biases whose unit is SiLU's, and of merges that add the routed experts
// alone; the others look at every option, which is the same for the whole grid.
//
// The first blocks of a gate_up launch that fetches copy blobs into slots, the next ones look for the next plan's
// victims; then come the items, hits first. Blocks of an item that is on its way wait for its part of the blob.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/expert_items.cuh"
#include "kernels/cuda/experts_one.cuh"
#include "kernels/cuda/fetch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/victims.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

// Two warps: small blocks even out the last wave (1536 warps of eight experts of 768 rows over 132 multiprocessors).
constexpr int kTilesPerBlock = 2;
constexpr int kThreads = kTilesPerBlock * kWarp;
constexpr int kMergeThreads = 256;
// Of a launch that fetches: 1 MiB under way, one block a multiprocessor.
constexpr int kFetchBlocks = 128;

enum class Part { kGateUp, kDown };
template <Part kPart>
inline constexpr int kMatrices = kPart == Part::kGateUp ? 2 : 1;

struct ExpertWork {
  TileShape shape;  // of gate and up, or of down
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  ItemList list;
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  Arrivals arrivals;
  Fetch fetch;
  VictimSearch search;
  int fetch_rows = 0;  // of the grid: blocks that fetch
  int first_item_row = 0;
  // Of kernels that are not plain.
  Glu glu;
  int64_t bias_offset = 0;  // of gate's or down's; 0: none
};

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

// Biases of a thread's rows of the tile, asked for before the weights.
template <Part kPart>
struct TileBias {
  bool there;
  float value[kMatrices<kPart>][kRowsPerHalf];

  __device__ __forceinline__ TileBias(const ExpertWork& work, const std::byte* blob, int tile, const Place& place)
      : there(work.bias_offset != 0) {
    if (!there) return;
    const float* biases = reinterpret_cast<const float*>(blob + work.bias_offset);
#pragma unroll
    for (int m = 0; m < kMatrices<kPart>; ++m) {
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) {
        const int64_t row = int64_t{tile} * kRowsPerTile + place.row(j);
        value[m][j] = row < work.shape.rows ? __ldcg(biases + m * work.shape.rows + row) : 0.0f;
      }
    }
  }
  __device__ __forceinline__ float add_to(float product, int m, int j) const {
    return there ? f32::add(product, value[m][j]) : product;
  }
};
template <Part kPart>
struct NoBias {
  __device__ __forceinline__ NoBias(const ExpertWork&, const std::byte*, int, const Place&) {}
  __device__ __forceinline__ float add_to(float product, int, int) const { return product; }
};
template <Part kPart, bool kPlain>
using BiasOf = std::conditional_t<kPlain, NoBias<kPart>, TileBias<kPart>>;

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
template <bool kPlain>
__device__ __forceinline__ void write_gate_up(const ExpertWork& work, const ExpertTrailer& trailer,
                                              const BiasOf<Part::kGateUp, kPlain>& bias, int tile, int j, int32_t pair,
                                              float gate, float up, const Place& place) {
  const float g = bias.add_to(f32::mul(f32::tree_sum(gate), trailer.gate_global), 0, j);
  const float u = bias.add_to(f32::mul(f32::tree_sum(up), trailer.up_global), 1, j);
  const uint32_t own = activation_bits(kPlain ? f32::mul(f32::silu(g), u) : f32::glu(work.glu, g, u));
  const uint32_t other = __shfl_down_sync(kFullWarp, own, kLanes);
  const int64_t row = int64_t{tile} * kRowsPerTile + 2 * j;  // and the odd one, in the other half of the warp
  if (place.thread == 0 && row < work.shape.rows) {
    const uint32_t odd = row + 1 < work.shape.rows ? other : 0u;
    work.activated[pair * work.activated_words + activation_word(row)] = own | odd << 16;
  }
}

template <bool kPlain>
__device__ __forceinline__ void write_down(const ExpertWork& work, const ExpertTrailer& trailer,
                                           const BiasOf<Part::kDown, kPlain>& bias, int tile, int j, int32_t pair,
                                           float lane_sum, const Place& place) {
  const float sum = f32::tree_sum(lane_sum);
  const int64_t row = int64_t{tile} * kRowsPerTile + place.row(j);
  if (place.lane == 0 && row < work.shape.rows) {
    work.out[pair * work.out_stride + row] = bias.add_to(f32::mul(sum, trailer.down_global), 0, j);
  }
}

// Gate and up let the kernel after them start once they have waited: then the one before has ended, and what that one
// wrote (the items) may be read by the one after without a wait of its own.
template <FormatId kFormat, Part kPart, int kMost, bool kPlain>
__global__ __launch_bounds__(kThreads) void item_kernel(const __grid_constant__ ExpertWork work) {
  constexpr bool kGateUp = kPart == Part::kGateUp;
  constexpr int kCount = kMatrices<kPart>;
  if (kGateUp) wait_for_previous();
  let_next_start();
  if (kGateUp && static_cast<int>(blockIdx.y) < work.fetch_rows) {
    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    if (block < kFetchBlocks)
      fetch_by_warp(work.fetch, block * kTilesPerBlock + threadIdx.y, kFetchBlocks * kTilesPerBlock);
    return;
  }
  if (kGateUp && static_cast<int>(blockIdx.y) < work.first_item_row) {
    const uint32_t block = (blockIdx.y - work.fetch_rows) * gridDim.x + blockIdx.x;
    if (block < kSearchBlocks) search_victims_in_block(work.search, static_cast<int>(block));
    return;
  }
  const int index = __ldcg(work.list.begin) + static_cast<int>(blockIdx.y) - work.first_item_row;
  if (index >= __ldcg(work.list.end)) {
    if (!kGateUp) wait_for_previous();
    return;
  }
  const ExpertItem item = load_item(work.list.items + index);
  const std::byte* blob = item.blob;
  const int tile = static_cast<int>(blockIdx.x) * kTilesPerBlock + static_cast<int>(threadIdx.y);
  if (item.arrival >= 0) {
    if (threadIdx.x + threadIdx.y == 0) wait_for_arrival(work.arrivals, item.arrival, kGateUp ? 0 : 1, blockIdx.x == 0);
    __syncthreads();
  }
  if (!kGateUp) wait_for_previous();
  asm volatile("" : "+l"(blob)::"memory");  // no load of weights is moved before this
  const ExpertTrailer trailer = trailer_of(work, blob);
  if (tile >= work.shape.row_tiles) return;
  const Place place(threadIdx.x);
  Tile tiles[kCount];
  tiles_of<kPart>(work, blob, tile, tiles);
  const BiasOf<kPart, kPlain> bias(work, blob, tile, place);
  for_token_groups<kMost>(item.pair_count, [&](int group, auto size) {
    constexpr int kTokens = decltype(size)::value;
    int32_t pairs[kTokens];
    const uint32_t* x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      pairs[t] = work.list.pairs[item.pair_begin + group + t];
      x[t] = work.list.x + (kGateUp ? pairs[t] / work.list.top_k : pairs[t]) * work.list.x_words;
    }
    Sums<kCount, kTokens> sums;
    fold_tile<kFormat, kCount, kTokens>(work.shape, tiles, place, x, sums);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if constexpr (kGateUp) {
          write_gate_up<kPlain>(work, trailer, bias, tile, j, pairs[t], sums.acc[0][j][t], sums.acc[1][j][t], place);
        } else {
          write_down<kPlain>(work, trailer, bias, tile, j, pairs[t], sums.acc[0][j][t], place);
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
  float* to = work.merge.to + token * work.merge.to_stride + i;
  *to = work.merge.add ? f32::add(*to, merged) : merged;
}

template <FormatId kFormat, Part kPart, int kMost>
void launch_items(const ExpertWork& work, int max_items, StreamHandle stream) {
  const bool plain = work.bias_offset == 0 && (kPart == Part::kDown || work.glu.kind == GluKind::kSilu);
  const dim3 grid(static_cast<unsigned>(ceil_div(work.shape.row_tiles, kTilesPerBlock)),
                  static_cast<unsigned>(max_items + work.first_item_row));
  launch(plain ? item_kernel<kFormat, kPart, kMost, true> : item_kernel<kFormat, kPart, kMost, false>, grid,
         dim3(kWarp, kTilesPerBlock), 0, stream, work);
}

template <Part kPart>
void launch_part(const ExpertArgs& args, const PackedLayout& matrix, const uint32_t* x, StreamHandle stream) {
  if (args.max_items == 0) return;
  const TileShape shape = tile_shape(matrix);
  const bool fetches = kPart == Part::kGateUp && args.fetch.here;
  const bool searches = kPart == Part::kGateUp && args.search.to != nullptr;
  const int64_t blocks_of_row = ceil_div(shape.row_tiles, kTilesPerBlock);
  const int64_t fetch_rows = fetches ? ceil_div(kFetchBlocks, blocks_of_row) : 0;
  const int64_t first_item_row = fetch_rows + (searches ? ceil_div(kSearchBlocks, blocks_of_row) : 0);
  FT_CHECK(args.max_items + first_item_row <= kMaxGridY);
  const ExpertWork work{
      .shape = shape,
      .up_offset = args.layout.up_offset,
      .down_offset = args.layout.down_offset,
      .trailer_offset = args.layout.trailer_offset,
      .list = item_list(args, x, matrix.cols),
      .activated = args.activated,
      .activated_words = activation_words(args.layout.intermediate),
      .out = args.out,
      .out_stride = args.out_stride,
      .arrivals = args.arrivals,
      .fetch = args.fetch,
      .search = args.search,
      .fetch_rows = static_cast<int>(fetch_rows),
      .first_item_row = static_cast<int>(first_item_row),
      .glu = args.layout.glu,
      .bias_offset = kPart == Part::kGateUp ? args.layout.bias_offset : down_bias_offset(args.layout)};
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
  if (args.max_items == 0) return;
  with_format(args.layout.down.format, [&]<FormatId kFormat>() {
    if (down_fits_one<kFormat>(args)) {
      launch_down_one<kFormat>(args, {}, stream);
    } else {
      launch_part<Part::kDown>(args, args.layout.down, args.activated, stream);
    }
  });
}

void expert_down_merge(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  if (merge.tokens == 0) return;
  FT_CHECK(args.out != nullptr && merge.tokens <= kMaxGridY);
  bool merged = false;
  with_format(args.layout.down.format, [&]<FormatId kFormat>() {
    if (merge.tokens != 1 || args.max_items == 0 || !down_fits_one<kFormat>(args)) return;
    launch_down_one<kFormat>(args, merge, stream);
    merged = true;
  });
  if (merged) return;
  expert_down(args, stream);
  const MergeWork work{merge, args.out, args.out_stride, args.top_k, args.layout.hidden};
  const dim3 grid(static_cast<unsigned>(ceil_div(work.cols, kMergeThreads)), static_cast<unsigned>(merge.tokens));
  launch(merge_kernel, grid, dim3(kMergeThreads), 0, stream, work);
}

}  // namespace ft::cuda
