// Dense products: kernels/ops/matvec.h for packed weights on the device, several matrices of one input at a time.
//
// The tiles of all outputs are one line. A block owns a stretch of it, a round of tiles at a time; all units of a round
// (products.cuh) meet in shared memory. The weights of a block's first pass are on their way before it waits for the
// kernel before it, and those of the next pass before the sums of this one are folded.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/products.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

// One block of 16 warps for each multiprocessor of the largest device known (H200: 132), which packs its input once and
// has 64 KiB of weights under way, and room beside it for the next kernel's block to ask for its own. Two smaller ones
// for several tokens, whose sums need the registers.
constexpr int64_t kProcessors = 132;
template <int kTokens>
constexpr int kThreads = kTokens <= 2 ? 512 : 256;
// Units of a round, for each half warp and unit under way: more amortise the barriers, but their sums wait in shared
// memory, half of which they may take.
constexpr int64_t kPassesPerRound = 4;
// Up to so many tokens every block packs the input for itself; with more a launch of its own is cheaper, since each of
// hundreds of blocks would read and norm all rows.
constexpr int64_t kMaxPackedHere = 2;

struct Product {
  int first_tile = 0;  // in the line of all outputs' tiles
  TileShape shape;
  const std::byte* w = nullptr;
  float global = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool add = false;
};

struct Work {
  Product products[kMaxMatvecOutputs];
  int count = 0;
  int tiles = 0;
  int tiles_per_round = 0, rounds = 0;
  int chunk_blocks = 0;  // blocks of k whose activations are staged at once
  Divider by_chunk;      // by chunk_blocks
  const uint32_t* words = nullptr;
  NormPackSource source;  // where words is null
  int64_t tokens = 0;
  int packed_blocks = 0;  // of 256 k, of a packed row
};

// Tiles [tile, tile + tiles) times blocks [block, block + blocks). Unit u is block `block + u mod blocks` of a tile.
struct Step {
  int tile = 0, tiles = 0, block = 0, blocks = 0;
  __device__ __forceinline__ int units() const { return tiles * blocks; }
  __device__ __forceinline__ int tile_of(const Work& work, int u) const {
    return blocks == work.chunk_blocks ? work.by_chunk.quotient(u) : u / blocks;
  }
};
struct Steps {
  int first_tile = 0, end_tile = 0, chunks = 0, count = 0;
  __device__ __forceinline__ explicit Steps(const Work& work) {
    const int own = work.tiles_per_round * work.rounds;
    first_tile = static_cast<int>(blockIdx.x) * own;
    end_tile = min(first_tile + own, work.tiles);
    chunks = (work.products[0].shape.blocks + work.chunk_blocks - 1) / work.chunk_blocks;
    count = (end_tile - first_tile + work.tiles_per_round - 1) / work.tiles_per_round * chunks;
  }
  __device__ __forceinline__ Step at(const Work& work, int step) const {
    const int round = chunks == 1 ? step : step / chunks;
    Step result;
    result.tile = first_tile + round * work.tiles_per_round;
    result.tiles = min(end_tile - result.tile, work.tiles_per_round);
    result.block = (step - round * chunks) * work.chunk_blocks;
    result.blocks = min(work.products[0].shape.blocks - result.block, work.chunk_blocks);
    return result;
  }
};

// The product that owns a tile of the line.
__device__ __forceinline__ const Product& product_of(const Work& work, int tile) {
  int i = 0;
#pragma unroll
  for (int next = 1; next < kMaxMatvecOutputs; ++next) {
    if (next < work.count && tile >= work.products[next].first_tile) i = next;
  }
  return work.products[i];
}

template <FormatId kFormat, int kUnits>
__device__ __forceinline__ void load_pass(UnitWords<kFormat> (&words)[kUnits], const Work& work, const Step& step,
                                          int base, const BlockThread& at) {
  load_units(words, base, step.units(), work.products[0].shape, at, [&](int u) {
    const int tile_of_step = step.tile_of(work, u);
    const int tile = step.tile + tile_of_step;
    const Product& product = product_of(work, tile);
    return Unit<kFormat>(product.shape, product.w, tile - product.first_tile,
                         step.block + u - tile_of_step * step.blocks);
  });
}

struct Buffers {
  float* cells;
  float* partial;  // sums of the chunks so far: [tile of the round][token][row][lane]
  float* stage;    // kNormStageFloats, then norm_w; where the cells are, which are not in use then
};

// Activations of the step's blocks. Returns whether they are scaled. Ends with a barrier.
template <FormatId kFormat, int kTokens>
__device__ __forceinline__ bool stage(const Work& work, const NormPackSource& source, const Step& step, int64_t token,
                                      int tokens, const StagedRows<kFormat>& rows, const Buffers& buffers,
                                      const BlockThread& at) {
  __shared__ float scales[kNormPackTokens];
  return stage_scaled_if_possible<kFormat>([&](auto scaled) {
    constexpr bool kScaled = decltype(scaled)::value;
    constexpr int kShift = kScaled ? Decode<kFormat>::kShift : 0;
    if (work.words != nullptr) {
      return stage_rows_as<kFormat, kScaled>(
          tokens, work.packed_blocks, step.block, step.blocks, rows, at, [&](int u) { return step.tile_of(work, u); },
          [&](int t) { return work.words + (token + t) * work.packed_blocks * 128; });
    }
    bool huge = false;
    auto* staged = reinterpret_cast<uint32_t*>(rows.data);
    norm_pack_pairs(
        work.source, token, tokens, at.thread, at.threads, buffers.stage, scales, [&](int t, int i, uint32_t word) {
          staged[t * rows.stride * 4 + StagedRows<kFormat>::word_of_pair(i)] = scale_pair<kShift>(word, huge);
        });
    if (StagedRows<kFormat>::kPackedBlocks == 2 && work.packed_blocks % 2 != 0) {  // the half block that no pair is in
      for (int i = at.thread; i < tokens * 128; i += at.threads) {
        staged[i / 128 * rows.stride * 4 + StagedRows<kFormat>::word_of_pair(work.packed_blocks * 128 + i % 128)] = 0;
      }
    }
    return huge;
  });
}

__device__ __forceinline__ void write_row(const Product& product, int64_t token, int64_t row, float sum) {
  float y = f32::mul(sum, product.global);
  if (product.bias != nullptr) y = f32::add(y, product.bias[row]);
  float* to = product.y + token * product.y_stride + row;
  *to = product.add ? f32::add(*to, y) : y;
}

// A warp folds two rows of one tile and token at a time.
template <FormatId kFormat, int kTokens>
__device__ __forceinline__ void fold(const Work& work, const Step& step, int64_t token, int tokens,
                                     const Buffers& buffers, const BlockThread& at) {
  constexpr int kTwos = kRowsPerTile / 2;
  const Cells<kFormat, kTokens> cells{buffers.cells};
  const bool first = step.block == 0;
  const bool last = step.block + step.blocks == work.products[0].shape.blocks;
  for (int i = at.warp; i < step.tiles * tokens * kTwos; i += at.warps) {
    const int row = i % kTwos * 2 + at.half, t = i / kTwos % tokens, tile = i / kTwos / tokens;
    float* partial = buffers.partial + ((tile * kTokens + t) * kRowsPerTile + row) * kLanes + at.lane;
    const float acc = cells.fold(tile * step.blocks, step.blocks, t, row, at.lane, first ? 0.0f : *partial);
    if (!last) {
      *partial = acc;
      continue;
    }
    const float sum = f32::tree_sum(acc);
    const Product& product = product_of(work, step.tile + tile);
    const int64_t row_of_matrix = int64_t{step.tile + tile - product.first_tile} * kRowsPerTile + row;
    if (at.lane == 0 && row_of_matrix < product.shape.rows) write_row(product, token + t, row_of_matrix, sum);
  }
}

template <FormatId kFormat, int kTokens>
__global__ __launch_bounds__(kThreads<kTokens>,
                             kTokens == 2 ? 1 : 2) void matvec_kernel(const __grid_constant__ Work work, int cells_at,
                                                                      int partial_at) {
  constexpr int kUnits = kUnitsAhead<kFormat, kTokens>;
  extern __shared__ uint4 shared[];
  let_next_start();
  const BlockThread at;
  const Steps steps(work);
  UnitWords<kFormat> words[kUnits];
  load_pass(words, work, steps.at(work, 0), 0, at);
  auto* floats = reinterpret_cast<float*>(shared);
  const Buffers buffers{floats + cells_at, floats + partial_at, floats + cells_at};
  NormPackSource source = work.source;
  if (source.norm_w != nullptr) {  // a weight too: here before the wait
    copy_floats(source.norm_w, static_cast<int>(source.cols), at.thread, at.threads, buffers.stage + kNormStageFloats);
    source.norm_w = buffers.stage + kNormStageFloats;
  }
  wait_for_previous();

  const int64_t token = static_cast<int64_t>(blockIdx.y) * kTokens;
  const int tokens = work.tokens - token < kTokens ? static_cast<int>(work.tokens - token) : kTokens;
  const StagedRows<kFormat> rows{shared, work.chunk_blocks * StagedRows<kFormat>::kBlockVectors};
  bool scaled = true;
  for (int s = 0; s < steps.count; ++s) {
    const Step step = steps.at(work, s);
    if (s == 0 || steps.chunks > 1) {
      scaled = stage<kFormat, kTokens>(work, source, step, token, tokens, rows, buffers, at);
    }
    const int units = step.units(), pass = units_per_pass<kUnits>(at);
    for (int base = 0; base < units; base += pass) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int own = unit_number(at, base, i);
        if (own - at.half >= units) continue;
        put_products<kFormat, kTokens, kTokens, kUnits>(
            words[i], own, units, scaled, at, Cells<kFormat, kTokens>{buffers.cells},
            [&](int u, int(&offset)[kTokens]) {
#pragma unroll
              for (int t = 0; t < kTokens; ++t) offset[t] = (t < tokens ? t : 0) * rows.stride;
              return rows.at(u - step.tile_of(work, u) * step.blocks, at.lane);
            });
      }
      if (base + pass < units) {
        load_pass(words, work, step, base + pass, at);
      } else if (s + 1 < steps.count) {
        load_pass(words, work, steps.at(work, s + 1), 0, at);
      }
    }
    __syncthreads();
    fold<kFormat, kTokens>(work, step, token, tokens, buffers, at);
    __syncthreads();
  }
}

template <FormatId kFormat, int kTokens>
void launch_products(Work work, StreamHandle stream) {
  constexpr int kUnits = kUnitsAhead<kFormat, kTokens>;
  const int64_t blocks = work.products[0].shape.blocks, tiles = work.tiles;
  const int64_t most_units = std::min<int64_t>(int64_t{kThreads<kTokens>} / kLanes * kUnits * kPassesPerRound,
                                               kMaxSharedBytes / 2 / cell_bytes<kFormat, kTokens>(1));
  const int64_t fitting = std::clamp<int64_t>(most_units / blocks, 1, tiles);  // tiles of a round
  const bool pairs = kTokens > 2 || ceil_div(tiles, kProcessors) > 2 * fitting;
  const int64_t own = ceil_div(tiles, pairs ? 2 * kProcessors : kProcessors);  // tiles of a block
  work.rounds = static_cast<int>(ceil_div(own, fitting));
  work.tiles_per_round = static_cast<int>(ceil_div(own, work.rounds));
  const auto bytes = [&](int64_t chunk) {
    const bool split = chunk < blocks;
    const int64_t partial = split ? int64_t{work.tiles_per_round} * kTokens * kRowsPerTile * kLanes * 4 : 0;
    const int64_t stage = work.words == nullptr ? int64_t{kNormStageFloats} * 4 : 0;
    const int64_t norm = work.source.norm_w != nullptr ? work.source.cols * 4 : 0;
    return kTokens * staged_row_bytes<kFormat>(chunk) + partial +
           std::max(stage + norm, cell_bytes<kFormat, kTokens>(work.tiles_per_round * chunk));
  };
  int64_t chunk = blocks;
  while (bytes(chunk) > kMaxSharedBytes) chunk = (chunk + 1) / 2;
  FT_CHECK(chunk == blocks || work.words != nullptr);
  work.chunk_blocks = static_cast<int>(chunk);
  work.by_chunk = Divider(chunk);
  const int64_t warps = std::clamp<int64_t>(ceil_div(work.tiles_per_round * chunk, 2 * kUnits),
                                            work.words == nullptr ? 4 : 1, kThreads<kTokens> / kWarp);
  const int64_t partial_at = kTokens * staged_row_bytes<kFormat>(chunk) / 4;
  const int64_t cells_at =
      partial_at + (chunk < blocks ? int64_t{work.tiles_per_round} * kTokens * kRowsPerTile * kLanes : 0);
  const dim3 grid(static_cast<unsigned>(ceil_div(work.tiles, int64_t{work.tiles_per_round} * work.rounds)),
                  static_cast<unsigned>(ceil_div(work.tokens, kTokens)));
  allow_shared(matvec_kernel<kFormat, kTokens>, bytes(chunk));
  ft::cuda::launch(matvec_kernel<kFormat, kTokens>, grid, dim3(static_cast<unsigned>(warps * kWarp)),
                   static_cast<size_t>(bytes(chunk)), stream, work, static_cast<int>(cells_at),
                   static_cast<int>(partial_at));
}

// Shared memory bounds what a block packs for itself: half of it is left for the cells.
bool packs_here(const MatvecArgs& args) {
  const int64_t words = activation_words(args.outputs[0].w.layout.cols);
  return args.tokens <= kMaxPackedHere && args.tokens * (words + 128) * 4 <= kMaxSharedBytes / 4 &&
         args.tokens * args.outputs[0].w.layout.cols <= kNormStageFloats;
}

void launch_format(const Work& work, FormatId format, StreamHandle stream) {
  with_format(format, [&]<FormatId kFormat>() {
    if (work.tokens == 1) return launch_products<kFormat, 1>(work, stream);
    if (work.tokens == 2) return launch_products<kFormat, 2>(work, stream);
    if (work.tokens <= 4) return launch_products<kFormat, 4>(work, stream);
    return launch_products<kFormat, kMaxTokensPerPass>(work, stream);
  });
}

}  // namespace

void matvec(const MatvecArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.output_count == 0) return;
  FT_CHECK(args.output_count <= kMaxMatvecOutputs && ceil_div(args.tokens, kMaxTokensPerPass) <= kMaxGridY);
  const int64_t cols = args.outputs[0].w.layout.cols;
  const MatvecInput& input = args.input;
  Work work;
  work.words = input.words;
  work.tokens = args.tokens;
  work.packed_blocks = static_cast<int>(activation_words(cols) / 128);
  if (input.x != nullptr && packs_here(args)) {
    work.source = {input.x, input.x_stride, cols, input.norm_w, input.norm_eps};
  } else if (input.x != nullptr) {
    work.words = input.scratch;
    if (input.norm_w != nullptr) {
      rmsnorm_pack(
          {input.x, input.x_stride, input.norm_w, input.norm_eps, args.tokens, cols, nullptr, 0, input.scratch},
          stream);
    } else {
      pack_activations({input.x, input.x_stride, args.tokens, cols, input.scratch}, stream);
    }
  }
  // One launch for each format among the outputs.
  bool done[kMaxMatvecOutputs] = {};
  for (int i = 0; i < args.output_count; ++i) {
    if (done[i]) continue;
    const FormatId format = args.outputs[i].w.layout.format;
    work.count = 0;
    work.tiles = 0;
    for (int j = i; j < args.output_count; ++j) {
      const MatvecOutput& output = args.outputs[j];
      if (output.w.layout.format != format) continue;
      FT_CHECK(output.w.layout.cols == cols);
      done[j] = true;
      work.products[work.count++] = {work.tiles,      tile_shape(output.w.layout),
                                     output.w.data,   output.w.global,
                                     output.bias,     output.y,
                                     output.y_stride, output.add};
      work.tiles += static_cast<int>(output.w.layout.row_tiles);  // at most 3 * 2^20
    }
    if (work.tiles > 0) launch_format(work, format, stream);
  }
}

}  // namespace ft::cuda
