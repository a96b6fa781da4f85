// Attention of prefill on tensor cores (the running softmax of FlashAttention-2, Dao 2023): a block is 128 query rows
// of one sequence and one head, a warp 16 of them; keys and values come in chunks of positions through two buffers.
// Queries are in registers up to 128 dimensions, in shared memory beyond. Heads of up to 512 dimensions take two
// blocks, each for half of the values, whose sums are what fills the registers; both make the scores.
//
// Chunks start at multiples of their size and a row's arithmetic is that of the chunks it sees: a chunk that lies
// outside its window leaves its maximum as it is, multiplies by 2^0 and adds +0. So a row's bits depend on its position
// and on what the cache holds, not on the rows beside it.
#include <limits>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/head_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/prefill.h"

namespace ft::cuda {
namespace {

constexpr int kRows = kPrefillQueryRows;
constexpr int kThreads = 256;
static_assert(kRows == kThreads / kWarp * 16);

// kDim: head_dim rounded up; dimensions past head_dim are zeros. kValues: dimensions whose values a block sums.
template <int kDimensions, int kValueDimensions, int kChunkPositions, bool kShared>
struct Form {
  static constexpr int kDim = kDimensions, kValues = kValueDimensions;
  static constexpr int kPositions = kChunkPositions;  // of a chunk
  static constexpr bool kSharedQueries = kShared;
  static constexpr int kScoreTiles = kPositions / 8;
  static constexpr int kParts = kDim / kValues;  // blocks of a head
  static constexpr int kKeyBytes = kPositions * kDim * 2, kValueBytes = kPositions * kValues * 2;
  static constexpr int kQueryBytes = kShared ? kRows * kDim * 2 : 0;
  static constexpr int kSharedBytes = kQueryBytes + 2 * (kKeyBytes + kValueBytes);
  using Scores = float[kScoreTiles][4];
};

struct Source {
  const bf16* keys = nullptr;    // row 0 of the sequence and KV head
  const bf16* values = nullptr;  // the first that this block sums
  int64_t stride = 0;            // between rows
  int64_t last = 0;              // last position that is read
  int dims = 0, value_dims = 0;  // that are there
};

// Rows of a chunk, of which `first` is the first position and stands at row `first_row`.
template <int kDim, int kPositions>
__device__ __forceinline__ void copy_rows(const bf16* rows, int64_t stride, int64_t first_row, int64_t left, int dims,
                                          uint32_t to) {
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int i = 0; i < kPositions * kChunks / kThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = index / kChunks, part = index % kChunks;
    const bool there = row < left && part * 8 < dims;
    copy_async_16(row_chunk<kDim>(to, row, part), there ? rows + (first_row + row) * stride + part * 8 : rows, there);
  }
}

template <class F>
__device__ __forceinline__ void copy_chunk(const Source& source, const KvView& kv, int64_t chunk, uint32_t keys) {
  const int64_t first = chunk * F::kPositions, first_row = kv_row(kv, first), left = source.last - first + 1;
  copy_rows<F::kDim, F::kPositions>(source.keys, source.stride, first_row, left, source.dims, keys);
  copy_rows<F::kValues, F::kPositions>(source.values, source.stride, first_row, left, source.value_dims,
                                       keys + F::kKeyBytes);
  commit_copies();
}

// Dimensions d and d + 1 of a query row as bf16.
__device__ __forceinline__ uint32_t query_pair(const PrefillAttentionArgs& args, const PrefillQueries& tile, int head,
                                               int row, int d) {
  if (row >= tile.count || d >= args.head_dim) return 0u;
  const float* from = args.q + (tile.token + row) * args.q_stride + head * query_stride(args.gated, args.head_dim) + d;
  return bf16_pair(from[0], from[1]);
}

// 16 query rows of a warp as fragments, thread l having rows l / 4 and l / 4 + 8.
template <class F>
struct Queries {
  static constexpr int kSteps = F::kSharedQueries ? 1 : F::kDim / 16;
  uint32_t own[kSteps][4];
  uint32_t rows = 0;  // in shared memory: the address that this thread gives to load_matrices

  __device__ __forceinline__ void load(const PrefillAttentionArgs& args, const PrefillQueries& tile, int head,
                                       int first_row, uint32_t shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (F::kSharedQueries) {
      for (int i = lane; i < 16 * F::kDim / 2; i += kWarp) {  // each warp its own rows
        const int row = first_row + i / (F::kDim / 2), d = i % (F::kDim / 2) * 2;
        const uint32_t to = row_chunk<F::kDim>(shared, row, d / 8) + d % 8 * 2;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(query_pair(args, tile, head, row, d)) : "memory");
      }
      __syncwarp();
      rows = shared;
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          own[step][i] =
              query_pair(args, tile, head, first_row + lane / 4 + i % 2 * 8, step * 16 + i / 2 * 8 + lane % 4 * 2);
        }
      }
    }
  }

  __device__ __forceinline__ const uint32_t (&at(int step, int first_row))[4] {
    if constexpr (F::kSharedQueries) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      load_matrices(own[0], row_chunk<F::kDim>(rows, first_row + lane % 16, step * 2 + lane / 16));
      return own[0];
    } else {
      return own[step];
    }
  }
};

template <class F>
struct Rows {
  static constexpr int kScoreTiles = F::kScoreTiles, kTiles = F::kValues / 8;
  float out[kTiles][4] = {};
  float largest[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  float sum[2] = {};  // of this thread's columns

  // Scores of the chunk to weights in place. scale: times log2 e.
  __device__ __forceinline__ void weigh(typename F::Scores& scores, float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = largest[h];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) m = fmaxf(m, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 1));
      m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 2));
      // From the difference, so that a maximum that stays multiplies by exactly 1.
      const float from = m == -std::numeric_limits<float>::infinity() ? 0.0f : m;
      const float correction = exp2_approximate(f32::mul(f32::sub(largest[h], from), scale));
      const float zero = f32::mul(from, scale);
      largest[h] = m;
      sum[h] = f32::mul(sum[h], correction);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        out[n][2 * h] = f32::mul(out[n][2 * h], correction);
        out[n][2 * h + 1] = f32::mul(out[n][2 * h + 1], correction);
      }
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[n][2 * h + i];
          score = exp2_approximate(f32::fma(score, scale, -zero));
          sum[h] = f32::add(sum[h], score);
        }
      }
    }
  }
};

// Minus infinity where a position of the chunk is not visible from the row's.
template <class F>
__device__ __forceinline__ void mask_scores(typename F::Scores& scores, int64_t chunk, int64_t position,
                                            int64_t window) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int n = 0; n < F::kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = position + lane / 4 + i / 2 * 8;
      const int64_t t = chunk * F::kPositions + n * 8 + lane % 4 * 2 + i % 2;
      if (t > row || (window > 0 && t <= row - window)) scores[n][i] = -std::numeric_limits<float>::infinity();
    }
  }
}

template <class F>
__device__ __forceinline__ void score(Queries<F>& queries, int first_row, uint32_t keys, typename F::Scores& scores) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int n = 0; n < F::kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
#pragma unroll(F::kSharedQueries ? 4 : F::kDim / 16)
  for (int step = 0; step < F::kDim / 16; ++step) {
    const uint32_t(&q)[4] = queries.at(step, first_row);
#pragma unroll
    for (int n = 0; n < F::kScoreTiles; n += 2) {
      uint32_t k[4];
      load_matrices(k, row_chunk<F::kDim>(keys, n * 8 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
      multiply_add(scores[n], q, k[0], k[1]);
      multiply_add(scores[n + 1], q, k[2], k[3]);
    }
  }
}

template <class F>
__device__ __forceinline__ void add_values(const typename F::Scores& weights, uint32_t values,
                                           float (&out)[F::kValues / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 0; step < F::kPositions / 16; ++step) {
    const float(&even)[4] = weights[2 * step];
    const float(&odd)[4] = weights[2 * step + 1];
    const uint32_t p[4] = {bf16_pair(even[0], even[1]), bf16_pair(even[2], even[3]), bf16_pair(odd[0], odd[1]),
                           bf16_pair(odd[2], odd[3])};
#pragma unroll
    for (int n = 0; n < F::kValues / 8; n += 2) {
      uint32_t v[4];
      load_matrices_transposed(v, row_chunk<F::kValues>(values, step * 16 + lane % 16, n + lane / 16));
      multiply_add(out[n], p, v[0], v[1]);
      multiply_add(out[n + 1], p, v[2], v[3]);
    }
  }
}

// first_dim: of the head, that this block's values begin with.
template <class F>
__device__ __forceinline__ void store_rows(const PrefillAttentionArgs& args, const PrefillQueries& tile, int head,
                                           int first_row, int first_dim, float scale, Rows<F>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum = f32::add(sum, __shfl_xor_sync(kFullWarp, sum, 1));
    sum = f32::add(sum, __shfl_xor_sync(kFullWarp, sum, 2));
    if (args.sinks != nullptr) {  // one that is far above all scores leaves 0
      const float sink = f32::fma(args.sinks[head], kLog2e, -f32::mul(rows.largest[h], scale));
      sum = f32::add(sum, exp2_approximate(sink));
    }
    const int row = first_row + lane / 4 + h * 8;
    if (row >= tile.count) continue;
    const float inverse = f32::div(1.0f, sum);
    const int64_t d = first_dim + lane % 4 * 2;
    float* to = args.out + (tile.token + row) * args.out_stride + head * args.head_dim + d;
    const float* gate = args.q + (tile.token + row) * args.q_stride + (2 * head + 1) * args.head_dim + d;
#pragma unroll
    for (int n = 0; n < F::kValues / 8; ++n) {
      if (first_dim + n * 8 >= args.head_dim) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = f32::mul(rows.out[n][2 * h + i], inverse);
        to[n * 8 + i] = args.gated ? gated_by(value, gate[n * 8 + i]) : value;
      }
    }
  }
}

template <class F>
__global__ __launch_bounds__(kThreads, 1) void attention_kernel(const PrefillAttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kPositions = F::kPositions;
  // Tiles with the most positions first.
  const PrefillQueries tile = args.tiles[args.tile_count - 1 - static_cast<int>(blockIdx.y)];
  const auto head = static_cast<int>(blockIdx.x) / F::kParts;
  const int first_dim = static_cast<int>(blockIdx.x) % F::kParts * F::kValues;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  Source source;
  source.stride = kv_stride(args.kv_heads, args.head_dim);
  source.keys = args.kv.data + tile.sequence * args.kv.positions * source.stride +
                head / (args.heads / args.kv_heads) * args.head_dim;
  source.values = source.keys + args.kv_heads * args.head_dim + first_dim;
  source.last = tile.position + tile.count - 1;
  source.dims = static_cast<int>(args.head_dim);
  source.value_dims = source.dims - first_dim;
  const uint32_t buffers = shared_address(shared) + F::kQueryBytes;
  Queries<F> queries;
  queries.load(args, tile, head, first_row, shared_address(shared));
  Rows<F> rows;

  const int64_t visible = args.window > 0 && tile.position >= args.window ? tile.position - args.window + 1 : 0;
  const int64_t begin = visible / kPositions, end = source.last / kPositions + 1;
  const int64_t own = tile.position + first_row;  // position of the warp's first row
  const float scale = f32::mul(args.scale, kLog2e);
  const bool has_rows = first_row < tile.count;
  const auto buffer_of = [&](int64_t chunk) {
    return buffers + static_cast<uint32_t>((chunk - begin) % 2 * (F::kKeyBytes + F::kValueBytes));
  };
  copy_chunk<F>(source, args.kv, begin, buffers);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const uint32_t keys = buffer_of(chunk);
    wait_copies<0>();
    __syncthreads();
    if (chunk + 1 < end) copy_chunk<F>(source, args.kv, chunk + 1, buffer_of(chunk + 1));
    const int64_t first = chunk * kPositions;
    const bool before_all = args.window > 0 && first + kPositions <= own - args.window + 1;
    if (!has_rows || first > own + 15 || before_all) continue;
    typename F::Scores scores;
    score<F>(queries, first_row, keys, scores);
    if (first + kPositions - 1 > own || (args.window > 0 && first <= own + 15 - args.window)) {
      mask_scores<F>(scores, chunk, own, args.window);
    }
    rows.weigh(scores, scale);
    add_values<F>(scores, keys + F::kKeyBytes, rows.out);
  }
  store_rows<F>(args, tile, head, first_row, first_dim, scale, rows);
}

using Form64 = Form<64, 64, 64, false>;
using Form128 = Form<128, 128, 64, false>;
using Form256 = Form<256, 256, 64, true>;  // 192 KiB of shared memory
using Form512 = Form<512, 256, 32, true>;  // 224 KiB

// Calls f.template operator()<Form>() for the head_dim.
template <class Function>
auto with_form(int64_t head_dim, Function&& f) {
  if (head_dim <= 64) return f.template operator()<Form64>();
  if (head_dim <= 128) return f.template operator()<Form128>();
  if (head_dim <= 256) return f.template operator()<Form256>();
  return f.template operator()<Form512>();
}

}  // namespace

bool prefill_attention_takes(int64_t head_dim) {
  if (head_dim <= 0 || head_dim % 8 != 0 || head_dim > Form512::kDim) return false;
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "cannot ask for the device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cannot ask for shared memory");
  return with_form(head_dim, [&]<class F>() { return F::kSharedBytes <= bytes; });
}

void prefill_attention(const PrefillAttentionArgs& args, StreamHandle stream) {
  if (args.tile_count == 0) return;
  FT_CHECK(prefill_attention_takes(args.head_dim) && args.tile_count <= kMaxGridY && args.scale > 0);
  FT_CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0);
  FT_CHECK(reinterpret_cast<uintptr_t>(args.kv.data) % 16 == 0);
  with_form(args.head_dim, [&]<class F>() {
    const auto kernel = attention_kernel<F>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes),
          "cannot have the shared memory of prefill's attention");
    const dim3 grid(static_cast<unsigned>(args.heads * F::kParts), static_cast<unsigned>(args.tile_count));
    kernel<<<grid, kThreads, F::kSharedBytes, stream>>>(args);
  });
  require_launched("prefill_attention");
}

}  // namespace ft::cuda
