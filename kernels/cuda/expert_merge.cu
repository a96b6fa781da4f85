// Down with the merge: a block owns one row tile of all items, a warp walks it for one item after the other (dot.cuh),
// so the rows of a token's pairs meet in shared memory and are added to the residual there. For steps whose activated
// rows fit there together; with more, rows of pairs and a launch that merges.
#include <algorithm>

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/expert_items.cuh"

namespace ft::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxPairs = 128;  // of a step that one launch serves: top-10 of eight tokens and more
struct MergeWork {
  ExpertWork expert;
  ExpertMerge merge;
  Divider by_tile_vectors, by_tile_scale_words;  // 16 bytes of a tile's codes, 4 of its scales
};

// What a block keeps of the step.
struct Lists {
  ExpertItem items[kMaxPairs];
  float globals[kMaxPairs];
  int row_begin[kMaxPairs + 1];  // rows of the items before this one
  int fetched[kMaxPairs];        // items with copy_to
  int fetched_count;
  int32_t pair_of_row[kMaxPairs];
  int32_t ids[kMaxPairs];
  float weights[kMaxPairs];
  float y[kMaxPairs][kRowsPerTile];  // of pairs
};

// All of it was written before the kernel before this one started, which waited for it (experts.cu, gate and up).
__device__ __forceinline__ int read_lists(const MergeWork& work, Lists& lists, const BlockThread& at) {
  const ExpertWork& expert = work.expert;
  const int begin = __ldcg(expert.item_begin), count = min(__ldcg(expert.item_end) - begin, kMaxPairs);
  for (int i = at.thread; i < count; i += at.threads) {
    const ExpertItem item = load_item(expert.items + begin + i);
    lists.items[i] = item;
    lists.globals[i] = trailer_of(expert, item.blob).down_global;
  }
  const int pairs = static_cast<int>(work.merge.tokens) * expert.top_k;
  for (int i = at.thread; i < pairs; i += at.threads) {
    lists.ids[i] = __ldcg(work.merge.ids + i);
    lists.weights[i] = __ldcg(work.merge.weights + i);
  }
  __syncthreads();
  for (int i = at.thread; i <= count; i += at.threads) {
    int row = 0;
    for (int before = 0; before < i; ++before) row += lists.items[before].pair_count;
    lists.row_begin[i] = row;
    if (i == count) continue;
    const ExpertItem& item = lists.items[i];
    for (int t = 0; t < item.pair_count; ++t) {
      lists.pair_of_row[row + t] = __ldcg(expert.pairs + item.pair_begin + t);
    }
  }
  if (at.warp == 0) {
    int fetched = 0;
    for (int first = 0; first < count; first += kWarp) {
      const int i = first + at.thread;
      const bool own = i < count && lists.items[i].copy_to != nullptr;
      const unsigned mask = __ballot_sync(kFullWarp, own);
      if (own) lists.fetched[fetched + __popc(mask & ((1u << at.thread) - 1u))] = i;
      fetched += __popc(mask);
    }
    if (at.thread == 0) lists.fetched_count = fetched;
  }
  __syncthreads();
  return count;
}

// This block's tile of all fetched items, side by side, then what only the last tile has to copy.
__device__ __forceinline__ void copy_fetched(const MergeWork& work, Lists& lists, int tile, const BlockThread& at) {
  const ExpertWork& expert = work.expert;
  const TileShape& shape = expert.shape;
  const int64_t codes = expert.down_offset + tile * shape.code_bytes_per_tile;
  const auto vectors = static_cast<int>(work.by_tile_vectors.divisor);
#pragma unroll 2
  for (int i = at.thread; i < lists.fetched_count * vectors; i += at.threads) {
    const int number = work.by_tile_vectors.quotient(i);
    const ExpertItem& item = lists.items[lists.fetched[number]];
    const int64_t offset = codes + int64_t{work.by_tile_vectors.rest(i, number)} * 16;
    *reinterpret_cast<uint4*>(item.copy_to + offset) = load_fetched(reinterpret_cast<const uint4*>(item.blob + offset));
  }
  if (shape.scale_bytes_per_tile > 0) {
    const int64_t scales = expert.down_offset + shape.scales_offset + tile * shape.scale_bytes_per_tile;
    const auto words = static_cast<int>(work.by_tile_scale_words.divisor);
    for (int i = at.thread; i < lists.fetched_count * words; i += at.threads) {
      const int number = work.by_tile_scale_words.quotient(i);
      const ExpertItem& item = lists.items[lists.fetched[number]];
      const int64_t offset = scales + int64_t{work.by_tile_scale_words.rest(i, number)} * 4;
      *reinterpret_cast<uint32_t*>(item.copy_to + offset) =
          load_fetched(reinterpret_cast<const uint32_t*>(item.blob + offset));
    }
  }
  if (tile + 1 == shape.row_tiles) {
    const int64_t code_end = codes + shape.code_bytes_per_tile;
    const int64_t scale_begin = expert.down_offset + shape.scales_offset;
    const int64_t scale_end = scale_begin + shape.row_tiles * shape.scale_bytes_per_tile;
    for (int i = 0; i < lists.fetched_count; ++i) {
      const ExpertItem& item = lists.items[lists.fetched[i]];
      if (shape.scale_bytes_per_tile > 0) copy_range(item, code_end, scale_begin, at);
      copy_range(item, shape.scale_bytes_per_tile > 0 ? scale_end : code_end, expert.bytes, at);
    }
  }
  __syncthreads();
  for (int i = at.thread; i < lists.fetched_count; i += at.threads) {
    ExpertItem& item = lists.items[lists.fetched[i]];
    item.blob = item.copy_to;
  }
  __syncthreads();
}

// This warp's rows of all items: `words` has the first blocks of the first of them.
template <FormatId kFormat, int kMost, int kAhead>
__device__ __forceinline__ void multiply(BlockWords<kFormat, 1> (&words)[kAhead], const MergeWork& work, Lists& lists,
                                         int count, bool scaled, const StagedRows<kFormat>& rows,
                                         const BlockThread& at) {
  const ExpertWork& expert = work.expert;
  for (int item = at.warp; item < count; item += at.warps) {
    const int first = lists.row_begin[item], tokens = lists.row_begin[item + 1] - first;
    const Unit<kFormat> tile[1] = {
        {expert.shape, lists.items[item].blob + expert.down_offset, static_cast<int>(blockIdx.x), 0}};
    if (item != at.warp) load_row(words, tile, expert.shape, at);
    if (tokens == 0) continue;
    with_tokens<kMost>(tokens, [&](auto size) {
      constexpr int kTokens = decltype(size)::value;
      int offsets[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) offsets[t] = (first + (t < tokens ? t : 0)) * rows.stride;
      Sums<1, kTokens> sums;
      fold_row(scaled, words, tile, expert.shape, at, rows, offsets, sums);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t >= tokens) break;
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          const float sum = f32::tree_sum(sums.acc[0][j][t]);
          if (at.lane == 0) lists.y[lists.pair_of_row[first + t]][2 * j + at.half] = f32::mul(sum, lists.globals[item]);
        }
      }
    });
  }
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kMaxThreads,
                             kMost == 1 ? 3 : 2) void merge_kernel(const __grid_constant__ MergeWork work) {
  extern __shared__ uint4 shared[];
  __shared__ uint4 list_space[ceil_div(sizeof(Lists), sizeof(uint4))];
  Lists& lists = *reinterpret_cast<Lists*>(list_space);
  let_next_start();
  const BlockThread at;
  const ExpertWork& expert = work.expert;
  const int tile = static_cast<int>(blockIdx.x);
  const int count = read_lists(work, lists, at);
  if (lists.fetched_count > 0) copy_fetched(work, lists, tile, at);
  BlockWords<kFormat, 1> words[kBlocksAhead<kFormat, 1, kMost>];
  if (at.warp < count) {
    const Unit<kFormat> first[1] = {{expert.shape, lists.items[at.warp].blob + expert.down_offset, tile, 0}};
    load_row(words, first, expert.shape, at);
  }
  wait_for_previous();

  const auto tokens = static_cast<int>(work.merge.tokens);
  const int token = at.thread / kRowsPerTile;
  const int64_t row = int64_t{tile} * kRowsPerTile + at.thread % kRowsPerTile;
  const bool merges = token < tokens && row < expert.shape.rows;
  float* residual = work.merge.residual + token * work.merge.residual_stride + row;
  const float before = merges ? *residual : 0.0f;

  const StagedRows<kFormat> rows{shared, expert.shape.blocks * StagedRows<kFormat>::kBlockVectors};
  const bool scaled = stage_rows(expert, lists.row_begin[count], rows, at, [&](int i) { return lists.pair_of_row[i]; });
  multiply<kFormat, kMost>(words, work, lists, count, scaled, rows, at);
  __syncthreads();
  if (!merges) return;
  float merged = 0.0f;
  for (int slot = 0; slot < expert.top_k; ++slot) {
    const int pair = token * expert.top_k + slot;
    if (lists.ids[pair] < 0) break;
    merged = f32::fma(lists.weights[pair], lists.y[pair][at.thread % kRowsPerTile], merged);
  }
  *residual = f32::add(before, merged);
}

// False: the activated rows of all pairs do not fit a block's shared memory.
template <FormatId kFormat, int kMost>
bool launch_merge(const MergeWork& work, const ExpertArgs& args, StreamHandle stream) {
  const int64_t bytes = work.merge.tokens * args.top_k * staged_row_bytes<kFormat>(work.expert.shape.blocks);
  if (bytes > kMaxSharedBytes / 2) return false;
  const int64_t warps = std::min<int64_t>(kMaxThreads / kWarp, args.max_items);
  allow_shared(merge_kernel<kFormat, kMost>, bytes);
  launch(merge_kernel<kFormat, kMost>, dim3(static_cast<unsigned>(work.expert.shape.row_tiles)),
         dim3(static_cast<unsigned>(warps * kWarp)), static_cast<size_t>(bytes), stream, work);
  return true;
}

// residual = add(residual, merge of the pairs' rows in slot order), a thread an element.
constexpr int kRowThreads = 256;
__global__ __launch_bounds__(kRowThreads) void merge_rows_kernel(const __grid_constant__ MergeWork work) {
  let_next_start();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= work.expert.shape.rows) return;
  const int64_t token = blockIdx.y;
  float merged = 0.0f;
  for (int slot = 0; slot < work.expert.top_k; ++slot) {
    const int64_t pair = token * work.expert.top_k + slot;
    if (work.merge.ids[pair] < 0) break;
    merged = f32::fma(work.merge.weights[pair], work.expert.out[pair * work.expert.out_stride + i], merged);
  }
  float* to = work.merge.residual + token * work.merge.residual_stride + i;
  *to = f32::add(*to, merged);
}

}  // namespace

void expert_down_merge(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  if (merge.tokens == 0) return;
  FT_CHECK(merge.tokens <= kMaxGridY);
  const PackedLayout& down = args.layout.down;
  MergeWork work;
  work.expert = expert_work(args, down, args.activated);
  work.merge = merge;
  work.by_tile_vectors = Divider(down.code_bytes_per_tile / 16);
  work.by_tile_scale_words = Divider(std::max<int64_t>(1, down.scale_bytes_per_tile / 4));
  if (merge.tokens <= kMaxTokensPerPass && merge.tokens * args.top_k <= kMaxPairs && args.max_items > 0 &&
      args.max_items <= kMaxPairs) {
    bool launched = false;
    with_format(down.format, [&]<FormatId kFormat>() {
      launched = merge.tokens == 1 ? launch_merge<kFormat, 1>(work, args, stream)
                                   : launch_merge<kFormat, kMaxTokensPerPass>(work, args, stream);
    });
    if (launched) return;
  }
  expert_down(args, stream);
  const dim3 grid(static_cast<unsigned>(ceil_div(down.rows, kRowThreads)), static_cast<unsigned>(merge.tokens));
  launch(merge_rows_kernel, grid, dim3(kRowThreads), 0, stream, work);
}

}  // namespace ft::cuda
