// Down for items of one pair each (expert_tiles.cuh). A block owns two tiles of rows of all items, so that it merges a
// token's experts in slot order itself; it asks for its weights while gate and up still run.
//
// H200, cold, with the merge, against a warp that owns a tile from registers and a merge of its own launch: 8 experts
// of 2048 x 768 in NVFP4 6.9 us (11.5), bf16 10.0 (13.7), 10 of 2560 x 640 in NVFP4 12.7 (15.2).
#pragma once

#include <algorithm>

#include "kernels/cuda/expert_items.cuh"
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/fetch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace ft::cuda {

struct OneWork {
  TileShape shape;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  ItemList list;
  float* out = nullptr;
  int64_t out_stride = 0;
  ExpertMerge merge;  // `to` null: rows go to out
  Arrivals arrivals;
  int64_t bias_offset = 0;  // of down's; 0: none. Kernels that are not plain
};

inline constexpr int kMostOneItems = 16;
inline constexpr int kMostOneWarps = 12;
inline constexpr int kPairRows = kPair * kRowsPerTile;

// A block's shared memory: barriers of items, items, rows of slots, then a pair of tiles for each item.
struct OneItem {
  const std::byte* blob;
  int32_t pair;  // -1: none
  int32_t fetched;
  float down_global;
  float weight;  // of the slot, not of the item
  int32_t id;    // of the slot
};
inline constexpr int kOneItemsAt = kMostOneItems * 8;
inline constexpr int kOneRowsAt = kOneItemsAt + kMostOneItems * static_cast<int>(sizeof(OneItem));
inline constexpr int kOnePairsAt = (kOneRowsAt + kMostOneItems * kPairRows * 4 + 127) / 128 * 128;

// Scale words of block `block` of a pair, which has `lanes` lanes: half 0 brings those of the first tile, half 1 the
// second's.
template <FormatId kFormat>
__device__ __forceinline__ void ask_for_scales(uint32_t pair, PairShape<kFormat> shape, const std::byte* own_scales,
                                               int block, int lanes, const Place& place) {
  if constexpr (Decode<kFormat>::kHasScales) {
    if (brings_scale<kFormat>(place.lane, lanes)) {
      copy_async<4>(pair + shape.scales_at(place.half, block) + place.lane * 4,
                    own_scales + Decode<kFormat>::scale_offset(block, place.lane));
    }
  }
}

#if __CUDA_ARCH__ >= 900
// All that a block reads: two tiles of all items. A warp asks for the codes of some items and for the scales of its own
// tasks.
template <FormatId kFormat>
__device__ __forceinline__ void ask_for_down(const OneWork& work, const OneItem* items, int count, int first_tile,
                                             uint32_t address, int warp, int warps, const Place& place) {
  const PairShape<kFormat> pair_shape{work.shape.blocks};
  const bool second = first_tile + 1 < work.shape.row_tiles;  // or the first one again
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
                            block, work.shape.lanes_of(block), place);
  }
  commit_copies();
}

// By one thread: an item of the list, when its bytes are there.
__device__ __forceinline__ void take_item(const OneWork& work, int index, uint32_t barrier, OneItem& to) {
  init_copy_barrier_once(barrier);
  const ExpertItem item = load_item(work.list.items + index);
  if (item.arrival >= 0) {
    // Both parts: gate and up may still run, and down's first bytes may be in a unit of theirs.
    wait_for_arrival(work.arrivals, item.arrival, 0, blockIdx.x == 0);
    wait_for_arrival(work.arrivals, item.arrival, 1, blockIdx.x == 0);
  }
  to.blob = item.blob;
  to.fetched = item.arrival >= 0 ? 1 : 0;
  to.pair = item.pair_count > 0 ? __ldcg(work.list.pairs + item.pair_begin) : -1;
  to.down_global = __ldcg(reinterpret_cast<const float*>(item.blob + work.trailer_offset) + 2);
}

// Down's biases of the rows that fold_items gives a thread: of the warp's items, at most kMost, asked for before the
// products.
template <bool kPlain>
struct OneBias {
  static constexpr int kMost = 2;  // a warp for each item, up to kMostOneWarps
  static_assert(kMost * kMostOneWarps >= kMostOneItems);
  float value[kMost][kPairSums];

  __device__ __forceinline__ void load(const OneWork& work, const OneItem* items, int count, int first_tile, int warp,
                                       int warps, const Place& place) {
    if (work.bias_offset == 0) return;
#pragma unroll
    for (int own = 0; own < kMost; ++own) {
      const int i = warp + own * warps;
      if (i >= count || items[i].pair < 0) continue;
      const float* bias = reinterpret_cast<const float*>(items[i].blob + work.bias_offset);
#pragma unroll
      for (int sum = 0; sum < kPairSums; ++sum) {
        const int64_t row =
            first_tile * kRowsPerTile + sum / kRowsPerHalf * kRowsPerTile + place.row(sum % kRowsPerHalf);
        value[own][sum] = row < work.shape.rows ? __ldcg(bias + row) : 0.0f;
      }
    }
  }
  __device__ __forceinline__ float add_to(const OneWork& work, float product, bool first, int sum) const {
    return work.bias_offset == 0 ? product : f32::add(product, first ? value[0][sum] : value[1][sum]);
  }
};
template <>
struct OneBias<true> {
  __device__ __forceinline__ void load(const OneWork&, const OneItem*, int, int, int, int, const Place&) {}
  __device__ __forceinline__ float add_to(const OneWork&, float product, bool, int) const { return product; }
};

// Rows of all items whose blocks were multiplied: to `rows` [slot][row] where the block merges them, else to work.out.
template <FormatId kFormat, bool kPlain>
__device__ __forceinline__ void fold_items(const OneWork& work, const OneItem* items, int count, int first_tile,
                                           const std::byte* pairs, float* rows, const OneBias<kPlain>& bias, int warp,
                                           int warps, const Place& place) {
  const PairShape<kFormat> pair_shape{work.shape.blocks};
  const int first_row = first_tile * kRowsPerTile;
#pragma unroll 1
  for (int i = warp; i < count; i += warps) {
    const int32_t pair = items[i].pair;
    if (pair < 0) continue;
    const float global = items[i].down_global;
#pragma unroll
    for (int sum = 0; sum < kPairSums; ++sum) {
      const float lane_sum = fold_blocks<kFormat>(pairs + i * pair_shape.bytes(), pair_shape, sum, place);
      const float y = bias.add_to(work, f32::mul(f32::tree_sum(lane_sum), global), i < warps, sum);
      const int row = sum / kRowsPerHalf * kRowsPerTile + place.row(sum % kRowsPerHalf);
      if (place.lane != 0) continue;
      if (work.merge.to != nullptr) {
        rows[pair * kPairRows + row] = y;
      } else if (first_row + row < work.shape.rows) {
        work.out[pair * work.out_stride + first_row + row] = y;
      }
    }
  }
}
#endif

template <FormatId kFormat, bool kPlain>
__global__ __launch_bounds__(kMostOneWarps* kWarp, 2) void down_one(const __grid_constant__ OneWork work) {
#if __CUDA_ARCH__ >= 900
  constexpr int kGroup = Decode<kFormat>::kGroup;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<std::byte*>(shared);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = thread / kWarp;
  const Place place(thread % kWarp);
  const PairShape<kFormat> pair_shape{work.shape.blocks};
  auto* items = reinterpret_cast<OneItem*>(memory + kOneItemsAt);
  auto* rows = reinterpret_cast<float*>(memory + kOneRowsAt);  // of slots
  const int begin = __ldcg(work.list.begin);
  const int count = min(__ldcg(work.list.end) - begin, kMostOneItems);
  const bool merges = work.merge.to != nullptr;
  if (thread < count) take_item(work, begin + thread, address + thread * 8, items[thread]);
  __syncthreads();
  const int first_tile = static_cast<int>(blockIdx.x) * kPair;
  ask_for_down<kFormat>(work, items, count, first_tile, address, warp, warps, place);
  const int tasks = count * work.shape.blocks;
  const int64_t row = int64_t{first_tile} * kRowsPerTile + thread;
  const bool own_row = merges && thread < kPairRows && row < work.shape.rows;
  float before = 0.0f;
  if (own_row && (kPlain || work.merge.add)) before = __ldcg(work.merge.to + row);
  OneBias<kPlain> bias;
  bias.load(work, items, count, first_tile, warp, warps, place);
  if (merges && thread < work.list.top_k) {
    items[thread].weight = __ldcg(work.merge.weights + thread);
    items[thread].id = __ldcg(work.merge.ids + thread);
  }
  wait_for_previous();
  let_next_start();
  for (int task = warp; task < tasks; task += warps) {
    const int i = task / work.shape.blocks, block = task % work.shape.blocks;
    if (items[i].pair < 0) continue;
    uint32_t words[kGroup / 2];
    load_lane_x<kFormat>(work.list.x + items[i].pair * work.list.x_words, block, place.lane,
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
  fold_items<kFormat>(work, items, count, first_tile, memory + kOnePairsAt, rows, bias, warp, warps, place);
  if (!merges) return;
  __syncthreads();
  if (!own_row) return;
  // merge of kernels/ops/rows.h, then add.
  float merged = 0.0f;
  for (int slot = 0; slot < work.list.top_k && items[slot].id >= 0; ++slot) {
    merged = f32::fma(items[slot].weight, rows[slot * kPairRows + thread], merged);
  }
  work.merge.to[row] = kPlain || work.merge.add ? f32::add(before, merged) : merged;
#endif
}

// ---- launches

inline constexpr int kMostOneBytes = 100 << 10;  // of shared memory: two blocks a multiprocessor

template <FormatId kFormat>
int pair_bytes(const PackedLayout& matrix) {
  return PairShape<kFormat>{static_cast<int>(matrix.blocks)}.bytes();
}

// Whether these arguments are items of one pair each that fit, and the device has bulk copies.
template <FormatId kFormat>
bool down_fits_one(const ExpertArgs& args) {
  return programmatic_launch() && args.max_item_pairs == 1 && args.max_items <= kMostOneItems &&
         args.top_k <= kMostOneItems &&
         kOnePairsAt + args.max_items * pair_bytes<kFormat>(args.layout.down) <= kMostOneBytes;
}

// REQUIRES down_fits_one(). merge.to null: rows to args.out.
template <FormatId kFormat>
void launch_down_one(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  const OneWork work{.shape = tile_shape(args.layout.down),
                     .down_offset = args.layout.down_offset,
                     .trailer_offset = args.layout.trailer_offset,
                     .list = item_list(args, args.activated, args.layout.intermediate),
                     .out = args.out,
                     .out_stride = args.out_stride,
                     .merge = merge,
                     .arrivals = args.arrivals,
                     .bias_offset = down_bias_offset(args.layout)};
  const int shared = kOnePairsAt + args.max_items * pair_bytes<kFormat>(args.layout.down);
  const int tasks = args.max_items * work.shape.blocks;
  const auto warps = static_cast<unsigned>(std::clamp(tasks, 1, kMostOneWarps));
  const bool plain = work.bias_offset == 0 && merge.add;
  const auto kernel = plain ? down_one<kFormat, true> : down_one<kFormat, false>;
  allow_shared(kernel, shared);
  launch(kernel, dim3(static_cast<unsigned>(ceil_div(work.shape.row_tiles, kPair))), dim3(warps * kWarp),
         static_cast<size_t>(shared), stream, work);
}

}  // namespace ft::cuda
