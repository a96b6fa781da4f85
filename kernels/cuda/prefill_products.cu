// Products of prefill: dense matrices, and experts' gate and up with the activation between and down, over tiles that
// prefill_group lists. A block computes tiles block, block + grid, ...: of one tile of tokens all row tiles come one
// after the other, so its activations and the expert's weights are read from memory once and then from L2.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

constexpr int kPairRows = kTileRows / 2;  // rows of gate, and of up, in a tile
constexpr int kStagedWords = kPairRows / 2;
constexpr int kStagedStride = kStagedWords + 4;  // words; keeps rows on 16 bytes and off each other's banks
static_assert(kPrefillTileTokens == kTileTokens);
static_assert(kTileTokens * kStagedStride * 4 <= kActivationBuffers * kTileBytes);

struct ProductWork {
  TileShape shape;  // of gate and up, or of the one matrix
  bool aligned = false;
  int k_tiles = 0;
  int row_tiles = 0;  // blocks' tiles of weight rows
  const uint32_t* x = nullptr;
  int64_t x_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  // One matrix.
  const std::byte* matrix = nullptr;
  float global = 1.0f;
  int64_t tokens = 0;
  const float* bias = nullptr;
  bool add = false;
  int64_t group_rows = 0, group_words = 0;  // rows whose products have the same columns of x; words of these columns
  // Experts.
  int64_t up_offset = 0, down_offset = 0, trailer_offset = 0;
  const std::byte* const* blobs = nullptr;
  PrefillLists lists;
  int item_begin = 0, item_end = 0;
  int top_k = 1;
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  int64_t bias_offset = 0;  // of gate's or down's; 0: none
  Glu glu;
};

// Plain: of experts without biases whose unit is SiLU's.
enum class Kind { kLinear, kPlainGateUp, kGateUp, kPlainDown, kDown };
constexpr bool is_gate_up(Kind kind) { return kind == Kind::kPlainGateUp || kind == Kind::kGateUp; }
constexpr bool is_down(Kind kind) { return kind == Kind::kPlainDown || kind == Kind::kDown; }

// Token tiles of this launch: [begin, begin + count).
template <Kind kKind>
__device__ __forceinline__ int token_tiles(const ProductWork& work, int& begin) {
  if constexpr (kKind == Kind::kLinear) {
    begin = 0;
    return static_cast<int>((work.tokens + kTileTokens - 1) / kTileTokens);
  } else {
    begin = work.lists.tile_begin[work.item_begin];
    return work.lists.tile_begin[work.item_end] - begin;
  }
}

// Fills `rows` and says how many there are; `blob`: the expert, or the matrix.
template <Kind kKind>
__device__ __forceinline__ int take_rows_of_tile(const ProductWork& work, int tile, TileRows& rows,
                                                 const std::byte*& blob) {
  const auto thread = static_cast<int>(threadIdx.x);
  if constexpr (kKind == Kind::kLinear) {
    blob = work.matrix;
    const int64_t begin = static_cast<int64_t>(tile) * kTileTokens;
    const auto count =
        static_cast<int>(min(static_cast<long long>(work.tokens - begin), static_cast<long long>(kTileTokens)));
    if (thread < kTileTokens) {
      rows.in[thread] = rows.out[thread] = thread < count ? static_cast<int32_t>(begin) + thread : -1;
    }
    return count;
  } else {
    const PrefillTile own = work.lists.tiles[tile];
    blob = work.blobs[own.item];
    if (thread < kTileTokens) {
      const int32_t pair = thread < own.count ? work.lists.order[own.begin + thread] : -1;
      rows.out[thread] = pair;
      rows.in[thread] = pair < 0 || is_down(kKind) ? pair : pair / work.top_k;
    }
    return own.count;
  }
}

__device__ __forceinline__ float silu_approximate(float g) {
  constexpr float kLog2 = 1.4426950408889634f;
  return __fdividef(g, 1.0f + exp2_approximate(-kLog2 * g));
}

// kernels/ops/glu.h.
__device__ __forceinline__ float glu_approximate(const Glu& how, float g, float u) {
  constexpr float kLog2 = 1.4426950408889634f;
  if (how.kind == GluKind::kSiluClamped || how.kind == GluKind::kOss) {
    g = f32::min(how.limit, g);
    u = f32::min(how.limit, f32::max(-how.limit, u));
  }
  float s = g;
  if (how.kind == GluKind::kGeluTanh) s = kGeluTwiceScale * f32::fma(kGeluCubic, f32::mul(f32::mul(g, g), g), g);
  if (how.kind == GluKind::kOss) {
    s = kOssAlpha * g;
    u = f32::add(u, 1.0f);
  }
  return f32::mul(__fdividef(g, 1.0f + exp2_approximate(-kLog2 * s)), u);
}

// What the sums of row `row` are multiplied by before the matrix' global.
template <class Product>
__device__ __forceinline__ float unit_of_row(const ProductWork& work, const std::byte* matrix, int64_t row) {
  if constexpr (!Product::Weights::kRowScales) return Product::Weights::kUnit;
  if (row >= work.shape.rows) return 0.0f;
  return __ldg(reinterpret_cast<const float*>(matrix + work.shape.scales_offset) + row);
}

// Of row `row` of the part that begins `part` rows after the first; 0 where there is none.
__device__ __forceinline__ float expert_bias(const ProductWork& work, const std::byte* blob, int64_t part,
                                             int64_t row) {
  if (work.bias_offset == 0 || row >= work.shape.rows) return 0.0f;
  return __ldg(reinterpret_cast<const float*>(blob + work.bias_offset) + part + row);
}

// Sums to packed bf16 activations, through shared memory: 16 bytes of one pair and four lanes at a time.
template <Kind kKind, class Product>
__device__ __forceinline__ void store_activated(const Product& product, const ProductWork& work, const std::byte* blob,
                                                int64_t first_row, const TileRows& rows, uint32_t* staged,
                                                const typename Product::Sums& sums) {
  const float4 trailer = *reinterpret_cast<const float4*>(blob + work.trailer_offset);
#pragma unroll
  for (int m = 0; m < Product::kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int token = product.token(m, h);
      if (rows.out[token] < 0) continue;
#pragma unroll
      for (int n = 0; n < Product::kN; n += 2) {
        const int row = product.row(n) / 16 * 8 + product.row(n) % 8;  // of the 64
        float a[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float gate_unit = unit_of_row<Product>(work, blob, first_row + row + i);
          const float up_unit = unit_of_row<Product>(work, blob + work.up_offset, first_row + row + i);
          const float g = f32::mul(f32::mul(sums[m][n][2 * h + i], gate_unit), trailer.x);
          const float u = f32::mul(f32::mul(sums[m][n + 1][2 * h + i], up_unit), trailer.y);
          if constexpr (kKind == Kind::kPlainGateUp) {
            a[i] = f32::mul(silu_approximate(g), u);
          } else {
            const int64_t bias_row = first_row + row + i;
            a[i] = glu_approximate(work.glu, f32::add(g, expert_bias(work, blob, 0, bias_row)),
                                   f32::add(u, expert_bias(work, blob, work.shape.rows, bias_row)));
          }
        }
        staged[token * kStagedStride + row % 16 / 2 * 4 + row / 16] = bf16_pair(a[0], a[1]);
      }
    }
  }
  __syncthreads();
  const int64_t first_word = first_row / 256 * 128 + first_row % 256 / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * 8; i += Product::kThreads) {
    const int token = i / 8, pair = i % 8;
    if (rows.out[token] < 0) continue;
    uint32_t* to = work.activated + rows.out[token] * work.activated_words + first_word + pair * kLanes;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(staged + token * kStagedStride + pair * 4);
  }
}

template <Kind kKind, class Product>
__device__ __forceinline__ void store_rows(const Product& product, const ProductWork& work, const std::byte* blob,
                                           int64_t first_row, const TileRows& rows,
                                           const typename Product::Sums& sums) {
  const std::byte* matrix = is_down(kKind) ? blob + work.down_offset : blob;
  const float global = is_down(kKind) ? reinterpret_cast<const float4*>(blob + work.trailer_offset)->z : work.global;
  const bool pairs =
      work.out_stride % 2 == 0 && work.shape.rows % 2 == 0 && reinterpret_cast<uintptr_t>(work.out) % 8 == 0;
#pragma unroll
  for (int m = 0; m < Product::kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t out_row = rows.out[product.token(m, h)];
      if (out_row < 0) continue;
      float* y = work.out + out_row * work.out_stride;
#pragma unroll
      for (int n = 0; n < Product::kN; ++n) {
        const int64_t row = first_row + product.row(n);
        float value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          value[i] = f32::mul(f32::mul(sums[m][n][2 * h + i], unit_of_row<Product>(work, matrix, row + i)), global);
          if (kKind == Kind::kDown) value[i] = f32::add(value[i], expert_bias(work, blob, 0, row + i));
          if (kKind == Kind::kLinear && row + i < work.shape.rows) {
            if (work.bias != nullptr) value[i] = f32::add(value[i], work.bias[row + i]);
            if (work.add) value[i] = f32::add(y[row + i], value[i]);
          }
        }
        if (pairs) {
          if (row < work.shape.rows) *reinterpret_cast<float2*>(y + row) = make_float2(value[0], value[1]);
        } else {
          if (row < work.shape.rows) y[row] = value[0];
          if (row + 1 < work.shape.rows) y[row + 1] = value[1];
        }
      }
    }
  }
}

template <FormatId kFormat, Kind kKind>
using ProductOf = ProductTile<kFormat, is_gate_up(kKind) ? 2 : 1>;

template <FormatId kFormat, Kind kKind>
__global__ __launch_bounds__(
    ProductOf<kFormat, kKind>::kThreads,
    ProductOf<kFormat, kKind>::kBlocksPerProcessor) void product_kernel(const ProductWork work) {
  using Product = ProductOf<kFormat, kKind>;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& rows = *reinterpret_cast<TileRows*>(shared + Product::kSharedBytes - sizeof(TileRows));
  int begin = 0;
  const int64_t tiles = static_cast<int64_t>(token_tiles<kKind>(work, begin)) * work.row_tiles;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::byte* blob = nullptr;
    __syncthreads();  // the tile before is stored
    const int count = take_rows_of_tile<kKind>(work, begin + static_cast<int>(tile / work.row_tiles), rows, blob);
    __syncthreads();
    constexpr int kRows = is_gate_up(kKind) ? kPairRows : kTileRows;
    const int64_t first_row = tile % work.row_tiles * kRows;
    WeightMatrices weights;
    weights.matrix[0] = is_down(kKind) ? blob + work.down_offset : blob;
    weights.matrix[1] = blob + work.up_offset;
    weights.shape = work.shape;
    weights.first_tile = first_row / kRowsPerTile;
    weights.aligned = work.aligned;
    const uint32_t* x = work.x;
    if constexpr (kKind == Kind::kLinear) x += first_row / work.group_rows * work.group_words;
    Product product;
    typename Product::Sums sums;
    product.run(weights, x, work.x_words, work.k_tiles, count, rows, shared_address(shared), sums);
    if constexpr (is_gate_up(kKind)) {
      store_activated<kKind>(product, work, blob, first_row, rows, reinterpret_cast<uint32_t*>(shared), sums);
    } else {
      store_rows<kKind>(product, work, blob, first_row, rows, sums);
    }
  }
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "cannot ask which device is used");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cannot ask for multiprocessors");
  return count;
}

template <Kind kKind>
void launch_products(ProductWork work, FormatId format, int64_t max_token_tiles, const char* name,
                     StreamHandle stream) {
  with_format(format, [&]<FormatId kFormat>() {
    using Product = ProductOf<kFormat, kKind>;
    const auto kernel = product_kernel<kFormat, kKind>;
    if (Product::Weights::kWholeBlocks) work.k_tiles = work.shape.blocks * 4;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Product::kSharedBytes),
          "cannot have the shared memory of a prefill product");
    // Room for two blocks, which the driver does not always leave by itself.
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          "cannot set the shared memory of a prefill product");
    const int64_t at_once = int64_t{multiprocessors()} * Product::kBlocksPerProcessor;
    const auto blocks = static_cast<unsigned>(std::min(max_token_tiles * work.row_tiles, at_once));
    kernel<<<blocks, Product::kThreads, Product::kSharedBytes, stream>>>(work);
  });
  require_launched(name);
}

ProductWork product_work(const PackedLayout& layout, int rows_per_tile) {
  ProductWork work;
  work.shape = tile_shape(layout);
  work.aligned = layout.last_lanes % 4 == 0;
  work.k_tiles = k_tiles(layout.cols);
  work.row_tiles = static_cast<int>(ceil_div(layout.rows, rows_per_tile));
  work.x_words = activation_words(layout.cols);
  return work;
}

void add_experts(const PrefillExpertArgs& args, ProductWork& work) {
  work.up_offset = args.layout.up_offset;
  work.down_offset = args.layout.down_offset;
  work.trailer_offset = args.layout.trailer_offset;
  work.blobs = args.blobs;
  work.lists = args.lists;
  work.item_begin = args.item_begin;
  work.item_end = args.item_end;
  work.top_k = args.top_k;
}

}  // namespace

bool prefill_groups_take(const PackedLayout& layout, int groups) {
  return groups >= 1 && layout.rows % groups == 0 && layout.rows / groups % kTileRows == 0 && layout.cols % 256 == 0;
}

void prefill_linear(const PrefillLinearArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.groups == 1 || prefill_groups_take(args.w.layout, args.groups));
  ProductWork work = product_work(args.w.layout, kTileRows);
  work.x = args.x;
  work.out = args.y;
  work.out_stride = args.y_stride;
  work.matrix = args.w.data;
  work.global = args.w.global;
  work.tokens = args.tokens;
  work.bias = args.bias;
  work.add = args.add;
  work.group_rows = args.groups == 1 ? std::max<int64_t>(1, args.w.layout.rows) : args.w.layout.rows / args.groups;
  if (args.groups > 1) {
    work.group_words = activation_words(args.w.layout.cols);
    work.x_words = args.groups * work.group_words;
  }
  launch_products<Kind::kLinear>(work, args.w.layout.format, ceil_div(args.tokens, kTileTokens), "prefill_linear",
                                 stream);
}

void prefill_gate_up(const PrefillExpertArgs& args, StreamHandle stream) {
  if (args.pairs == 0 || args.item_begin == args.item_end) return;
  ProductWork work = product_work(args.layout.gate, kPairRows);
  add_experts(args, work);
  work.x = args.x;
  work.activated = args.activated;
  work.activated_words = activation_words(args.layout.intermediate);
  work.glu = args.layout.glu;
  work.bias_offset = args.layout.bias_offset;
  const bool plain = work.bias_offset == 0 && work.glu.kind == GluKind::kSilu;
  const auto launch_one = plain ? launch_products<Kind::kPlainGateUp> : launch_products<Kind::kGateUp>;
  launch_one(work, args.layout.gate.format, max_prefill_tiles(args.pairs, args.item_end - args.item_begin),
             "prefill_gate_up", stream);
}

void prefill_down(const PrefillExpertArgs& args, StreamHandle stream) {
  if (args.pairs == 0 || args.item_begin == args.item_end) return;
  ProductWork work = product_work(args.layout.down, kTileRows);
  add_experts(args, work);
  work.x = args.activated;
  work.out = args.out;
  work.out_stride = args.out_stride;
  work.bias_offset = down_bias_offset(args.layout);
  const auto launch_one = work.bias_offset == 0 ? launch_products<Kind::kPlainDown> : launch_products<Kind::kDown>;
  launch_one(work, args.layout.down.format, max_prefill_tiles(args.pairs, args.item_end - args.item_begin),
             "prefill_down", stream);
}

}  // namespace ft::cuda
