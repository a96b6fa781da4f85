// Experts of one layer: gate and up with the activation between, then down, over a list of items that is in device
// memory. A warp owns one row tile of one item; blocks past the item count leave at once.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

// Two warps: small blocks even out the last wave (1536 warps of eight experts of 768 rows over 132 multiprocessors).
constexpr int kTilesPerBlock = 2;

struct ExpertWork {
  TileShape shape;  // of gate and up, or of down
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  const ExpertItem* items = nullptr;
  const int32_t* item_begin = nullptr;
  const int32_t* item_end = nullptr;
  const int32_t* pairs = nullptr;
  int top_k = 0;
  const uint32_t* x = nullptr;
  int64_t x_words = 0;
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// This warp's item and tile; false: nothing to do.
struct Task {
  ExpertItem item;
  int64_t tile = 0;
  __device__ __forceinline__ bool take(const ExpertWork& work) {
    const int index = *work.item_begin + static_cast<int>(blockIdx.y);
    if (index >= *work.item_end) return false;
    tile = static_cast<int64_t>(blockIdx.x) * kTilesPerBlock + threadIdx.y;
    if (tile >= work.shape.row_tiles) return false;
    item = work.items[index];
    return true;
  }
};

__device__ __forceinline__ ExpertTrailer trailer_of(const ExpertWork& work, const std::byte* blob) {
  const float4 trailer = *reinterpret_cast<const float4*>(blob + work.trailer_offset);
  return {.gate_global = trailer.x, .up_global = trailer.y, .down_global = trailer.z};
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kWarp* kTilesPerBlock) void gate_up_kernel(const ExpertWork work) {
  Task task;
  if (!task.take(work)) return;
  const Place place(threadIdx.x);
  const std::byte* blob = task.item.blob;
  const Tile tiles[2] = {tile_of(work.shape, blob, task.tile), tile_of(work.shape, blob + work.up_offset, task.tile)};
  const ExpertTrailer trailer = trailer_of(work, blob);
  for_token_groups<kMost>(task.item.pair_count, [&](int64_t group, auto size) {
    constexpr int kTokens = size;
    int32_t pairs[kTokens];
    const uint32_t* x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      pairs[t] = work.pairs[task.item.pair_begin + group + t];
      x[t] = work.x + pairs[t] / work.top_k * work.x_words;
    }
    Sums<2, kTokens> sums;
    fold_tile<kFormat, 2, kTokens>(work.shape, tiles, 0, 1, place, x, sums);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const int64_t row = task.tile * kRowsPerTile + 2 * j;  // and the odd one, in the other half of the warp
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float g = f32::mul(f32::tree_sum(sums.acc[0][j][t]), trailer.gate_global);
        const float u = f32::mul(f32::tree_sum(sums.acc[1][j][t]), trailer.up_global);
        const uint32_t own = activation_bits(f32::mul(f32::silu(g), u));
        const uint32_t other = __shfl_down_sync(kFullWarp, own, kLanes);
        if (place.thread == 0 && row < work.shape.rows) {
          const uint32_t odd = row + 1 < work.shape.rows ? other : 0u;
          work.activated[pairs[t] * work.activated_words + activation_word(row)] = own | odd << 16;
        }
      }
    }
  });
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kWarp* kTilesPerBlock) void down_kernel(const ExpertWork work) {
  Task task;
  if (!task.take(work)) return;
  const Place place(threadIdx.x);
  const std::byte* blob = task.item.blob;
  const Tile tiles[1] = {tile_of(work.shape, blob + work.down_offset, task.tile)};
  const float global = trailer_of(work, blob).down_global;
  for_token_groups<kMost>(task.item.pair_count, [&](int64_t group, auto size) {
    constexpr int kTokens = size;
    int32_t pairs[kTokens];
    const uint32_t* x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      pairs[t] = work.pairs[task.item.pair_begin + group + t];
      x[t] = work.activated + pairs[t] * work.activated_words;
    }
    Sums<1, kTokens> sums;
    fold_tile<kFormat, 1, kTokens>(work.shape, tiles, 0, 1, place, x, sums);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
      const int64_t row = task.tile * kRowsPerTile + place.row(j);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float sum = f32::tree_sum(sums.acc[0][j][t]);
        if (place.lane == 0 && row < work.shape.rows) {
          work.out[pairs[t] * work.out_stride + row] = f32::mul(sum, global);
        }
      }
    }
  });
}

// residual = add(residual, merge of the pairs' rows in slot order), a thread an element.
constexpr int kMergeThreads = 256;
struct MergeWork {
  ExpertMerge merge;
  int top_k = 0;
  int64_t cols = 0;
  const float* rows = nullptr;
  int64_t rows_stride = 0;
};
__global__ __launch_bounds__(kMergeThreads) void merge_add_kernel(const MergeWork work) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  if (i >= work.cols) return;
  const int64_t token = blockIdx.y;
  float merged = 0.0f;
  for (int slot = 0; slot < work.top_k; ++slot) {
    const int64_t pair = token * work.top_k + slot;
    if (work.merge.ids[pair] < 0) break;
    merged = f32::fma(work.merge.weights[pair], work.rows[pair * work.rows_stride + i], merged);
  }
  float* to = work.merge.residual + token * work.merge.residual_stride + i;
  *to = f32::add(*to, merged);
}

ExpertWork expert_work(const ExpertArgs& args, const PackedLayout& matrix) {
  FT_CHECK(args.max_items <= kMaxGridY);
  return {.shape = tile_shape(matrix),
          .up_offset = args.layout.up_offset,
          .down_offset = args.layout.down_offset,
          .trailer_offset = args.layout.trailer_offset,
          .items = args.items,
          .item_begin = args.item_begin,
          .item_end = args.item_end,
          .pairs = args.pairs,
          .top_k = args.top_k,
          .x = args.x,
          .x_words = activation_words(args.layout.hidden),
          .activated = args.activated,
          .activated_words = activation_words(args.layout.intermediate),
          .out = args.out,
          .out_stride = args.out_stride};
}

dim3 grid_of(const ExpertWork& work, int max_items) {
  return {static_cast<unsigned>(ceil_div(work.shape.row_tiles, kTilesPerBlock)), static_cast<unsigned>(max_items)};
}

}  // namespace

void expert_gate_up(const ExpertArgs& args, StreamHandle stream) {
  if (args.max_items == 0) return;
  const ExpertWork work = expert_work(args, args.layout.gate);
  const dim3 grid = grid_of(work, args.max_items);
  with_format(args.layout.gate.format, [&]<FormatId kFormat>() {
    if (args.max_item_pairs == 1) {
      gate_up_kernel<kFormat, 1><<<grid, dim3(kWarp, kTilesPerBlock), 0, stream>>>(work);
    } else {
      gate_up_kernel<kFormat, kMaxTokensPerPass><<<grid, dim3(kWarp, kTilesPerBlock), 0, stream>>>(work);
    }
  });
  require_launched("expert_gate_up");
}

void expert_down(const ExpertArgs& args, StreamHandle stream) {
  if (args.max_items == 0) return;
  const ExpertWork work = expert_work(args, args.layout.down);
  const dim3 grid = grid_of(work, args.max_items);
  with_format(args.layout.down.format, [&]<FormatId kFormat>() {
    if (args.max_item_pairs == 1) {
      down_kernel<kFormat, 1><<<grid, dim3(kWarp, kTilesPerBlock), 0, stream>>>(work);
    } else {
      down_kernel<kFormat, kMaxTokensPerPass><<<grid, dim3(kWarp, kTilesPerBlock), 0, stream>>>(work);
    }
  });
  require_launched("expert_down");
}

void expert_down_merge(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  if (merge.tokens == 0) return;
  FT_CHECK(merge.tokens <= kMaxGridY);
  expert_down(args, stream);
  const MergeWork work{merge, args.top_k, args.layout.hidden, args.out, args.out_stride};
  const dim3 grid(static_cast<unsigned>(ceil_div(work.cols, kMergeThreads)), static_cast<unsigned>(merge.tokens));
  merge_add_kernel<<<grid, kMergeThreads, 0, stream>>>(work);
  require_launched("expert_down_merge");
}

}  // namespace ft::cuda
