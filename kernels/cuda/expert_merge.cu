// Down with the merge: a block owns one row tile of all items, so the rows of a token's pairs meet in its shared memory
// and are added to the residual there. For steps of a few tokens; with more, rows of pairs and a launch that merges.
#include <algorithm>

#include "kernels/cuda/expert_items.cuh"

namespace ft::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxPairs = 128;  // of a step that one launch serves: top-10 of eight tokens and more
// Items are worked on in chunks of at most so many units and rows of pairs, where shared memory allows; a chunk of one
// token's eight experts of 768 is 24 units.
constexpr int64_t kChunkUnits = 64;
constexpr int64_t kChunkRows = 16;

struct MergeWork {
  ExpertWork expert;
  ExpertMerge merge;
  Divider by_tile_vectors, by_tile_scale_words;  // 16 bytes of a tile's codes, 4 of its scales
  int chunk_items = 0, chunk_rows = 0;
  int cells_at = 0;
};

// What a block keeps of the step.
struct Lists {
  ExpertItem items[kMaxPairs];
  float globals[kMaxPairs];
  int row_begin[kMaxPairs + 1];  // rows of the items before this one
  int fetched[kMaxPairs];        // items with copy_to
  int fetched_count;
  int32_t pair_of_row[kMaxPairs];
  uint8_t item_of_row[kMaxPairs];
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
      lists.item_of_row[row + t] = static_cast<uint8_t>(i);
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

// Items [begin, end) of a chunk.
struct Chunk {
  int begin = 0, end = 0;
};
__device__ __forceinline__ Chunk chunk_from(const MergeWork& work, const Lists& lists, int begin, int count) {
  const int most = min(count, begin + work.chunk_items);
  int end = min(begin + 1, most);
  while (end < most && lists.row_begin[end + 1] - lists.row_begin[begin] <= work.chunk_rows) ++end;
  return {begin, end};
}

template <FormatId kFormat, int kUnits>
__device__ __forceinline__ void load_pass(UnitWords<kFormat> (&words)[kUnits], const MergeWork& work,
                                          const Lists& lists, const Chunk& chunk, int base, const BlockThread& at) {
  const ExpertWork& expert = work.expert;
  load_units(words, base, (chunk.end - chunk.begin) * expert.shape.blocks, expert.shape, at, [&](int u) {
    const int item = expert.by_blocks.quotient(u);
    return Unit<kFormat>(expert.shape, lists.items[chunk.begin + item].blob + expert.down_offset,
                         static_cast<int>(blockIdx.x), expert.by_blocks.rest(u, item));
  });
}

// One pass of a chunk: `words` has it.
template <FormatId kFormat, int kMost, int kUnits>
__device__ __forceinline__ void put_pass(const UnitWords<kFormat> (&words)[kUnits], const MergeWork& work,
                                         const Lists& lists, const Chunk& chunk, int base, bool scaled,
                                         const StagedRows<kFormat>& rows, const Cells<kFormat, kMost>& cells,
                                         const BlockThread& at) {
  const ExpertWork& expert = work.expert;
  const int units = (chunk.end - chunk.begin) * expert.shape.blocks;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int own = unit_number(at, base, i);
    if (own - at.half >= units) continue;
    const int item = chunk.begin + expert.by_blocks.quotient(own < units ? own : own - 1);
    const int count = lists.row_begin[item + 1] - lists.row_begin[item];
    const int most = max(count, __shfl_xor_sync(kFullWarp, count, kLanes));
    with_tokens<kMost>(most, [&](auto tokens) {
      constexpr int kTokens = decltype(tokens)::value;
      put_products<kFormat, kMost, kTokens, kUnits>(
          words[i], own, units, scaled, at, cells, [&](int u, int(&offset)[kTokens]) {
            const int first = count == 0 ? 0 : lists.row_begin[item] - lists.row_begin[chunk.begin];
#pragma unroll
            for (int t = 0; t < kTokens; ++t) offset[t] = (t < count ? first + t : first) * rows.stride;
            return rows.at(u - (item - chunk.begin) * expert.shape.blocks, at.lane);
          });
    });
  }
}

template <FormatId kFormat, int kMost>
__device__ __forceinline__ void fold_chunk(const MergeWork& work, Lists& lists, const Chunk& chunk,
                                           const Cells<kFormat, kMost>& cells, const BlockThread& at) {
  const int blocks = work.expert.shape.blocks, first_row = lists.row_begin[chunk.begin];
  for (int i = at.warp; i < (lists.row_begin[chunk.end] - first_row) * 2; i += at.warps) {
    const int row_of_pairs = first_row + i / 2, row = i % 2 * 2 + at.half, item = lists.item_of_row[row_of_pairs];
    const int t = row_of_pairs - lists.row_begin[item];
    const float acc = cells.fold((item - chunk.begin) * blocks, blocks, t, row, at.lane, 0.0f);
    const float sum = f32::tree_sum(acc);
    if (at.lane == 0) lists.y[lists.pair_of_row[row_of_pairs]][row] = f32::mul(sum, lists.globals[item]);
  }
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kMaxThreads,
                             kMost == 1 ? 4 : 2) void merge_kernel(const __grid_constant__ MergeWork work) {
  constexpr int kUnits = kUnitsAhead<kFormat, kMost>;
  extern __shared__ uint4 shared[];
  __shared__ uint4 list_space[ceil_div(sizeof(Lists), sizeof(uint4))];
  Lists& lists = *reinterpret_cast<Lists*>(list_space);
  let_next_start();
  const BlockThread at;
  const ExpertWork& expert = work.expert;
  const int tile = static_cast<int>(blockIdx.x);
  const int count = read_lists(work, lists, at);
  if (lists.fetched_count > 0) copy_fetched(work, lists, tile, at);
  Chunk chunk = chunk_from(work, lists, 0, count);
  UnitWords<kFormat> words[kUnits];
  load_pass(words, work, lists, chunk, 0, at);
  wait_for_previous();

  const auto tokens = static_cast<int>(work.merge.tokens);
  const int token = at.thread / kRowsPerTile;
  const int64_t row = int64_t{tile} * kRowsPerTile + at.thread % kRowsPerTile;
  const bool merges = token < tokens && row < expert.shape.rows;
  float* residual = work.merge.residual + token * work.merge.residual_stride + row;
  const float before = merges ? *residual : 0.0f;

  const StagedRows<kFormat> rows{shared, expert.shape.blocks * StagedRows<kFormat>::kBlockVectors};
  const Cells<kFormat, kMost> cells{reinterpret_cast<float*>(shared) + work.cells_at};
  while (chunk.begin < count) {
    const int first_row = lists.row_begin[chunk.begin];
    const bool scaled = stage_rows(expert, lists.row_begin[chunk.end] - first_row, rows, at,
                                   [&](int i) { return lists.pair_of_row[first_row + i]; });
    const int units = (chunk.end - chunk.begin) * expert.shape.blocks, pass = units_per_pass<kUnits>(at);
    const Chunk next = chunk_from(work, lists, chunk.end, count);
    for (int base = 0; base < units; base += pass) {
      put_pass<kFormat, kMost>(words, work, lists, chunk, base, scaled, rows, cells, at);
      if (base + pass < units) {
        load_pass(words, work, lists, chunk, base + pass, at);
      } else {
        load_pass(words, work, lists, next, 0, at);
      }
    }
    __syncthreads();
    fold_chunk<kFormat, kMost>(work, lists, chunk, cells, at);
    __syncthreads();
    chunk = next;
  }
  if (!merges) return;
  float merged = 0.0f;
  for (int slot = 0; slot < expert.top_k; ++slot) {
    const int pair = token * expert.top_k + slot;
    if (lists.ids[pair] < 0) break;
    merged = f32::fma(lists.weights[pair], lists.y[pair][at.thread % kRowsPerTile], merged);
  }
  *residual = f32::add(before, merged);
}

// Whether one launch can serve the step; `work` gets its sizes.
template <FormatId kFormat, int kMost>
bool launch_merge(MergeWork work, const ExpertArgs& args, StreamHandle stream) {
  constexpr int kUnits = kUnitsAhead<kFormat, kMost>;
  const int64_t blocks = work.expert.shape.blocks, row_bytes = staged_row_bytes<kFormat>(blocks);
  int64_t items = std::clamp<int64_t>((kMost == 1 ? kChunkUnits : kChunkUnits / 4) / blocks, 1, args.max_items);
  int64_t rows = kMost == 1 ? items : std::max<int64_t>(kMost, kChunkRows);
  const auto bytes = [&] { return rows * row_bytes + cell_bytes<kFormat, kMost>(items * blocks); };
  while (bytes() > kMaxSharedBytes / 2 && items > 1) {
    --items;
    if (kMost == 1) rows = items;
  }
  if (kMost > 1 && bytes() > kMaxSharedBytes / 2) rows = kMost;
  if (bytes() + static_cast<int64_t>(sizeof(Lists)) > kMaxSharedBytes) return false;
  work.chunk_items = static_cast<int>(items);
  work.chunk_rows = static_cast<int>(rows);
  work.cells_at = static_cast<int>(rows * row_bytes / 4);
  // As many warps as make whole passes, so that blocks are small and all of them are resident at once.
  const int64_t units = items * blocks, passes = ceil_div(units, kMaxThreads / kLanes * kUnits);
  const int64_t warps = ceil_div(units, 2 * kUnits * passes);
  allow_shared(merge_kernel<kFormat, kMost>, bytes());
  launch(merge_kernel<kFormat, kMost>, dim3(static_cast<unsigned>(work.expert.shape.row_tiles)),
         dim3(static_cast<unsigned>(warps * kWarp)), static_cast<size_t>(bytes()), stream, work);
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
