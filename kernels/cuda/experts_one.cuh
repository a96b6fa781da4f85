// The launches of a step of one token (expert_tiles.cuh): every item has at most one pair.
//
// Gate and up: a block owns a few tiles of one item. Down: a block owns two tiles of rows of all items, so that it can
// merge the token's experts in slot order itself; it asks for its weights while gate and up still run.
#pragma once

#include <algorithm>

#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/fetch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {

struct OneWork {
  TileShape shape;  // of gate and up, or of down
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  const ExpertItem* items = nullptr;
  const int32_t* item_begin = nullptr;
  const int32_t* item_end = nullptr;
  const int32_t* pairs = nullptr;
  const uint32_t* x = nullptr;  // the token's row (gate and up), or rows of pairs (down)
  int64_t x_words = 0;
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int top_k = 0;
  int tiles = 0;   // gate and up: of a block
  int groups = 1;  // gate and up: warps that share a block of k
  ExpertMerge merge;  // residual null: rows go to out
  Arrivals arrivals;
  Fetch fetch;
  int fetch_blocks = 0;  // of the grid, the first
};

inline constexpr int kMostOneItems = 16;
inline constexpr int kMostOneWarps = 12;
inline constexpr int kPairRows = kPair * kRowsPerTile;

// Items are read past L1, which could hold what was there before: the kernel that wrote them has ended, but down reads
// them before its wait.
__device__ __forceinline__ ExpertItem load_item(const ExpertItem* item) {
  static_assert(sizeof(ExpertItem) == 24);
  const auto* parts = reinterpret_cast<const unsigned long long*>(item);
  const unsigned long long blob = __ldcg(parts), pairs = __ldcg(parts + 1), arrival = __ldcg(parts + 2);
  return {.blob = reinterpret_cast<const std::byte*>(blob),
          .pair_begin = static_cast<int32_t>(pairs),
          .pair_count = static_cast<int32_t>(pairs >> 32),
          .arrival = static_cast<int32_t>(arrival)};
}

// Two rows of the tile of gate and up: one word of the activated row.
__device__ __forceinline__ void write_gate_up(uint32_t* activated, int64_t rows, const ExpertTrailer& trailer, int tile,
                                              int j, float gate, float up, const Place& place) {
  const float g = f32::mul(f32::tree_sum(gate), trailer.gate_global);
  const float u = f32::mul(f32::tree_sum(up), trailer.up_global);
  const uint32_t own = activation_bits(f32::mul(f32::silu(g), u));
  const uint32_t other = __shfl_down_sync(kFullWarp, own, kLanes);
  const int64_t row = int64_t{tile} * kRowsPerTile + 2 * j;  // and the odd one, in the other half of the warp
  if (place.thread == 0 && row < rows) activated[activation_word(row)] = own | (row + 1 < rows ? other : 0u) << 16;
}

// Where things are in a block's shared memory.
struct OneMemory {
  static constexpr int kBarriers = 0, kItems = kMostOneItems * 8;
};
struct OneItem {
  const std::byte* blob;
  int32_t pair;  // -1: none
  int32_t fetched;
  float down_global;
  float weight;  // of the slot, not of the item
  int32_t id;
  int32_t reserved;
};
inline constexpr int kOneRowsAt = OneMemory::kItems + kMostOneItems * static_cast<int>(sizeof(OneItem));
inline constexpr int kOnePairsAt = (kOneRowsAt + kMostOneItems * kPairRows * 4 + 127) / 128 * 128;

// Scale words of a lane for block `block` of a pair: half 0 brings those of the first tile, half 1 the second's.
template <FormatId kFormat>
__device__ __forceinline__ void ask_for_scales(uint32_t pair, PairShape<kFormat> shape, const std::byte* own_scales,
                                               int block, bool present, const Place& place) {
  if constexpr (Decode<kFormat>::kHasScales) {
    if (present) {
      copy_async<4>(pair + shape.scales_at(place.half, block) + place.lane * 4,
                    own_scales + Decode<kFormat>::scale_offset(block, place.lane));
    }
  }
}

template <FormatId kFormat>
__global__ __launch_bounds__(kMostOneWarps* kWarp, 2) void gate_up_one(const __grid_constant__ OneWork work) {
  constexpr int kGroup = Decode<kFormat>::kGroup;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<std::byte*>(shared);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = thread / kWarp;
  const Place place(thread % kWarp);
  const PairShape<kFormat> pair_shape{work.shape.blocks};
  if (thread < work.tiles) init_copy_barrier_once(address + thread * 8);
  wait_for_previous();
  let_next_start();
  if (static_cast<int>(blockIdx.x) < work.fetch_blocks) {
    fetch_by_warp(work.fetch, blockIdx.x * warps + warp, work.fetch_blocks * warps);
    return;
  }
  // The first task's x before the weights, behind which it would wait.
  int task = warp;
  uint32_t words[kGroup / 2];
  const auto load_x = [&] {
    const int block = task % work.shape.blocks;
    load_lane_x<kFormat>(work.x, block, place.lane, place.lane < work.shape.lanes_of(block), words);
  };
  load_x();
  const int row_tiles = static_cast<int>(work.shape.row_tiles);
  const int blocks_of_item = (row_tiles + work.tiles - 1) / work.tiles;
  const int place_in_grid = static_cast<int>(blockIdx.x) - work.fetch_blocks;
  const int index = __ldcg(work.item_begin) + place_in_grid / blocks_of_item;
  if (index >= __ldcg(work.item_end)) return;
  const ExpertItem item = load_item(work.items + index);
  if (item.arrival >= 0) {
    if (thread == 0) wait_for_arrival(work.arrivals, item.arrival, 0);
    __syncthreads();
    let_bulk_copies_read();
  }
  if (item.pair_count == 0) return;
  const int first_tile = place_in_grid % blocks_of_item * work.tiles;
  const int tiles = min(work.tiles, row_tiles - first_tile);
  const std::byte* codes = item.blob + first_tile * work.shape.code_bytes_per_tile;
  const auto code_bytes = static_cast<uint32_t>(work.shape.code_bytes_per_tile);
  __syncthreads();  // the barriers are made
  for (int s = warp; s < tiles; s += warps) {
    const uint32_t to = address + kOnePairsAt + s * pair_shape.bytes();
    copy_pair(to, to + pair_shape.codes_at(1, 0), codes + s * code_bytes, codes + work.up_offset + s * code_bytes,
              code_bytes, address + s * 8, place.thread);
  }
  const int tasks = work.groups * work.shape.blocks;
  const std::byte* own_scales = item.blob + place.half * work.up_offset + work.shape.scales_offset +
                                first_tile * work.shape.scale_bytes_per_tile;
  for (int t = warp; t < tasks; t += warps) {
    const int block = t % work.shape.blocks;
    for (int s = t / work.shape.blocks; s < tiles; s += work.groups) {
      ask_for_scales<kFormat>(address + kOnePairsAt + s * pair_shape.bytes(), pair_shape,
                              own_scales + s * work.shape.scale_bytes_per_tile, block,
                              place.lane < work.shape.lanes_of(block), place);
    }
  }
  commit_copies();
  const float4 globals = __ldcg(reinterpret_cast<const float4*>(item.blob + work.trailer_offset));
  const int32_t pair = __ldcg(work.pairs + item.pair_begin);

  for (; task < tasks; task += warps) {
    const int block = task % work.shape.blocks;
    if (task != warp) load_x();
    LaneX<kFormat> x;
    x.unpack(words);
    wait_for_copies<0>();
    if (!kCopiesInBulk) __syncthreads();
    __syncwarp();
#pragma unroll 1
    for (int s = task / work.shape.blocks; s < tiles; s += work.groups) {
      wait_for_copies_of(address + s * 8);
      multiply_in_place<kFormat>(memory + kOnePairsAt + s * pair_shape.bytes(), pair_shape, block,
                                 work.shape.lanes_of(block), place, x);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int sum = warp; sum < tiles * kRowsPerHalf; sum += warps) {
    const int s = sum / kRowsPerHalf, j = sum % kRowsPerHalf;
    const std::byte* of_pair = memory + kOnePairsAt + s * pair_shape.bytes();
    const float gate = fold_blocks<kFormat>(of_pair, pair_shape, j, place);
    const float up = fold_blocks<kFormat>(of_pair, pair_shape, kRowsPerHalf + j, place);
    write_gate_up(work.activated + pair * work.activated_words, work.shape.rows,
                  {.gate_global = globals.x, .up_global = globals.y, .down_global = globals.z}, first_tile + s, j, gate,
                  up, place);
  }
}

template <FormatId kFormat>
__global__ __launch_bounds__(kMostOneWarps* kWarp, 2) void down_one(const __grid_constant__ OneWork work) {
  constexpr int kGroup = Decode<kFormat>::kGroup;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<std::byte*>(shared);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = thread / kWarp;
  const Place place(thread % kWarp);
  const PairShape<kFormat> pair_shape{work.shape.blocks};
  auto* items = reinterpret_cast<OneItem*>(memory + OneMemory::kItems);
  auto* rows = reinterpret_cast<float*>(memory + kOneRowsAt);  // of slots
  const int begin = __ldcg(work.item_begin);
  const int count = min(__ldcg(work.item_end) - begin, kMostOneItems);
  const bool merges = work.merge.residual != nullptr;
  if (thread < count) {
    init_copy_barrier_once(address + thread * 8);
    const ExpertItem item = load_item(work.items + begin + thread);
    if (item.arrival >= 0) {
      // Both parts: gate and up may still run, and down's first bytes may be in a unit of theirs.
      wait_for_arrival(work.arrivals, item.arrival, 0);
      wait_for_arrival(work.arrivals, item.arrival, 1);
    }
    items[thread].blob = item.blob;
    items[thread].fetched = item.arrival >= 0 ? 1 : 0;
    items[thread].pair = item.pair_count > 0 ? __ldcg(work.pairs + item.pair_begin) : -1;
    items[thread].down_global = __ldcg(reinterpret_cast<const float*>(item.blob + work.trailer_offset) + 2);
  }
  __syncthreads();
  const int row_tiles = static_cast<int>(work.shape.row_tiles), first_tile = static_cast<int>(blockIdx.x) * kPair;
  const bool second = first_tile + 1 < row_tiles;  // or the first one again
  const auto code_bytes = static_cast<uint32_t>(work.shape.code_bytes_per_tile);
  const int64_t codes = work.down_offset + first_tile * work.shape.code_bytes_per_tile;
  for (int i = warp; i < count; i += warps) {
    if (items[i].pair < 0) continue;
    if (items[i].fetched != 0) let_bulk_copies_read();
    const uint32_t to = address + kOnePairsAt + i * pair_shape.bytes();
    const std::byte* from = items[i].blob + codes;
    copy_pair(to, to + pair_shape.codes_at(1, 0), from, from + (second ? code_bytes : 0u), code_bytes, address + i * 8,
              place.thread);
  }
  const int tasks = count * work.shape.blocks;
  const int64_t own_scales = work.down_offset + work.shape.scales_offset +
                             (first_tile + (second ? place.half : 0)) * work.shape.scale_bytes_per_tile;
  for (int t = warp; t < tasks; t += warps) {
    const int i = t / work.shape.blocks, block = t % work.shape.blocks;
    if (items[i].pair < 0) continue;
    ask_for_scales<kFormat>(address + kOnePairsAt + i * pair_shape.bytes(), pair_shape, items[i].blob + own_scales,
                            block, place.lane < work.shape.lanes_of(block), place);
  }
  commit_copies();
  const int64_t row = int64_t{first_tile} * kRowsPerTile + thread;
  const bool own_row = merges && thread < kPairRows && row < work.shape.rows;
  float before = 0.0f;
  if (own_row) before = __ldcg(work.merge.residual + row);
  if (merges && thread < work.top_k) {
    items[thread].weight = __ldcg(work.merge.weights + thread);
    items[thread].id = __ldcg(work.merge.ids + thread);
  }
  wait_for_previous();
  let_next_start();
  for (int task = warp; task < tasks; task += warps) {
    const int i = task / work.shape.blocks, block = task % work.shape.blocks;
    if (items[i].pair < 0) continue;
    uint32_t words[kGroup / 2];
    load_lane_x<kFormat>(work.x + items[i].pair * work.x_words, block, place.lane,
                         place.lane < work.shape.lanes_of(block), words);
    LaneX<kFormat> x;
    x.unpack(words);
    wait_for_copies<0>();
    __syncwarp();
    wait_for_copies_of(address + i * 8);
    multiply_in_place<kFormat>(memory + kOnePairsAt + i * pair_shape.bytes(), pair_shape, block,
                               work.shape.lanes_of(block), place, x);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = warp; i < count; i += warps) {
    const int32_t pair = items[i].pair;
    if (pair < 0) continue;
    const float global = items[i].down_global;
#pragma unroll
    for (int sum = 0; sum < kPairSums; ++sum) {
      const float lane_sum =
          fold_blocks<kFormat>(memory + kOnePairsAt + i * pair_shape.bytes(), pair_shape, sum, place);
      const float y = f32::mul(f32::tree_sum(lane_sum), global);
      const int of_pair = sum / kRowsPerHalf * kRowsPerTile + place.row(sum % kRowsPerHalf);
      if (place.lane != 0) continue;
      if (merges) {
        rows[pair * kPairRows + of_pair] = y;
      } else if (first_tile * kRowsPerTile + of_pair < work.shape.rows) {
        work.out[pair * work.out_stride + first_tile * kRowsPerTile + of_pair] = y;
      }
    }
  }
  if (!merges) return;
  __syncthreads();
  if (!own_row) return;
  // merge of kernels/ops/rows.h, then add.
  float merged = 0.0f;
  for (int slot = 0; slot < work.top_k && items[slot].id >= 0; ++slot) {
    merged = f32::fma(items[slot].weight, rows[slot * kPairRows + thread], merged);
  }
  work.merge.residual[row] = f32::add(before, merged);
}

// ---- launches

inline constexpr int kMostOneBytes = 100 << 10;  // of shared memory: two blocks a multiprocessor

template <FormatId kFormat>
int pair_bytes(const PackedLayout& matrix) {
  return PairShape<kFormat>{static_cast<int>(matrix.blocks)}.bytes();
}

// Whether a step with these arguments is one token's whose launches fit.
template <FormatId kFormat>
bool gate_up_fits_one(const ExpertArgs& args) {
  return kCopiesInBulk && args.max_item_pairs == 1 && kOnePairsAt + pair_bytes<kFormat>(args.layout.gate) <= kMostOneBytes;
}
template <FormatId kFormat>
bool down_fits_one(const ExpertArgs& args) {
  return kCopiesInBulk && args.max_item_pairs == 1 && args.max_items <= kMostOneItems && args.top_k <= kMostOneItems &&
         kOnePairsAt + args.max_items * pair_bytes<kFormat>(args.layout.down) <= kMostOneBytes;
}

inline OneWork one_work(const ExpertArgs& args, const PackedLayout& matrix, const uint32_t* x) {
  return {.shape = tile_shape(matrix),
          .up_offset = args.layout.up_offset,
          .down_offset = args.layout.down_offset,
          .trailer_offset = args.layout.trailer_offset,
          .items = args.items,
          .item_begin = args.item_begin,
          .item_end = args.item_end,
          .pairs = args.pairs,
          .x = x,
          .x_words = activation_words(matrix.cols),
          .activated = args.activated,
          .activated_words = activation_words(args.layout.intermediate),
          .out = args.out,
          .out_stride = args.out_stride,
          .top_k = args.top_k,
          .merge = {},
          .arrivals = args.arrivals,
          .fetch = args.fetch};
}

// REQUIRES gate_up_fits_one().
template <FormatId kFormat>
void launch_gate_up_one(const ExpertArgs& args, StreamHandle stream) {
  constexpr int kWarps = 8, kFetchBlocks = 32, kBlockBytes = 40 << 10, kMostTiles = 4;
  OneWork work = one_work(args, args.layout.gate, args.x);
  const int bytes = pair_bytes<kFormat>(args.layout.gate), blocks = work.shape.blocks;
  work.tiles = std::clamp(kBlockBytes / bytes, 1, kMostTiles);
  work.groups = std::max(1, std::min(work.tiles, kWarps / blocks));
  const int tasks = blocks * work.groups;
  const auto warps = static_cast<unsigned>(tasks <= kMostOneWarps ? tasks : ceil_div(tasks, ceil_div(tasks, kMostOneWarps)));
  if (args.fetch.here) work.fetch_blocks = kFetchBlocks;
  const int shared = kOnePairsAt + work.tiles * bytes;
  allow_shared(gate_up_one<kFormat>, shared);
  const auto grid = static_cast<unsigned>(args.max_items * ceil_div(work.shape.row_tiles, work.tiles) + work.fetch_blocks);
  launch(gate_up_one<kFormat>, dim3(grid), dim3(warps * kWarp), static_cast<size_t>(shared), stream, work);
}

// REQUIRES down_fits_one(). merge.residual null: rows to args.out.
template <FormatId kFormat>
void launch_down_one(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  OneWork work = one_work(args, args.layout.down, args.activated);
  work.merge = merge;
  const int shared = kOnePairsAt + args.max_items * pair_bytes<kFormat>(args.layout.down);
  const int tasks = args.max_items * work.shape.blocks;
  const auto warps = static_cast<unsigned>(std::clamp(tasks, 1, kMostOneWarps));
  allow_shared(down_one<kFormat>, shared);
  launch(down_one<kFormat>, dim3(static_cast<unsigned>(ceil_div(work.shape.row_tiles, kPair))), dim3(warps * kWarp),
         static_cast<size_t>(shared), stream, work);
}

}  // namespace ft::cuda
