// Experts of one layer: gate and up with the activation between, then down, over a list of items that is in device
// memory. Warps take pairs of row tiles (expert_tiles.cuh), as many at once as the device has warps for.
//
// Gate and up: the pairs of all items are one line, which the warps of all blocks take in turn.
// Down: a block owns a few rows of all items, a warp of it every so manieth item, so that it can merge the experts of a
// token in slot order itself. Its weights are on their way while gate and up still run: they fit together.
#include <algorithm>

#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/fetch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {
int g_knob[8] = {};
namespace {

constexpr int kGateUpWarps = 4;
constexpr int kMostDownWarps = 16;
constexpr int kManyTokensDownWarps = 6;
// Of a launch that fetches: 1 MiB under way.
constexpr int kFetchBlocks = 64;

enum class Part { kGateUp, kDown };

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
  const uint32_t* x = nullptr;  // rows that are multiplied: of tokens (gate and up) or of pairs (down)
  int64_t x_words = 0;
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  ExpertMerge merge;  // tokens == 0: rows go to out
  Arrivals arrivals;
  Fetch fetch;
  int fetch_blocks = 0;  // of the grid, the first
  int stages = 0;        // of a warp
  int unit_pairs = 1;    // down: pairs of tiles of a block at a time
};

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

__device__ __forceinline__ ExpertTrailer trailer_of(const ExpertWork& work, const std::byte* blob) {
  const float4 trailer = __ldcg(reinterpret_cast<const float4*>(blob + work.trailer_offset));
  return {.gate_global = trailer.x, .up_global = trailer.y, .down_global = trailer.z};
}

// Before the weights, where it is there: nobody waits for it then. Else after them.
__device__ __forceinline__ ExpertTrailer trailer_early(const ExpertWork& work, const ExpertItem& item) {
  return item.arrival < 0 ? trailer_of(work, item.blob) : ExpertTrailer{};
}
__device__ __forceinline__ void trailer_late(const ExpertWork& work, const ExpertItem& item, ExpertTrailer& trailer) {
  if (item.arrival >= 0) trailer = trailer_of(work, item.blob);
}

// What one warp reads, in order: pairs of tiles, each once for every kMost tokens of its item.
template <Part kPart, int kMost>
struct Cursor {
  const ExpertWork& work;
  int begin, items;  // of the list
  int unit;          // gate and up: of the line of pairs; down: of the block's rows
  int index = 0;     // of the item
  int tile = 0;      // the pair's first
  int group = 0;     // first token of the item
  int first_index, step, part;  // down: items of this warp, and its pair of tiles in a unit
  ExpertItem item{};
  bool more = true;

  __device__ __forceinline__ Cursor(const ExpertWork& w, int warp, int warps)
      : work(w), begin(__ldcg(w.item_begin)), items(__ldcg(w.item_end) - begin) {
    if constexpr (kPart == Part::kGateUp) {
      const auto blocks = static_cast<int>(gridDim.x) - w.fetch_blocks;
      unit = static_cast<int>(blockIdx.x) - w.fetch_blocks + warp * blocks;
      step = warps * blocks;
      first_index = part = 0;
    } else {
      unit = static_cast<int>(blockIdx.x);
      first_index = index = warp / w.unit_pairs;
      step = warps / w.unit_pairs;
      part = warp % w.unit_pairs;
    }
    find();
  }
  __device__ __forceinline__ bool valid() const { return more; }
  // The item's part is there, if need be after a wait. All lanes call it.
  __device__ __forceinline__ bool ready(bool wait) {
    if (item.arrival < 0) return true;
    constexpr int kArrivalPart = kPart == Part::kGateUp ? 0 : 1;
    bool there = true;
    if (threadIdx.x % kWarp == 0) {
      if (wait) {
        wait_for_arrival(work.arrivals, item.arrival, kArrivalPart);
      } else {
        there = has_arrived(work.arrivals, item.arrival, kArrivalPart);
      }
      let_bulk_copies_read();
    }
    if (!__shfl_sync(kFullWarp, there, 0)) return false;
    __syncwarp();  // what the lane has acquired
    item.arrival = -1;
    return true;
  }
  __device__ __forceinline__ void next() {
    if constexpr (kMost > 1) {
      group += kMost;
      if (group < item.pair_count) return;
      group = 0;
    }
    if constexpr (kPart == Part::kGateUp) {
      unit += step;
    } else {
      index += step;
    }
    find();
  }
  __device__ __forceinline__ PairOfTiles pair(int half) const {
    const TileShape& shape = work.shape;
    if constexpr (kPart == Part::kGateUp) {
      const Tile gate = tile_of(shape, item.blob, tile);
      return {gate.codes, gate.scales + half * work.up_offset, work.up_offset};
    } else {
      const Tile down = tile_of(shape, item.blob + work.down_offset, tile);
      const bool second = tile + 1 < shape.row_tiles;  // or the first one again
      return {down.codes, down.scales + (second ? half * shape.scale_bytes_per_tile : 0),
              second ? shape.code_bytes_per_tile : 0};
    }
  }

 private:
  // From here on the first place with an item that has pairs.
  __device__ __forceinline__ void find() {
    const auto row_tiles = static_cast<int>(work.shape.row_tiles);
    if constexpr (kPart == Part::kGateUp) {
      for (; unit < items * row_tiles; unit += step) {
        tile = unit % row_tiles;
        item = load_item(work.items + begin + unit / row_tiles);
        if (item.pair_count > 0) return;
        ready(true);
      }
    } else {
      for (; (tile = unit * work.unit_pairs * kPair + part * kPair) < row_tiles; unit += static_cast<int>(gridDim.x)) {
        for (; index < items; index += step) {
          item = load_item(work.items + begin + index);
          if (item.pair_count > 0) return;
          ready(true);
        }
        index = first_index;
      }
    }
    more = false;
  }
};

// One token's x as fp32 (FloatRow), times 2^power. Returns whether a value is too large for the format's power.
template <FormatId kFormat>
__device__ __forceinline__ bool unpack_row(const uint32_t* words, int64_t count, int blocks, float power, float4* to,
                                           int thread, int threads) {
  constexpr int kGroup = Decode<kFormat>::kGroup, kQuads = kGroup / 4;
  constexpr uint32_t kExponent = 0x7f800000u, kTooLarge = static_cast<uint32_t>(255 - Decode<kFormat>::kShift) << 23;
  bool large = false;
#pragma unroll 4
  for (int i = thread; i < blocks * kQuads * kLanes; i += threads) {
    const int lane = i % kLanes, q = i / kLanes % kQuads, block = i / kLanes / kQuads;
    const int at = block * (kGroup / 2 * kLanes) + lane_words<kGroup>(lane) + pair_words<kGroup>(2 * q);
    const bool present = at < count;  // a block of 32 k a lane may be half of one
    const uint32_t first = present ? words[at] : 0u, second = present ? words[at + kLanes] : 0u;
    large |= (first & kExponent) >= kTooLarge || (first << 16 & kExponent) >= kTooLarge ||
             (second & kExponent) >= kTooLarge || (second << 16 & kExponent) >= kTooLarge;
    to[i] = {f32::mul(low_bf16(first), power), f32::mul(high_bf16(first), power), f32::mul(low_bf16(second), power),
             f32::mul(high_bf16(second), power)};
  }
  return large;
}

// unpack(power) on all threads of the block, and a barrier. The power of two that decoding leaves out goes into x where
// no x overflows by it: then products, sums and flushes are the same bits. Returns whether it did.
template <FormatId kFormat, class Unpack>
__device__ __forceinline__ bool unpack_scaled(Unpack&& unpack) {
  constexpr int kShift = Decode<kFormat>::kShift;
  if constexpr (kShift == 0) {
    unpack(1.0f);
    __syncthreads();
    return true;
  } else {
    const bool large = unpack(static_cast<float>(1 << kShift));
    if (!__syncthreads_or(large)) return true;
    unpack(1.0f);
    __syncthreads();
    return false;
  }
}

// Number of the t-th pair of a pass over the weights; the item's last one where the pass has more places.
__device__ __forceinline__ int32_t pair_of(const ExpertWork& work, const ExpertItem& item, int t) {
  return work.pairs[item.pair_begin + min(t, item.pair_count - 1)];
}
template <Part kPart, int kTokens>
__device__ __forceinline__ PackedRows<kTokens> rows_of(const ExpertWork& work, const ExpertItem& item, int group) {
  PackedRows<kTokens> rows;
  rows.x = work.x;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int32_t pair = pair_of(work, item, group + t);
    rows.at[t] = static_cast<uint32_t>((kPart == Part::kGateUp ? pair / work.top_k : pair) * work.x_words);
  }
  return rows;
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

// Stages of a warp: enough for a pair of 2048 k in the formats of four bits, 12 to 16 KiB in the others.
template <FormatId kFormat>
using GateUpStage = StageShape<kFormat, kFormat == FormatId::kNvfp4 ? 2 : 1>;
template <FormatId kFormat>
using DownStage = StageShape<kFormat, 1>;
template <FormatId kFormat>
inline constexpr int kMostStages = kFormat == FormatId::kBf16 ? 3 : 4;

struct GateUpMemory {
  int barriers = 0, x, stages, bytes;
  __host__ __device__ GateUpMemory(int x_bytes, int stage_bytes, int stages_of_warp) {
    x = (kGateUpWarps * stages_of_warp * 8 + 127) / 128 * 128;
    stages = x + x_bytes;
    bytes = stages + kGateUpWarps * stages_of_warp * stage_bytes;
  }
};
template <FormatId kFormat>
__host__ __device__ constexpr int float_row_bytes(int blocks) {
  return blocks * Decode<kFormat>::kGroup * kLanes * 4;
}

// Gate and up let the kernel after them start once they have waited: then the one before has ended, and what that one
// wrote (the items) may be read by the one after without a wait of its own. Down does so.
template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kGateUpWarps* kWarp, kMost == 1 ? 8 : 3) void gate_up_kernel(
    const __grid_constant__ ExpertWork work) {
  using Stage = GateUpStage<kFormat>;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<std::byte*>(shared);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const Place place(thread % kWarp);
  if (static_cast<int>(blockIdx.x) < work.fetch_blocks) {
    wait_for_previous();
    let_next_start();
    fetch_by_warp(work.fetch, blockIdx.x * kGateUpWarps + warp, work.fetch_blocks * kGateUpWarps);
    return;
  }
  const GateUpMemory at(kMost == 1 ? float_row_bytes<kFormat>(work.shape.blocks) : 0, Stage::kBytes, work.stages);
  const int own_stages = at.stages + warp * work.stages * Stage::kBytes;
  StageRing<kFormat, Stage, Cursor<Part::kGateUp, kMost>> ring(
      address + own_stages, address + warp * work.stages * 8, work.stages, work.shape, place);
  wait_for_previous();
  Cursor<Part::kGateUp, kMost> source(work, warp, kGateUpWarps);
  Cursor<Part::kGateUp, kMost> pass = source;
  ring.fill(source);
  let_next_start();
  if constexpr (kMost == 1) {
    auto* x = reinterpret_cast<float4*>(memory + at.x);
    const bool scaled = unpack_scaled<kFormat>([&](float power) {
      return unpack_row<kFormat>(work.x, work.x_words, work.shape.blocks, power, x, thread, kGateUpWarps * kWarp);
    });
    for (; pass.valid(); pass.next()) {
      ExpertTrailer trailer = trailer_early(work, pass.item);
      const int32_t pair = work.pairs[pass.item.pair_begin];
      float acc[kPair][kRowsPerHalf][1] = {};
      if (scaled) {
        fold_pair<kFormat, Stage, true, 1>(memory + own_stages, ring, source, work.shape, place, FloatRow{x}, acc);
      } else {
        fold_pair<kFormat, Stage, false, 1>(memory + own_stages, ring, source, work.shape, place, FloatRow{x}, acc);
      }
      trailer_late(work, pass.item, trailer);
#pragma unroll
      for (int j = 0; j < kRowsPerHalf; ++j) {
        write_gate_up(work, trailer, pass.tile, j, pair, acc[0][j][0], acc[1][j][0], place);
      }
    }
  } else {
    for (; pass.valid(); pass.next()) {
      ExpertTrailer trailer = trailer_early(work, pass.item);
      const int tokens = min(pass.item.pair_count - pass.group, kMost);
      with_tokens<kMost>(tokens, [&](auto size) {
        constexpr int kTokens = decltype(size)::value;
        const auto rows = rows_of<Part::kGateUp, kTokens>(work, pass.item, pass.group);
        float acc[kPair][kRowsPerHalf][kTokens] = {};
        fold_pair<kFormat, Stage, false, kTokens>(memory + own_stages, ring, source, work.shape, place, rows, acc);
        trailer_late(work, pass.item, trailer);
#pragma unroll
        for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            if (t >= tokens) break;
            const int32_t pair = pair_of(work, pass.item, pass.group + t);
            write_gate_up(work, trailer, pass.tile, j, pair, acc[0][j][t], acc[1][j][t], place);
          }
        }
      });
    }
  }
}

struct DownMemory {
  int barriers = 0, pair_of_item, ids, weights, y, x, stages, bytes;
  __host__ __device__ DownMemory(int warps, int merged_pairs, int unit_pairs, int x_bytes, int stage_bytes,
                                 int stages_of_warp) {
    pair_of_item = warps * stages_of_warp * 8;
    ids = pair_of_item + kMostDownWarps * 4;
    weights = ids + merged_pairs * 4;
    y = weights + merged_pairs * 4;
    x = (y + merged_pairs * unit_pairs * kPair * kRowsPerTile * 4 + 127) / 128 * 128;
    stages = x + x_bytes;
    bytes = stages + warps * stages_of_warp * stage_bytes;
  }
};

// Where the rows of pairs go: shared memory, if the block merges them, else `out`.
struct DownRows {
  const ExpertWork& work;
  float* y;
  int unit_rows, first_row;  // of the block
  __device__ __forceinline__ void write(int tile, int j, int32_t pair, float lane_sum, float global,
                                        const Place& place) const {
    const float sum = f32::mul(f32::tree_sum(lane_sum), global);
    const int row = tile * kRowsPerTile + place.row(j);
    if (place.lane != 0 || row >= work.shape.rows) return;
    if (work.merge.tokens > 0) {
      y[pair * unit_rows + row - first_row] = sum;
    } else {
      work.out[pair * work.out_stride + row] = sum;
    }
  }
  // merge of kernels/ops/rows.h, then add. By all threads of the block, after a barrier.
  __device__ __forceinline__ void merge(const int32_t* ids, const float* weights) const {
    const auto rows = min(unit_rows, static_cast<int>(work.shape.rows) - first_row);
    for (int i = static_cast<int>(threadIdx.x); i < work.merge.tokens * unit_rows; i += static_cast<int>(blockDim.x)) {
      const int token = i / unit_rows, row = i % unit_rows;
      if (row >= rows) continue;
      float* residual = work.merge.residual + token * work.merge.residual_stride + first_row + row;
      const float before = *residual;
      float merged = 0.0f;
      for (int pair = token * work.top_k; pair < (token + 1) * work.top_k && ids[pair] >= 0; ++pair) {
        merged = f32::fma(weights[pair], y[pair * unit_rows + row], merged);
      }
      *residual = f32::add(before, merged);
    }
  }
};

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__((kMost == 1 ? kMostDownWarps : kManyTokensDownWarps) * kWarp, 2) void down_kernel(
    const __grid_constant__ ExpertWork work) {
  using Stage = DownStage<kFormat>;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<std::byte*>(shared);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / kWarp, warps = threads / kWarp;
  const Place place(thread % kWarp);
  const int merged_pairs = static_cast<int>(work.merge.tokens) * work.top_k;
  const int row_bytes = kMost == 1 ? float_row_bytes<kFormat>(work.shape.blocks) : 0;
  const DownMemory at(warps, merged_pairs, work.unit_pairs, warps / work.unit_pairs * row_bytes, Stage::kBytes,
                      work.stages);
  const int own_stages = at.stages + warp * work.stages * Stage::kBytes;
  StageRing<kFormat, Stage, Cursor<Part::kDown, kMost>> ring(address + own_stages, address + warp * work.stages * 8,
                                                             work.stages, work.shape, place);
  Cursor<Part::kDown, kMost> source(work, warp, warps);
  Cursor<Part::kDown, kMost> pass = source;
  ring.fill(source);

  auto* ids = reinterpret_cast<int32_t*>(memory + at.ids);
  auto* weights = reinterpret_cast<float*>(memory + at.weights);
  for (int i = thread; i < merged_pairs; i += threads) {
    ids[i] = __ldcg(work.merge.ids + i);
    weights[i] = __ldcg(work.merge.weights + i);
  }
  ExpertTrailer trailer;
  int32_t own_pair = 0;
  if (kMost == 1 && pass.valid()) {  // the warp's only item
    trailer = trailer_early(work, pass.item);
    own_pair = __ldcg(work.pairs + pass.item.pair_begin);
  }
  wait_for_previous();
  let_next_start();
  bool scaled = true;
  auto* x = reinterpret_cast<float4*>(memory + at.x + warp / work.unit_pairs * row_bytes);
  if constexpr (kMost == 1) {
    scaled = unpack_scaled<kFormat>([&](float power) {
      if (!pass.valid()) return false;
      return unpack_row<kFormat>(work.x + own_pair * work.x_words, work.x_words, work.shape.blocks, power, x,
                                 warp % work.unit_pairs * kWarp + place.thread, work.unit_pairs * kWarp);
    });
  }
  const int unit_rows = work.unit_pairs * kPair * kRowsPerTile;
  for (int unit = static_cast<int>(blockIdx.x); unit * unit_rows < work.shape.rows;
       unit += static_cast<int>(gridDim.x)) {
    const DownRows rows_out{work, reinterpret_cast<float*>(memory + at.y), unit_rows, unit * unit_rows};
    for (; pass.valid() && pass.unit == unit; pass.next()) {
      if constexpr (kMost == 1) {
        float acc[kPair][kRowsPerHalf][1] = {};
        if (scaled) {
          fold_pair<kFormat, Stage, true, 1>(memory + own_stages, ring, source, work.shape, place, FloatRow{x}, acc);
        } else {
          fold_pair<kFormat, Stage, false, 1>(memory + own_stages, ring, source, work.shape, place, FloatRow{x}, acc);
        }
        trailer_late(work, pass.item, trailer);
#pragma unroll
        for (int m = 0; m < kPair; ++m) {
#pragma unroll
          for (int j = 0; j < kRowsPerHalf; ++j) {
            rows_out.write(pass.tile + m, j, own_pair, acc[m][j][0], trailer.down_global, place);
          }
        }
      } else {
        trailer = trailer_early(work, pass.item);
        const int tokens = min(pass.item.pair_count - pass.group, kMost);
        with_tokens<kMost>(tokens, [&](auto size) {
          constexpr int kTokens = decltype(size)::value;
          const auto rows = rows_of<Part::kDown, kTokens>(work, pass.item, pass.group);
          float acc[kPair][kRowsPerHalf][kTokens] = {};
          fold_pair<kFormat, Stage, false, kTokens>(memory + own_stages, ring, source, work.shape, place, rows, acc);
          trailer_late(work, pass.item, trailer);
#pragma unroll
          for (int m = 0; m < kPair; ++m) {
#pragma unroll
            for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
              for (int t = 0; t < kTokens; ++t) {
                if (t >= tokens) break;
                const int32_t pair = pair_of(work, pass.item, pass.group + t);
                rows_out.write(pass.tile + m, j, pair, acc[m][j][t], trailer.down_global, place);
              }
            }
          }
        });
      }
    }
    if (merged_pairs == 0) continue;
    __syncthreads();
    rows_out.merge(ids, weights);
    __syncthreads();  // the next unit's rows go to the same places
  }
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "cannot ask for the CUDA device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cannot count multiprocessors");
  return count;
}

constexpr int kSharedBytesOfProcessor = 227 << 10, kReservedBytesOfBlock = 1 << 10;

template <FormatId kFormat, int kMost>
void launch_gate_up(ExpertWork work, int max_items, StreamHandle stream) {
  using Stage = GateUpStage<kFormat>;
  const int of_pair = static_cast<int>(ceil_div(work.shape.blocks, Stage::kBlocks));
  work.stages = kMost == 1 ? std::min(kMostStages<kFormat>, of_pair) : kMostStages<kFormat>;
  const GateUpMemory memory(kMost == 1 ? float_row_bytes<kFormat>(work.shape.blocks) : 0, Stage::kBytes, work.stages);
  const auto kernel = gate_up_kernel<kFormat, kMost>;
  allow_shared(kernel, memory.bytes);
  // As many warps as there are pairs, or a whole number of pairs for each.
  const int at_once = multiprocessors() * std::clamp(kSharedBytesOfProcessor / (memory.bytes + kReservedBytesOfBlock), 1,
                                                     g_knob[0] > 0 ? g_knob[0] : (kMost == 1 ? 4 : 3));
  const int64_t warps = max_items * work.shape.row_tiles;
  const int64_t rounds = ceil_div(warps, int64_t{at_once} * kGateUpWarps);
  const auto blocks = static_cast<unsigned>(ceil_div(warps, rounds * kGateUpWarps));
  launch(kernel, dim3(blocks + work.fetch_blocks), dim3(kGateUpWarps * kWarp), static_cast<size_t>(memory.bytes), stream, work);
}

template <FormatId kFormat, int kMost>
DownMemory down_memory(const ExpertWork& work, int warps) {
  const int row_bytes = kMost == 1 ? float_row_bytes<kFormat>(work.shape.blocks) : 0;
  return DownMemory(warps, static_cast<int>(work.merge.tokens) * work.top_k, work.unit_pairs,
                    warps / work.unit_pairs * row_bytes, DownStage<kFormat>::kBytes, work.stages);
}

template <FormatId kFormat, int kMost>
void launch_down(ExpertWork work, int max_items, StreamHandle stream) {
  const int processors = multiprocessors();
  const int64_t pairs = ceil_div(work.shape.row_tiles, kPair);
  work.stages = kMost == 1 ? std::min(kMostStages<kFormat>, work.shape.blocks) : kMostStages<kFormat>;
  if (kMost == 1 && 2 * max_items <= kMostDownWarps && g_knob[1] != 1) {
    // Two pairs a unit share x, where that costs no multiprocessor more pairs.
    if (2 * ceil_div(ceil_div(pairs, 2), processors) <= ceil_div(pairs, processors)) work.unit_pairs = 2;
  }
  const int warps = kMost == 1 ? max_items * work.unit_pairs : std::min(max_items, kManyTokensDownWarps);
  const DownMemory memory = down_memory<kFormat, kMost>(work, warps);
  const auto kernel = down_kernel<kFormat, kMost>;
  allow_shared(kernel, memory.bytes);
  const int of_processor = std::clamp(kSharedBytesOfProcessor / (memory.bytes + kReservedBytesOfBlock), 1,
                                      kMost == 1 ? 2 * kMostDownWarps / warps : 2);
  const int64_t units = ceil_div(pairs, work.unit_pairs);
  const int64_t rounds = ceil_div(units, int64_t{processors} * of_processor);
  launch(kernel, dim3(static_cast<unsigned>(ceil_div(units, rounds))), dim3(static_cast<unsigned>(warps * kWarp)),
         static_cast<size_t>(memory.bytes), stream, work);
}

ExpertWork work_of(const ExpertArgs& args, const PackedLayout& matrix, const uint32_t* x) {
  return {.shape = tile_shape(matrix),
          .up_offset = args.layout.up_offset,
          .down_offset = args.layout.down_offset,
          .trailer_offset = args.layout.trailer_offset,
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
          .out_stride = args.out_stride,
          .merge = {},
          .arrivals = args.arrivals,
          .fetch = args.fetch};
}

// What a block may have of shared memory.
constexpr int kMostSharedBytes = kSharedBytesOfProcessor;

void launch_down(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  if (args.max_items == 0) return;
  ExpertWork work = work_of(args, args.layout.down, args.activated);
  work.merge = merge;
  with_format(args.layout.down.format, [&]<FormatId kFormat>() {
    ExpertWork one = work;
    one.stages = kMostStages<kFormat>;
    if (args.max_item_pairs == 1 && args.max_items <= kMostDownWarps &&
        down_memory<kFormat, 1>(one, args.max_items).bytes <= kMostSharedBytes) {
      launch_down<kFormat, 1>(work, args.max_items, stream);
    } else {
      launch_down<kFormat, kMaxTokensPerPass>(work, args.max_items, stream);
    }
  });
}

}  // namespace

void expert_gate_up(const ExpertArgs& args, StreamHandle stream) {
  if (args.max_items == 0) return;
  ExpertWork work = work_of(args, args.layout.gate, args.x);
  if (args.fetch.here) work.fetch_blocks = kFetchBlocks;
  with_format(args.layout.gate.format, [&]<FormatId kFormat>() {
    const bool fits = float_row_bytes<kFormat>(work.shape.blocks) <= kMostSharedBytes / 4;
    if (args.max_item_pairs == 1 && fits) {
      launch_gate_up<kFormat, 1>(work, args.max_items, stream);
    } else {
      launch_gate_up<kFormat, kMaxTokensPerPass>(work, args.max_items, stream);
    }
  });
}

void expert_down(const ExpertArgs& args, StreamHandle stream) { launch_down(args, {}, stream); }

void expert_down_merge(const ExpertArgs& args, const ExpertMerge& merge, StreamHandle stream) {
  if (merge.tokens == 0) return;
  FT_CHECK(args.max_items > 0);
  launch_down(args, merge, stream);
}

}  // namespace ft::cuda
