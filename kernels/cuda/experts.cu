// Experts of one layer, rows of pairs: gate and up with the activation between, and down for the callers that merge
// later. A block owns a stretch of row tiles of one item; blocks past the item count leave.
//
// Items come hits first, then fetches, and blocks take them from the end, so that the link starts at once and the hits
// are computed while blocks of fetched items wait for it.
#include <algorithm>

#include "kernels/cuda/expert_items.cuh"

namespace ft::cuda {
namespace {

constexpr int kMaxThreads = 512;
// Units of a block at least, times kUnitsAhead: 16 is 8 warps and, for gate and up of 2048 k, one row tile.
constexpr int64_t kBlockUnits = 16;
// One row of activations and the cells of one tile of gate and up are at most 6.5 bytes a column: 91 KiB.
constexpr int64_t kMaxExpertCols = int64_t{14} << 10;

enum class Part { kGateUp, kDown };

// What a block does: item, its tiles, and where its matrices are.
struct Task {
  ExpertItem item;
  const std::byte* blob = nullptr;  // where the weights are read: the slot's once they are there
  int tile = 0, tiles = 0;
};

template <Part kPart>
struct Matrices {
  static constexpr int kCount = kPart == Part::kGateUp ? 2 : 1;
};

// Unit u: block of k, then matrix, then tile.
template <FormatId kFormat, Part kPart>
struct UnitPlace {
  int block, matrix, tile;
  __device__ __forceinline__ UnitPlace(const ExpertWork& work, int u) {
    const int row = work.by_blocks.quotient(u);
    block = work.by_blocks.rest(u, row);
    matrix = kPart == Part::kGateUp ? row % 2 : 0;
    tile = kPart == Part::kGateUp ? row / 2 : row;
  }
  __device__ __forceinline__ Unit<kFormat> unit(const ExpertWork& work, const Task& task) const {
    const int64_t offset = kPart == Part::kDown ? work.down_offset : matrix == 0 ? 0 : work.up_offset;
    return Unit<kFormat>(work.shape, task.blob + offset, task.tile + tile, block);
  }
};

template <Part kPart>
__device__ __forceinline__ void copy_part(const ExpertWork& work, const Task& task, const BlockThread& at) {
  if constexpr (kPart == Part::kGateUp) {
    copy_tiles(task.item, work.shape, 0, work.up_offset, task.tile, task.tiles, at);
    copy_tiles(task.item, work.shape, work.up_offset, work.down_offset, task.tile, task.tiles, at);
  } else {
    copy_tiles(task.item, work.shape, work.down_offset, work.bytes, task.tile, task.tiles, at);
  }
}

template <FormatId kFormat, Part kPart, int kUnits>
__device__ __forceinline__ void load_pass(UnitWords<kFormat> (&words)[kUnits], const ExpertWork& work, const Task& task,
                                          int base, const BlockThread& at) {
  const int units = task.tiles * Matrices<kPart>::kCount * work.shape.blocks;
  load_units(words, base, units, work.shape, at,
             [&](int u) { return UnitPlace<kFormat, kPart>(work, u).unit(work, task); });
}

// Products of the task's units with `tokens` rows that are staged, into the cells; `words` has the first pass. Ends
// with a barrier.
template <FormatId kFormat, Part kPart, int kMost, int kTokens, int kUnits>
__device__ __forceinline__ void multiply(UnitWords<kFormat> (&words)[kUnits], const ExpertWork& work, const Task& task,
                                         int tokens, bool scaled, const StagedRows<kFormat>& rows,
                                         const Cells<kFormat, kMost>& cells, const BlockThread& at) {
  const int units = task.tiles * Matrices<kPart>::kCount * work.shape.blocks, pass = units_per_pass<kUnits>(at);
  for (int base = 0; base < units; base += pass) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int own = unit_number(at, base, i);
      if (own - at.half >= units) continue;
      put_products<kFormat, kMost, kTokens, kUnits>(words[i], own, units, scaled, at, cells,
                                                    [&](int u, int(&offset)[kTokens]) {
#pragma unroll
                                                      for (int t = 0; t < kTokens; ++t) {
                                                        offset[t] = (t < tokens ? t : 0) * rows.stride;
                                                      }
                                                      return rows.at(UnitPlace<kFormat, kPart>(work, u).block, at.lane);
                                                    });
    }
    if (base + pass < units) load_pass<kFormat, kPart>(words, work, task, base + pass, at);
  }
  __syncthreads();
}

// Two rows of one tile of gate and up, folded by one warp: one word of the activated row.
template <class Cells>
__device__ __forceinline__ void fold_gate_up(const ExpertWork& work, const Task& task, const ExpertTrailer& trailer,
                                             const Cells& cells, int tile, int t, int two, int32_t pair,
                                             const BlockThread& at) {
  const int blocks = work.shape.blocks, row_of_tile = 2 * two + at.half;
  const float gate = cells.fold(2 * tile * blocks, blocks, t, row_of_tile, at.lane, 0.0f);
  const float up = cells.fold((2 * tile + 1) * blocks, blocks, t, row_of_tile, at.lane, 0.0f);
  const float g = f32::mul(f32::tree_sum(gate), trailer.gate_global);
  const float u = f32::mul(f32::tree_sum(up), trailer.up_global);
  const uint32_t own = activation_bits(f32::mul(f32::silu(g), u));
  const uint32_t other = __shfl_down_sync(kFullWarp, own, kLanes);
  const int64_t row = int64_t{task.tile + tile} * kRowsPerTile + 2 * two;
  if (at.half == 0 && at.lane == 0 && row < work.shape.rows) {
    const uint32_t odd = row + 1 < work.shape.rows ? other : 0u;
    work.activated[pair * work.activated_words + activation_word(row)] = own | odd << 16;
  }
}

template <class Cells>
__device__ __forceinline__ void fold_down(const ExpertWork& work, const Task& task, const ExpertTrailer& trailer,
                                          const Cells& cells, int tile, int t, int two, int32_t pair,
                                          const BlockThread& at) {
  const int blocks = work.shape.blocks, row_of_tile = 2 * two + at.half;
  const float sum = f32::tree_sum(cells.fold(tile * blocks, blocks, t, row_of_tile, at.lane, 0.0f));
  const int64_t row = int64_t{task.tile + tile} * kRowsPerTile + row_of_tile;
  if (at.lane == 0 && row < work.shape.rows) {
    work.out[pair * work.out_stride + row] = f32::mul(sum, trailer.down_global);
  }
}

// Gate and up let the kernel after them start once they have waited: then the one before has ended, and what that one
// wrote (the items) may be read by the one after without a wait of its own. Down does so: it copies its parts of
// fetched items, and has its weights on their way, while the last blocks of gate and up still run.
template <FormatId kFormat, Part kPart, int kMost>
__global__ __launch_bounds__(kMaxThreads, kMost == 1 ? 2 : 1) void item_kernel(const __grid_constant__ ExpertWork work,
                                                                               int cells_at) {
  constexpr int kUnits = kUnitsAhead<kFormat, kMost>;
  extern __shared__ uint4 shared[];
  if (kPart == Part::kGateUp) wait_for_previous();
  let_next_start();
  const BlockThread at;
  const int begin = __ldcg(work.item_begin), index = __ldcg(work.item_end) - 1 - static_cast<int>(blockIdx.y);
  if (index < begin) {
    if (kPart == Part::kDown) wait_for_previous();
    return;
  }
  Task task;
  task.item = load_item(work.items + index);
  task.blob = task.item.blob;
  task.tile = static_cast<int>(blockIdx.x) * work.tiles_per_block;
  task.tiles = min(static_cast<int>(work.shape.row_tiles) - task.tile, work.tiles_per_block);
  const ExpertTrailer trailer = trailer_of(work, task.blob);
  if (task.item.copy_to != nullptr) {
    copy_part<kPart>(work, task, at);
    task.blob = copied(task.item);
  }
  UnitWords<kFormat> words[kUnits];
  if (task.item.pair_count > 0) load_pass<kFormat, kPart>(words, work, task, 0, at);
  if (kPart == Part::kDown) wait_for_previous();

  const StagedRows<kFormat> rows{shared, work.shape.blocks * StagedRows<kFormat>::kBlockVectors};
  const Cells<kFormat, kMost> cells{reinterpret_cast<float*>(shared) + cells_at};
  for (int first = 0; first < task.item.pair_count; first += kMost) {
    const int tokens = min(task.item.pair_count - first, kMost);
    const int32_t* pairs = work.pairs + task.item.pair_begin + first;
    const bool scaled = stage_rows(work, tokens, rows, at,
                                   [&](int t) { return kPart == Part::kGateUp ? pairs[t] / work.top_k : pairs[t]; });
    if (first > 0) load_pass<kFormat, kPart>(words, work, task, 0, at);
    with_tokens<kMost>(tokens, [&](auto count) {
      multiply<kFormat, kPart, kMost, decltype(count)::value>(words, work, task, tokens, scaled, rows, cells, at);
    });
    for (int i = at.warp; i < task.tiles * tokens * 2; i += at.warps) {
      const int two = i % 2, t = i / 2 % tokens, tile = i / 2 / tokens;
      if constexpr (kPart == Part::kGateUp) {
        fold_gate_up(work, task, trailer, cells, tile, t, two, pairs[t], at);
      } else {
        fold_down(work, task, trailer, cells, tile, t, two, pairs[t], at);
      }
    }
    __syncthreads();  // the next rows are staged, the next sums put
  }
}

template <FormatId kFormat, Part kPart, int kMost>
void launch_items(ExpertWork work, int max_items, StreamHandle stream) {
  constexpr int kUnits = kUnitsAhead<kFormat, kMost>;
  const int64_t units_per_tile = int64_t{work.shape.blocks} * Matrices<kPart>::kCount;
  work.tiles_per_block =
      static_cast<int>(std::clamp<int64_t>(kBlockUnits * kUnits / units_per_tile, 1, work.shape.row_tiles));
  const int64_t units = units_per_tile * work.tiles_per_block;
  const int64_t warps = std::clamp<int64_t>(ceil_div(units, 2 * kUnits), 1, kMaxThreads / kWarp);
  const int64_t staged = kMost * staged_row_bytes<kFormat>(work.shape.blocks);
  const int64_t bytes = staged + cell_bytes<kFormat, kMost>(units);
  if constexpr (kMost > 1) {  // rows too long for eight at a time: one by one
    if (bytes > kMaxSharedBytes) return launch_items<kFormat, kPart, 1>(work, max_items, stream);
  }
  FT_CHECK(bytes <= kMaxSharedBytes);
  const dim3 grid(static_cast<unsigned>(ceil_div(work.shape.row_tiles, work.tiles_per_block)),
                  static_cast<unsigned>(max_items));
  allow_shared(item_kernel<kFormat, kPart, kMost>, bytes);
  launch(item_kernel<kFormat, kPart, kMost>, grid, dim3(static_cast<unsigned>(warps * kWarp)),
         static_cast<size_t>(bytes), stream, work, static_cast<int>(staged / 4));
}

template <Part kPart>
void launch_part(const ExpertArgs& args, const PackedLayout& matrix, const uint32_t* x, StreamHandle stream) {
  if (args.max_items == 0) return;
  FT_CHECK(args.max_items <= kMaxGridY);
  if (matrix.cols > kMaxExpertCols) {
    throw Error(ErrorKind::kFailed, {.what = "an expert's product over too many values for a device's shared memory",
                                     .value = std::to_string(matrix.cols),
                                     .allowed = "at most " + std::to_string(kMaxExpertCols)});
  }
  const ExpertWork work = expert_work(args, matrix, x);
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

}  // namespace ft::cuda
