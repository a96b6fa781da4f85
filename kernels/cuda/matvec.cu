// Dense products: kernels/ops/matvec.h for packed weights on the device.
//
// A warp owns a row tile. Where a matrix has too few tiles to fill the device (the router's 32, a key projection's 128)
// the warps of a block share one tile instead: each computes the block sums P of its own blocks of k, and then they are
// folded in order of blocks from shared memory, so the bits are those of one warp.
#include <algorithm>

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

constexpr int kTilesPerBlock = 2;
constexpr int kMaxSplit = 8;
// Below this a tile to a warp leaves a multiprocessor with fewer than 16 warps of 16 loads each, on 132 of them.
constexpr int64_t kSplitBelowTiles = 2048;
constexpr int64_t kSharedBytes = 48 << 10;  // what every device gives a block without asking

struct Product {
  TileShape shape;
  const std::byte* w = nullptr;
  float global = 0;
  const uint32_t* x = nullptr;
  int64_t x_words = 0;
  int64_t tokens = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool add = false;
};

__device__ __forceinline__ void write_row(const Product& args, int64_t token, int64_t row, float sum) {
  if (row >= args.shape.rows) return;
  float y = f32::mul(sum, args.global);
  if (args.bias != nullptr) y = f32::add(y, args.bias[row]);
  float* to = args.y + token * args.y_stride + row;
  *to = args.add ? f32::add(*to, y) : y;
}

template <int kTokens>
__device__ __forceinline__ void point_at_tokens(const Product& args, int64_t token, const uint32_t* (&x)[kTokens]) {
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = args.x + (token + t) * args.x_words;
}

// Tokens of this block: kMost at most.
template <int kMost>
__device__ __forceinline__ int64_t token_count(const Product& args) {
  const int64_t rest = args.tokens - static_cast<int64_t>(blockIdx.y) * kMost;
  return rest < kMost ? rest : kMost;
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kWarp* kTilesPerBlock) void matvec_kernel(const Product args) {
  const int64_t tile_index = static_cast<int64_t>(blockIdx.x) * kTilesPerBlock + threadIdx.y;
  if (tile_index >= args.shape.row_tiles) return;
  const Place place(threadIdx.x);
  const Tile tiles[1] = {tile_of(args.shape, args.w, tile_index)};
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kMost;
  for_token_groups<kMost>(token_count<kMost>(args), [&](int64_t group, auto size) {
    constexpr int kTokens = size;
    const uint32_t* x[kTokens];
    point_at_tokens(args, begin + group, x);
    Sums<1, kTokens> sums;
    fold_tile<kFormat, 1, kTokens>(args.shape, tiles, 0, 1, place, x, sums);
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float sum = f32::tree_sum(sums.acc[0][j][t]);
        if (place.lane == 0) write_row(args, begin + group + t, tile_index * kRowsPerTile + place.row(j), sum);
      }
    }
  });
}

// Block sums and scales in shared memory: [block][j][token .. token + kTokens, scale][thread of the warp].
template <int kTokens>
struct SharedSums {
  float* cells;
  int thread;
  __device__ __forceinline__ float* cell(int block, int j, int t) const {
    return cells + ((block * kRowsPerHalf + j) * (kTokens + 1) + t) * kWarp + thread;
  }
  __device__ __forceinline__ void operator()(int block, int, int j, int t, float p, float scale) {
    *cell(block, j, t) = p;
    if (t == 0) *cell(block, j, kTokens) = scale;
  }
};
constexpr int64_t shared_sums_bytes(int64_t blocks, int64_t tokens) {
  return blocks * kRowsPerHalf * (tokens + 1) * kWarp * static_cast<int64_t>(sizeof(float));
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kWarp* kMaxSplit) void matvec_split_kernel(const Product args) {
  extern __shared__ float cells[];
  const int64_t tile_index = blockIdx.x;
  const Place place(threadIdx.x);
  const auto warp = static_cast<int>(threadIdx.y);
  const auto warps = static_cast<int>(blockDim.y);
  const Tile tiles[1] = {tile_of(args.shape, args.w, tile_index)};
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kMost;
  for_token_groups<kMost>(token_count<kMost>(args), [&](int64_t group, auto size) {
    constexpr int kTokens = size;
    const uint32_t* x[kTokens];
    point_at_tokens(args, begin + group, x);
    SharedSums<kTokens> sums{cells, place.thread};
    fold_tile<kFormat, 1, kTokens>(args.shape, tiles, warp, warps, place, x, sums);
    __syncthreads();
    for (int i = warp; i < kRowsPerHalf * kTokens; i += warps) {
      const int j = i / kTokens;
      const int t = i % kTokens;
      float acc = 0.0f;
      for (int block = 0; block < args.shape.blocks; ++block) {
        acc = f32::fma(*sums.cell(block, j, t), *sums.cell(block, j, kTokens), acc);
      }
      const float sum = f32::tree_sum(acc);
      if (place.lane == 0) write_row(args, begin + group + t, tile_index * kRowsPerTile + place.row(j), sum);
    }
    __syncthreads();  // the next group writes the cells
  });
}

template <FormatId kFormat, int kMost>
void launch(const Product& args, StreamHandle stream) {
  const auto groups = static_cast<unsigned>(ceil_div(args.tokens, kMost));
  const int64_t shared = shared_sums_bytes(args.shape.blocks, std::min<int64_t>(kMost, args.tokens));
  if (args.shape.row_tiles < kSplitBelowTiles && args.shape.blocks > 1 && shared <= kSharedBytes) {
    const dim3 block(kWarp, static_cast<unsigned>(std::min(kMaxSplit, args.shape.blocks)));
    const dim3 grid(static_cast<unsigned>(args.shape.row_tiles), groups);
    matvec_split_kernel<kFormat, kMost><<<grid, block, static_cast<size_t>(shared), stream>>>(args);
  } else {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.shape.row_tiles, kTilesPerBlock)), groups);
    matvec_kernel<kFormat, kMost><<<grid, dim3(kWarp, kTilesPerBlock), 0, stream>>>(args);
  }
  require_launched("matvec");
}

}  // namespace

void matvec(const MatvecArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.output_count == 0) return;
  FT_CHECK(ceil_div(args.tokens, kMaxTokensPerPass) <= kMaxGridY);
  const int64_t cols = args.outputs[0].w.layout.cols;
  const MatvecInput& input = args.input;
  const uint32_t* words = input.words;
  if (input.x != nullptr) {
    words = input.scratch;
    if (input.norm_w != nullptr) {
      rmsnorm_pack(
          {input.x, input.x_stride, input.norm_w, input.norm_eps, args.tokens, cols, nullptr, 0, input.scratch},
          stream);
    } else {
      pack_activations({input.x, input.x_stride, args.tokens, cols, input.scratch}, stream);
    }
  }
  for (int i = 0; i < args.output_count; ++i) {
    const MatvecOutput& output = args.outputs[i];
    FT_CHECK(output.w.layout.cols == cols);
    Product product{.shape = tile_shape(output.w.layout),
                    .w = output.w.data,
                    .global = output.w.global,
                    .x = words,
                    .x_words = activation_words(cols),
                    .tokens = args.tokens,
                    .bias = output.bias,
                    .y = output.y,
                    .y_stride = output.y_stride,
                    .add = output.add};
    with_format(output.w.layout.format, [&]<FormatId kFormat>() {
      if (args.tokens == 1) {
        launch<kFormat, 1>(product, stream);
      } else {
        launch<kFormat, kMaxTokensPerPass>(product, stream);
      }
    });
  }
}

}  // namespace ft::cuda
