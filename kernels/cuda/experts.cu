// Experts of one layer: gate and up with the activation between, then down, over a list of items that is in device
// memory. A block owns one row tile of one item, its warps share the blocks of k and stream them through rings of their
// own (tile_ring.cuh); thread blocks past the item count leave.
//
// Items come hits first, then fetches, and blocks take them from the end, so that the link starts at once and the hits
// are computed while warps of fetched items wait for it.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tile_ring.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

// Four warps: eight blocks of 256 k are two each, and the 1536 tiles of eight experts of 768 rows are all on the device.
constexpr int kWarps = 4;
constexpr int kStages = 4;
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

// [begin, end) of a fetched blob, whole words, by one warp.
__device__ __forceinline__ void copy_range(const ExpertItem& item, int64_t begin, int64_t end, int thread) {
  if ((begin | end) % 16 == 0) {
    for (int64_t at = begin + thread * 16; at < end; at += kWarp * 16) {
      *reinterpret_cast<uint4*>(item.copy_to + at) = *reinterpret_cast<const uint4*>(item.blob + at);
    }
    return;
  }
  for (int64_t at = begin + thread * 4; at < end; at += kWarp * 4) {
    *reinterpret_cast<uint32_t*>(item.copy_to + at) = *reinterpret_cast<const uint32_t*>(item.blob + at);
  }
}

// What no tile covers of the matrix at `begin`, up to `end`: between its codes and scales, and behind them.
__device__ __forceinline__ void copy_gaps(const ExpertItem& item, const TileShape& shape, int64_t begin, int64_t end,
                                          int thread) {
  const int64_t scales = begin + shape.scales_offset;
  copy_range(item, begin + shape.row_tiles * shape.code_bytes_per_tile, scales, thread);
  copy_range(item, scales + shape.row_tiles * shape.scale_bytes_per_tile, end, thread);
}
template <Part kPart>
__device__ __forceinline__ void copy_part_gaps(const ExpertWork& work, const ExpertItem& item, int thread) {
  if constexpr (kPart == Part::kGateUp) {
    copy_gaps(item, work.shape, 0, work.up_offset, thread);
    copy_gaps(item, work.shape, work.up_offset, work.down_offset, thread);
  } else {
    copy_gaps(item, work.shape, work.down_offset, work.bytes, thread);
  }
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
// wrote (the items) may be read by the one after without a wait of its own. Down does so: its weights are on their way
// while the last warps of gate and up still run.
template <FormatId kFormat, Part kPart, int kMost>
__global__ __launch_bounds__(kWarp* kWarps) void item_kernel(const __grid_constant__ ExpertWork work) {
  constexpr bool kGateUp = kPart == Part::kGateUp;
  constexpr int kCount = kMatrices<kPart>, kRingBytes = RingShape<kFormat, kCount, kStages>::kBytes;
  extern __shared__ uint4 shared[];
  if (kGateUp) wait_for_previous();
  let_next_start();
  const Place place(threadIdx.x);
  const auto warp = static_cast<int>(threadIdx.y);
  const int index = __ldcg(work.item_end) - 1 - static_cast<int>(blockIdx.y);
  const auto tile = static_cast<int>(blockIdx.x);
  if (index < __ldcg(work.item_begin)) {
    if (!kGateUp) wait_for_previous();
    return;
  }
  const ExpertItem item = load_item(work.items + index);
  auto* memory = reinterpret_cast<std::byte*>(shared);
  Tile from[kCount], to[kCount];
  tiles_of<kPart>(work, item.blob, tile, from);
  tiles_of<kPart>(work, item.copy_to, tile, to);
  TileRing<kFormat, kCount, kStages> ring(memory + warp * kRingBytes, work.shape, kWarps, place);
  ring.start(from, warp);
  const ExpertTrailer trailer = trailer_of(work, item.blob);
  const bool copies = item.copy_to != nullptr;
  if (copies && tile == work.shape.row_tiles - 1 && warp == kWarps - 1) {
    copy_part_gaps<kPart>(work, item, place.thread);
  }
  if (!kGateUp) wait_for_previous();
  if (item.pair_count == 0) {  // only copied
    for (int block = warp; block < work.shape.blocks; block += kWarps) {
      ring.take([&](const std::byte* stage) {
        if (copies) ring.store(stage, block, to);
      });
    }
    return;
  }
  for (int first = 0; first < item.pair_count; first += kMost) {
    const int tokens = min(item.pair_count - first, kMost);
    const int32_t* pairs = work.pairs + item.pair_begin + first;
    if (first > 0) {  // again, a fetched tile from its slot: this warp's stores, made visible to its copies
      __threadfence();
      __syncwarp();
      if (copies) {
        ring.start(to, warp);
      } else {
        ring.start(from, warp);
      }
    }
    with_tokens<kMost>(tokens, [&](auto count) {
      constexpr int kTokens = decltype(count)::value;
      const uint32_t* x[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int32_t pair = pairs[t < tokens ? t : 0];
        x[t] = work.x + (kGateUp ? pair / work.top_k : pair) * work.x_words;
      }
      SharedWalk<kCount, kTokens, kWarps> walk(memory + kWarps * kRingBytes, warp);
      walk.template run<kFormat>(ring, work.shape, place, x, [&](const std::byte* stage, int block) {
        if (copies && first == 0) ring.store(stage, block, to);
      });
      walk.for_sums([&](int j, int t, const float(&sums)[kCount]) {
        if (t >= tokens) return;
        if constexpr (kGateUp) {
          write_gate_up(work, trailer, tile, j, pairs[t], sums[0], sums[1], place);
        } else {
          write_down(work, trailer, tile, j, pairs[t], sums[0], place);
        }
      });
    });
  }
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
  constexpr int kCount = kMatrices<kPart>;
  constexpr int64_t kBytes =
      int64_t{kWarps} * RingShape<kFormat, kCount, kStages>::kBytes + SharedWalk<kCount, kMost, kWarps>::kBytes;
  const dim3 grid(static_cast<unsigned>(work.shape.row_tiles), static_cast<unsigned>(max_items));
  allow_shared(item_kernel<kFormat, kPart, kMost>, kBytes);
  launch(item_kernel<kFormat, kPart, kMost>, grid, dim3(kWarp, kWarps), static_cast<size_t>(kBytes), stream, work);
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
