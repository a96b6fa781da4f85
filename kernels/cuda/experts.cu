// Experts of one layer, rows of pairs: gate and up with the activation between, and down for the callers that merge
// later. A block owns a few row tiles of one item, a warp one of them (dot.cuh); blocks past the item count leave.
//
// Items come hits first, then fetches, and blocks take them from the end, so that the link starts at once and the hits
// are computed while blocks of fetched items wait for it.
#include <algorithm>

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/expert_items.cuh"

namespace ft::cuda {
namespace {

constexpr int kTilesPerBlock = 4;
constexpr int kThreads = kTilesPerBlock * kWarp;
// One row of activations is staged whole, two bytes a column: 32 KiB.
constexpr int64_t kMaxExpertCols = int64_t{16} << 10;

enum class Part { kGateUp, kDown };
template <Part kPart>
inline constexpr int kMatrices = kPart == Part::kGateUp ? 2 : 1;

template <Part kPart>
__device__ __forceinline__ void copy_part(const ExpertWork& work, const ExpertItem& item, int tile, int tiles,
                                          const BlockThread& at) {
  if constexpr (kPart == Part::kGateUp) {
    copy_tiles(item, work.shape, 0, work.up_offset, tile, tiles, at);
    copy_tiles(item, work.shape, work.up_offset, work.down_offset, tile, tiles, at);
  } else {
    copy_tiles(item, work.shape, work.down_offset, work.bytes, tile, tiles, at);
  }
}

// Two rows of one tile of gate and up: one word of the activated row.
template <int kTokens>
__device__ __forceinline__ void write_gate_up(const ExpertWork& work, const ExpertTrailer& trailer, int tile, int j,
                                              int t, int32_t pair, const Sums<2, kTokens>& sums,
                                              const BlockThread& at) {
  const float g = f32::mul(f32::tree_sum(sums.acc[0][j][t]), trailer.gate_global);
  const float u = f32::mul(f32::tree_sum(sums.acc[1][j][t]), trailer.up_global);
  const uint32_t own = activation_bits(f32::mul(f32::silu(g), u));
  const uint32_t other = __shfl_down_sync(kFullWarp, own, kLanes);
  const int64_t row = int64_t{tile} * kRowsPerTile + 2 * j;
  if (at.half == 0 && at.lane == 0 && row < work.shape.rows) {
    const uint32_t odd = row + 1 < work.shape.rows ? other : 0u;
    work.activated[pair * work.activated_words + activation_word(row)] = own | odd << 16;
  }
}

template <int kTokens>
__device__ __forceinline__ void write_down(const ExpertWork& work, const ExpertTrailer& trailer, int tile, int j, int t,
                                           int32_t pair, const Sums<1, kTokens>& sums, const BlockThread& at) {
  const float sum = f32::tree_sum(sums.acc[0][j][t]);
  const int64_t row = int64_t{tile} * kRowsPerTile + 2 * j + at.half;
  if (at.lane == 0 && row < work.shape.rows) {
    work.out[pair * work.out_stride + row] = f32::mul(sum, trailer.down_global);
  }
}

// Gate and up let the kernel after them start once they have waited: then the one before has ended, and what that one
// wrote (the items) may be read by the one after without a wait of its own. Down does so: it copies its parts of
// fetched items, and has its weights on their way, while the last blocks of gate and up still run.
template <FormatId kFormat, Part kPart, int kMost>
__global__ __launch_bounds__(kThreads, kMost == 1 ? 5 : 3) void item_kernel(const __grid_constant__ ExpertWork work) {
  constexpr int kCount = kMatrices<kPart>, kAhead = kBlocksAhead<kFormat, kCount, kMost>;
  extern __shared__ uint4 shared[];
  if (kPart == Part::kGateUp) wait_for_previous();
  let_next_start();
  const BlockThread at;
  const int begin = __ldcg(work.item_begin), index = __ldcg(work.item_end) - 1 - static_cast<int>(blockIdx.y);
  if (index < begin) {
    if (kPart == Part::kDown) wait_for_previous();
    return;
  }
  const ExpertItem item = load_item(work.items + index);
  const std::byte* blob = item.blob;
  const int first_tile = static_cast<int>(blockIdx.x) * kTilesPerBlock;
  const ExpertTrailer trailer = trailer_of(work, blob);
  if (item.copy_to != nullptr) {
    const int tiles = min(static_cast<int>(work.shape.row_tiles) - first_tile, kTilesPerBlock);
    copy_part<kPart>(work, item, first_tile, tiles, at);
    blob = copied(item);
  }
  const int tile = first_tile + at.warp;
  const bool owns = tile < work.shape.row_tiles;
  const int64_t offset = kPart == Part::kDown ? work.down_offset : 0;
  Unit<kFormat> matrices[kCount] = {{work.shape, blob + offset, owns ? tile : first_tile, 0}};
  if constexpr (kCount == 2) matrices[1] = {work.shape, blob + work.up_offset, owns ? tile : first_tile, 0};
  BlockWords<kFormat, kCount> words[kAhead];
  if (owns && item.pair_count > 0) load_row(words, matrices, work.shape, at);
  if (kPart == Part::kDown) wait_for_previous();

  const StagedRows<kFormat> rows{shared, work.shape.blocks * StagedRows<kFormat>::kBlockVectors};
  for (int first = 0; first < item.pair_count; first += kMost) {
    const int tokens = min(item.pair_count - first, kMost);
    const int32_t* pairs = work.pairs + item.pair_begin + first;
    if (first > 0) __syncthreads();  // the rows before are no longer read
    const bool scaled = stage_rows(work, tokens, rows, at,
                                   [&](int t) { return kPart == Part::kGateUp ? pairs[t] / work.top_k : pairs[t]; });
    if (!owns) continue;
    if (first > 0) load_row(words, matrices, work.shape, at);
    with_tokens<kMost>(tokens, [&](auto count) {
      constexpr int kTokens = decltype(count)::value;
      int offsets[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) offsets[t] = (t < tokens ? t : 0) * rows.stride;
      Sums<kCount, kTokens> sums;
      fold_row(scaled, words, matrices, work.shape, at, rows, offsets, sums);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t >= tokens) break;
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
          if constexpr (kPart == Part::kGateUp) {
            write_gate_up(work, trailer, tile, j, t, pairs[t], sums, at);
          } else {
            write_down(work, trailer, tile, j, t, pairs[t], sums, at);
          }
        }
      }
    });
  }
}

template <FormatId kFormat, Part kPart, int kMost>
void launch_items(const ExpertWork& work, int max_items, StreamHandle stream) {
  const int64_t bytes = kMost * staged_row_bytes<kFormat>(work.shape.blocks);
  if constexpr (kMost > 1) {  // rows too long for eight at a time: one by one
    if (bytes > kMaxSharedBytes) return launch_items<kFormat, kPart, 1>(work, max_items, stream);
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(work.shape.row_tiles, kTilesPerBlock)),
                  static_cast<unsigned>(max_items));
  allow_shared(item_kernel<kFormat, kPart, kMost>, bytes);
  launch(item_kernel<kFormat, kPart, kMost>, grid, dim3(kThreads), static_cast<size_t>(bytes), stream, work);
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
