// Attention of prefill on tensor cores (the running softmax of FlashAttention-2, Dao 2023): a block is 128 query rows
// of one sequence and one head, a warp 16 of them; keys and values come in chunks of 64 positions through two buffers.
//
// Chunks start at multiples of 64 and a row's arithmetic is that of the chunks it sees: a chunk that lies outside its
// window leaves its maximum as it is, multiplies by 2^0 and adds +0. So a row's bits depend on its position and on what
// the cache holds, not on the rows beside it.
#include <limits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/prefill.h"

namespace ft::cuda {
namespace {

constexpr int kRows = kPrefillQueryRows;
constexpr int kPositions = 64;
constexpr int kThreads = 256;
static_assert(kRows == kThreads / kWarp * 16);
constexpr int kScoreTiles = kPositions / 8;

// kDim: head_dim rounded up to 64 or 128; dimensions past head_dim are zeros.
template <int kDim>
constexpr int chunk_bytes() {
  return kPositions * kDim * 2;
}
template <int kDim>
constexpr int shared_bytes() {
  return 4 * chunk_bytes<kDim>();
}

template <int kDim>
__device__ __forceinline__ uint32_t row_chunk(uint32_t buffer, int row, int chunk) {
  return buffer + static_cast<uint32_t>(row * (kDim * 2) + ((chunk ^ (row & 7)) << 4));
}

struct Source {
  const bf16* keys = nullptr;  // of the sequence and KV head
  int64_t stride = 0;          // between positions
  int64_t values = 0;          // from a key to its value
  int64_t last = 0;            // last position that is read
  int dims = 0;                // head_dim
};

template <int kDim>
__device__ __forceinline__ void copy_chunk(const Source& source, int64_t chunk, uint32_t keys) {
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int i = 0; i < kPositions * kChunks / kThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = index / kChunks, part = index % kChunks;
    const int64_t position = chunk * kPositions + row;
    const bool there = position <= source.last && part * 8 < source.dims;
    const bf16* from = there ? source.keys + position * source.stride + part * 8 : source.keys;
    const uint32_t to = row_chunk<kDim>(keys, row, part);
    copy_async_16(to, from, there);
    copy_async_16(to + chunk_bytes<kDim>(), from + source.values, there);
  }
  commit_copies();
}

// Fragments of 16 query rows, thread l having rows l / 4 and l / 4 + 8.
template <int kDim>
__device__ __forceinline__ void load_queries(const PrefillAttentionArgs& args, const PrefillQueries& tile, int head,
                                             int first_row, uint32_t (&q)[kDim / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + lane / 4 + i % 2 * 8;
      const int d = step * 16 + i / 2 * 8 + lane % 4 * 2;
      float2 pair = make_float2(0.0f, 0.0f);
      if (row < tile.count && d < args.head_dim) {
        const float* from = args.q + (tile.token + row) * args.q_stride + head * args.head_dim + d;
        pair = make_float2(from[0], from[1]);
      }
      q[step][i] = bf16_pair(pair.x, pair.y);
    }
  }
}

template <int kDim>
struct Rows {
  float out[kDim / 8][4] = {};
  float largest[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  float sum[2] = {};  // of this thread's columns

  // Scores of the chunk to weights in place. scale: times log2 e.
  __device__ __forceinline__ void weigh(float (&scores)[kScoreTiles][4], float scale) {
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
      for (int n = 0; n < kDim / 8; ++n) {
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

// Minus infinity where position chunk * 64 + column is not visible from the row's.
__device__ __forceinline__ void mask_scores(float (&scores)[kScoreTiles][4], int64_t chunk, int64_t position,
                                            int64_t window) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = position + lane / 4 + i / 2 * 8;
      const int64_t t = chunk * kPositions + n * 8 + lane % 4 * 2 + i % 2;
      if (t > row || (window > 0 && t <= row - window)) scores[n][i] = -std::numeric_limits<float>::infinity();
    }
  }
}

template <int kDim>
__device__ __forceinline__ void score(const uint32_t (&q)[kDim / 16][4], uint32_t keys,
                                      float (&scores)[kScoreTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      uint32_t k[4];
      load_matrices(k, row_chunk<kDim>(keys, n * 8 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
      multiply_add(scores[n], q[step], k[0], k[1]);
      multiply_add(scores[n + 1], q[step], k[2], k[3]);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void add_values(const float (&weights)[kScoreTiles][4], uint32_t values,
                                           float (&out)[kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 0; step < kPositions / 16; ++step) {
    const float(&even)[4] = weights[2 * step];
    const float(&odd)[4] = weights[2 * step + 1];
    const uint32_t p[4] = {bf16_pair(even[0], even[1]), bf16_pair(even[2], even[3]), bf16_pair(odd[0], odd[1]),
                           bf16_pair(odd[2], odd[3])};
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t v[4];
      load_matrices_transposed(v, row_chunk<kDim>(values, step * 16 + lane % 16, n + lane / 16));
      multiply_add(out[n], p, v[0], v[1]);
      multiply_add(out[n + 1], p, v[2], v[3]);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void store_rows(const PrefillAttentionArgs& args, const PrefillQueries& tile, int head,
                                           int first_row, Rows<kDim>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum = f32::add(sum, __shfl_xor_sync(kFullWarp, sum, 1));
    sum = f32::add(sum, __shfl_xor_sync(kFullWarp, sum, 2));
    const int row = first_row + lane / 4 + h * 8;
    if (row >= tile.count) continue;
    const float inverse = f32::div(1.0f, sum);
    float* to = args.out + (tile.token + row) * args.out_stride + head * args.head_dim + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n * 8 >= args.head_dim) break;
      to[n * 8] = f32::mul(rows.out[n][2 * h], inverse);
      to[n * 8 + 1] = f32::mul(rows.out[n][2 * h + 1], inverse);
    }
  }
}

template <int kDim>
__global__ __launch_bounds__(kThreads, 1) void attention_kernel(const PrefillAttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  // Tiles with the most positions first.
  const PrefillQueries tile = args.tiles[args.tile_count - 1 - static_cast<int>(blockIdx.y)];
  const auto head = static_cast<int>(blockIdx.x);
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const int64_t stride = 2 * args.kv_heads * args.head_dim;
  Source source;
  source.keys =
      args.kv.data + tile.sequence * args.kv.positions * stride + head / (args.heads / args.kv_heads) * args.head_dim;
  source.stride = stride;
  source.values = args.kv_heads * args.head_dim;
  source.last = tile.position + tile.count - 1;
  source.dims = static_cast<int>(args.head_dim);
  uint32_t q[kDim / 16][4];
  load_queries<kDim>(args, tile, head, first_row, q);
  Rows<kDim> rows;

  const int64_t visible = args.window > 0 && tile.position >= args.window ? tile.position - args.window + 1 : 0;
  const int64_t begin = visible / kPositions, end = source.last / kPositions + 1;
  const int64_t own = tile.position + first_row;  // position of the warp's first row
  const float scale = f32::mul(args.scale, 1.4426950408889634f);
  const uint32_t buffers = shared_address(shared);
  const bool has_rows = first_row < tile.count;
  copy_chunk<kDim>(source, begin, buffers);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const uint32_t keys = buffers + static_cast<uint32_t>((chunk - begin) % 2 * 2 * chunk_bytes<kDim>());
    wait_copies<0>();
    __syncthreads();
    if (chunk + 1 < end) {
      copy_chunk<kDim>(source, chunk + 1,
                       buffers + static_cast<uint32_t>((chunk + 1 - begin) % 2 * 2 * chunk_bytes<kDim>()));
    }
    const int64_t first = chunk * kPositions;
    const bool before_all = args.window > 0 && first + kPositions <= own - args.window + 1;
    if (!has_rows || first > own + 15 || before_all) continue;
    float scores[kScoreTiles][4];
    score<kDim>(q, keys, scores);
    if (first + kPositions - 1 > own || (args.window > 0 && first <= own + 15 - args.window)) {
      mask_scores(scores, chunk, own, args.window);
    }
    rows.weigh(scores, scale);
    add_values<kDim>(scores, keys + chunk_bytes<kDim>(), rows.out);
  }
  store_rows<kDim>(args, tile, head, first_row, rows);
}

template <int kDim>
void launch_dim(const PrefillAttentionArgs& args, StreamHandle stream) {
  const auto kernel = attention_kernel<kDim>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<kDim>()),
        "cannot have the shared memory of prefill's attention");
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.tile_count));
  kernel<<<grid, kThreads, shared_bytes<kDim>(), stream>>>(args);
  require_launched("prefill_attention");
}

}  // namespace

void prefill_attention(const PrefillAttentionArgs& args, StreamHandle stream) {
  if (args.tile_count == 0) return;
  FT_CHECK(prefill_attention_takes(args.head_dim) && args.tile_count <= kMaxGridY && args.scale > 0);
  FT_CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0);
  FT_CHECK(reinterpret_cast<uintptr_t>(args.kv.data) % 16 == 0);
  return args.head_dim <= 64 ? launch_dim<64>(args, stream) : launch_dim<128>(args, stream);
}

}  // namespace ft::cuda
