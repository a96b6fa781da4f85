// Dense products: kernels/ops/matvec.h for packed weights on the device, several matrices of one input at a time.
//
// The tiles of all outputs are one line. The warps of a block share a tile of it; in a matrix of very many tiles (a
// head's 38 thousand) a warp owns one, which is fewer steps where there are warps enough. The bits are the same. Either
// way the weights are on their way (tile_ring.cuh) before the kernel before this one has ended, and packing the
// input is a small launch of its own: it runs while the matrix streams in.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tile_ring.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

constexpr int kTilesPerBlock = 2;  // where a warp owns a tile
constexpr int kSplit = 8;
constexpr int kSplitStages = 2;
// From so many tiles on a warp of its own for each is faster, for one token.
constexpr int kOwnWarpFromTiles = 8192;

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
  const uint32_t* words = nullptr;
  int64_t row_words = 0;
  int64_t tokens = 0;
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

__device__ __forceinline__ void write_row(const Product& product, int64_t token, int64_t row, float sum) {
  if (row >= product.shape.rows) return;
  float y = f32::mul(sum, product.global);
  if (product.bias != nullptr) y = f32::add(y, product.bias[row]);
  float* to = product.y + token * product.y_stride + row;
  *to = product.add ? f32::add(*to, y) : y;
}

template <int kTokens>
__device__ __forceinline__ void point_at_tokens(const Work& work, int64_t token, int tokens,
                                                const uint32_t* (&x)[kTokens]) {
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = work.words + (token + (t < tokens ? t : 0)) * work.row_words;
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kWarp* kTilesPerBlock) void matvec_kernel(const __grid_constant__ Work work) {
  extern __shared__ uint4 shared[];
  let_next_start();
  const int tile = static_cast<int>(blockIdx.x) * kTilesPerBlock + static_cast<int>(threadIdx.y);
  if (tile >= work.tiles) return wait_for_previous();
  const Place place(threadIdx.x);
  const Product& product = product_of(work, tile);
  const int own = tile - product.first_tile;
  const Tile tiles[1] = {tile_of(product.shape, product.w, own)};
  TileRing<kFormat, 1> ring(reinterpret_cast<std::byte*>(shared) + threadIdx.y * RingShape<kFormat, 1>::kBytes,
                            product.shape, 1, place);
  ring.start(tiles, 0);
  wait_for_previous();
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kMost;
  const int tokens = work.tokens - token < kMost ? static_cast<int>(work.tokens - token) : kMost;
  with_tokens<kMost>(tokens, [&](auto count) {
    constexpr int kTokens = decltype(count)::value;
    const uint32_t* x[kTokens];
    point_at_tokens(work, token, tokens, x);
    Sums<1, kTokens> sums;
    for (int block = 0; block < product.shape.blocks; ++block) {
      ring.take([&](const std::byte* stage) {
        multiply_block<kFormat, 1>(stage, product.shape.lanes_of(block), block, place, x, sums);
      });
    }
#pragma unroll
    for (int j = 0; j < kRowsPerHalf; ++j) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float sum = f32::tree_sum(sums.acc[0][j][t]);
        if (t < tokens && place.lane == 0) {
          write_row(product, token + t, int64_t{own} * kRowsPerTile + place.row(j), sum);
        }
      }
    }
  });
}

template <FormatId kFormat, int kMost>
__global__ __launch_bounds__(kWarp* kSplit) void matvec_split_kernel(const __grid_constant__ Work work) {
  constexpr int kRingBytes = RingShape<kFormat, 1, kSplitStages>::kBytes;
  extern __shared__ uint4 shared[];
  let_next_start();
  const auto tile = static_cast<int>(blockIdx.x);
  const Place place(threadIdx.x);
  const auto warp = static_cast<int>(threadIdx.y);
  const Product& product = product_of(work, tile);
  const int own = tile - product.first_tile;
  const Tile tiles[1] = {tile_of(product.shape, product.w, own)};
  auto* memory = reinterpret_cast<std::byte*>(shared);
  TileRing<kFormat, 1, kSplitStages> ring(memory + warp * kRingBytes, product.shape, kSplit, place);
  ring.start(tiles, warp);
  wait_for_previous();
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kMost;
  const int tokens = work.tokens - token < kMost ? static_cast<int>(work.tokens - token) : kMost;
  with_tokens<kMost>(tokens, [&](auto count) {
    constexpr int kTokens = decltype(count)::value;
    const uint32_t* x[kTokens];
    point_at_tokens(work, token, tokens, x);
    SharedWalk<1, kTokens, kSplit> walk(memory + kSplit * kRingBytes, warp);
    walk.template run<kFormat>(ring, product.shape, place, x);
    walk.for_sums([&](int j, int t, const float(&sums)[1]) {
      const float sum = f32::tree_sum(sums[0]);
      if (t < tokens && place.lane == 0) {
        write_row(product, token + t, int64_t{own} * kRowsPerTile + place.row(j), sum);
      }
    });
  });
}

template <FormatId kFormat, int kMost>
void launch_products(const Work& work, StreamHandle stream) {
  const auto groups = static_cast<unsigned>(ceil_div(work.tokens, kMost));
  if (kMost > 1 || work.tiles < kOwnWarpFromTiles) {
    constexpr int64_t kBytes =
        int64_t{kSplit} * RingShape<kFormat, 1, kSplitStages>::kBytes + SharedWalk<1, kMost, kSplit>::kBytes;
    allow_shared(matvec_split_kernel<kFormat, kMost>, kBytes);
    ft::cuda::launch(matvec_split_kernel<kFormat, kMost>, dim3(static_cast<unsigned>(work.tiles), groups),
                     dim3(kWarp, kSplit), static_cast<size_t>(kBytes), stream, work);
    return;
  }
  constexpr int64_t kBytes = int64_t{kTilesPerBlock} * RingShape<kFormat, 1>::kBytes;
  allow_shared(matvec_kernel<kFormat, kMost>, kBytes);
  ft::cuda::launch(matvec_kernel<kFormat, kMost>,
                   dim3(static_cast<unsigned>(ceil_div(work.tiles, kTilesPerBlock)), groups),
                   dim3(kWarp, kTilesPerBlock), static_cast<size_t>(kBytes), stream, work);
}

void launch_format(const Work& work, FormatId format, StreamHandle stream) {
  with_format(format, [&]<FormatId kFormat>() {
    if (work.tokens == 1) return launch_products<kFormat, 1>(work, stream);
    launch_products<kFormat, kMaxTokensPerPass>(work, stream);
  });
}

// Packed rows of the input: those given, or scratch once a launch has filled it.
const uint32_t* packed_input(const MatvecArgs& args, int64_t cols, StreamHandle stream) {
  const MatvecInput& input = args.input;
  if (input.x == nullptr) return input.words;
  if (input.norm_w != nullptr) {
    RmsnormPackArgs norm;
    norm.x = input.x;
    norm.x_stride = input.x_stride;
    norm.w = input.norm_w;
    norm.eps = input.norm_eps;
    norm.tokens = args.tokens;
    norm.cols = cols;
    norm.words = input.scratch;
    rmsnorm_pack(norm, stream);
  } else {
    pack_activations({input.x, input.x_stride, args.tokens, cols, input.scratch}, stream);
  }
  return input.scratch;
}

}  // namespace

void matvec(const MatvecArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.output_count == 0) return;
  FT_CHECK(args.output_count <= kMaxMatvecOutputs && ceil_div(args.tokens, kMaxTokensPerPass) <= kMaxGridY);
  const int64_t cols = args.outputs[0].w.layout.cols;
  Work work;
  work.words = packed_input(args, cols, stream);
  work.row_words = activation_words(cols);
  work.tokens = args.tokens;
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
