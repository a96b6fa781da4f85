// Attention of prompts' tokens to a window and to compressed entries on tensor cores: a block is a token and up to 64
// of its heads, which share all rows, and a row is key and value. So a token is two products, heads x dims x rows and
// heads x rows x dims, with the running softmax of FlashAttention-2 (Dao 2023) between them.
//
// Rows come in tiles of 64, in the order of compressed_gather (window, then entries), straight from this step's rows,
// the ring, or the entries, through two buffers. Of 512 dimensions: queries 64 KiB, buffers 2 x 64, weights 16, maxima
// and sums 2: 210 of an H100's 227 KiB, so one block an SM, of 16 warps (128 registers a thread, 40 bytes spilled). A
// warp has 16 heads, and of a tile's scores a quarter of the rows (8 registers), of the sums a quarter of the
// dimensions (64 registers); the four warps of the same heads exchange maxima and weights through shared memory,
// between barriers of their own. Tiles of 32 would halve the buffers and still leave one block an SM, with twice the
// barriers.
//
// Weights are two bf16 each, value and rest, so they are off by 2^-17 of themselves: one bf16 (2^-9) may do, but
// entries are chosen, and rows rounded to grids, by what the layers before have made. The second product
// of a value needs no second load of it.
//
// A token's tiles begin with its own window, so its bits do not depend on the tokens beside it.
#include <limits>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/compressed.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kHeads = 64;  // of a block
constexpr int kTileRows = 64;
constexpr int kHeadTiles = kHeads / 16;
constexpr int kQuarters = 4;  // warps of the same heads
constexpr int kThreads = kHeadTiles * kQuarters * kWarp;
constexpr int kQuarterRows = kTileRows / kQuarters;
constexpr int kScoreTiles = kQuarterRows / 8;
static_assert(kScoreTiles == 2, "one load_matrices has the keys of a warp");
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// kDim: head_dim rounded up; dimensions past head_dim are zeros.
template <int kDimensions>
struct Form {
  static constexpr int kDim = kDimensions;
  static constexpr int kChunks = kDim / 8;  // 16 bytes of a row each
  static constexpr int kQuarterDims = kDim / kQuarters, kTiles = kQuarterDims / 8;
  static_assert(kTiles % 2 == 0, "load_matrices_transposed has two tiles");
  static constexpr int kCopies = kTileRows * kChunks / kThreads;  // of a thread for a tile
  static constexpr int kQueryBytes = kHeads * kDim * 2, kBufferBytes = kTileRows * kDim * 2;
  static constexpr int kWeightBytes = kHeads * kTileRows * 2;  // twice: values, rests
  static constexpr int kNumberBytes = kQuarters * kHeads * 4;  // twice: maxima, sums
  static constexpr int kSharedBytes = kQueryBytes + 2 * kBufferBytes + 2 * kWeightBytes + 2 * kNumberBytes;
};

// The barrier of the four warps of the same heads; 0 is the block's.
__device__ __forceinline__ void wait_for_heads(int head_tile) {
  asm volatile("bar.sync %0, %1;" ::"r"(head_tile + 1), "n"(kQuarters * kWarp) : "memory");
}

__device__ __forceinline__ void store_pair(uint32_t address, uint32_t pair) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}

// The rows of a token.
struct TokenRows {
  const CompressedArgs& args;
  SequenceRun run;
  const int32_t* chosen;  // null: all entries
  int position, window, count;

  __device__ __forceinline__ TokenRows(const CompressedArgs& all, const CompressedGroup& group, int place) : args(all) {
    const int token = static_cast<int>(group.first) + place;
    run = run_of_token(args, token);
    position = static_cast<int>(args.position[token]);
    window = min(args.layer.window, position + 1);
    count = args.layer.attended(position + 1);
    chosen =
        chooses(args.layer, position) ? group.chosen + static_cast<int64_t>(place) * args.layer.index_top_k : nullptr;
  }
  __device__ __forceinline__ const bf16* at(int row) const {
    const CompressedLayerView& layer = args.layer;
    if (row >= window) {
      const int i = row - window;
      return entry_row(layer, run.sequence, chosen != nullptr ? chosen[i] : i);
    }
    const int t = position - window + 1 + row, own = t - static_cast<int>(run.position);
    return own >= 0 ? args.fresh + static_cast<int64_t>(run.token + own) * layer.head_dim
                    : ring_row(layer, run.sequence, t);
  }
};

// Rows [first, first + kTileRows), zeros past the last.
template <class F>
__device__ __forceinline__ void copy_tile(const TokenRows& rows, int first, uint32_t to) {
  constexpr int kTogether = F::kCopies < 4 ? F::kCopies : 4;  // whose choices are read together; 8 spill registers
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int begin = 0; begin < F::kCopies; begin += kTogether) {
    const bf16* from[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = first + (thread + (begin + i) * kThreads) / F::kChunks;
      from[i] = row < rows.count ? rows.at(row) : nullptr;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int index = thread + (begin + i) * kThreads, row = index / F::kChunks, part = index % F::kChunks;
      const bool there = from[i] != nullptr && part * 8 < rows.args.layer.head_dim;
      copy_async_16(row_chunk<F::kDim>(to, row, part), there ? from[i] + part * 8 : rows.args.fresh, there);
    }
  }
  commit_copies();
}

// Heads from first_head on as bf16, which they are; zeros past the last.
template <class F>
__device__ __forceinline__ void load_queries(const CompressedArgs& args, int64_t token, int first_head, uint32_t to) {
  const int dim = args.layer.head_dim;
#pragma unroll 4
  for (int index = static_cast<int>(threadIdx.x); index < kHeads * F::kChunks; index += kThreads) {
    const int head = index / F::kChunks, part = index % F::kChunks;
    uint4 packed = make_uint4(0u, 0u, 0u, 0u);
    if (first_head + head < args.heads && part * 8 < dim) {
      const auto* q =
          reinterpret_cast<const float4*>(args.q + token * args.q_stride + (first_head + head) * dim + part * 8);
      const float4 low = q[0], high = q[1];
      packed = make_uint4(bf16_pair(low.x, low.y), bf16_pair(low.z, low.w), bf16_pair(high.x, high.y),
                          bf16_pair(high.z, high.w));
    }
    store_shared(row_chunk<F::kDim>(to, head, part), packed);
  }
}

// A warp's part: 16 heads, of which thread l has l / 4 and l / 4 + 8.
template <class F>
struct Part {
  int head_tile, quarter, lane;
  uint32_t queries, weights, rests;
  float *maxima, *sums;  // (kQuarters, kHeads)
  float out[F::kTiles][4] = {};
  float largest[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {};  // of this thread's rows

  using Scores = float[kScoreTiles][4];

  __device__ __forceinline__ int head(int h) const { return head_tile * 16 + lane / 4 + h * 8; }

  __device__ __forceinline__ void score(uint32_t rows, Scores& scores) const {
#pragma unroll 8
    for (int step = 0; step < F::kDim / 16; ++step) {
      uint32_t q[4], k[4];
      load_matrices(q, row_chunk<F::kDim>(queries, head_tile * 16 + lane % 16, step * 2 + lane / 16));
      load_matrices(
          k, row_chunk<F::kDim>(rows, quarter * kQuarterRows + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
      multiply_add(scores[0], q, k[0], k[1]);
      multiply_add(scores[1], q, k[2], k[3]);
    }
  }

  // Of `left` rows of the tile the others are not there.
  __device__ __forceinline__ void mask(Scores& scores, int left) const {
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (quarter * kQuarterRows + n * 8 + lane % 4 * 2 + i % 2 >= left) scores[n][i] = kMinusInfinity;
      }
    }
  }

  // Scores to weights in shared memory. scale: times log2 e.
  __device__ __forceinline__ void weigh(Scores& scores, float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) m = fmaxf(m, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 1));
      m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 2));
      if (lane % 4 == 0) maxima[quarter * kHeads + head(h)] = m;
    }
    wait_for_heads(head_tile);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = largest[h];
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) m = fmaxf(m, maxima[q * kHeads + head(h)]);
      // From the difference, so that a maximum that stays multiplies by exactly 1.
      const float from = m == kMinusInfinity ? 0.0f : m;
      const float correction = exp2_approximate(f32::mul(f32::sub(largest[h], from), scale));
      const float zero = f32::mul(from, scale);
      largest[h] = m;
      sum[h] = f32::mul(sum[h], correction);
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n) {
        out[n][2 * h] = f32::mul(out[n][2 * h], correction);
        out[n][2 * h + 1] = f32::mul(out[n][2 * h + 1], correction);
      }
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        const float low = exp2_approximate(f32::fma(scores[n][2 * h], scale, -zero));
        const float high = exp2_approximate(f32::fma(scores[n][2 * h + 1], scale, -zero));
        sum[h] = f32::add(f32::add(sum[h], low), high);
        const uint32_t pair = bf16_pair(low, high);
        const uint32_t rest =
            bf16_pair(f32::sub(low, __uint_as_float(pair << 16)), f32::sub(high, __uint_as_float(pair & 0xffff0000u)));
        const int chunk = quarter * kScoreTiles + n;
        store_pair(row_chunk<kTileRows>(weights, head(h), chunk) + lane % 4 * 4, pair);
        store_pair(row_chunk<kTileRows>(rests, head(h), chunk) + lane % 4 * 4, rest);
      }
    }
    wait_for_heads(head_tile);
  }

  __device__ __forceinline__ void add_values(uint32_t rows) {
#pragma unroll
    for (int step = 0; step < kTileRows / 16; ++step) {
      uint32_t p[4], rest[4];
      load_matrices(p, row_chunk<kTileRows>(weights, head_tile * 16 + lane % 16, step * 2 + lane / 16));
      load_matrices(rest, row_chunk<kTileRows>(rests, head_tile * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < F::kTiles; n += 2) {
        uint32_t v[4];
        load_matrices_transposed(v,
                                 row_chunk<F::kDim>(rows, step * 16 + lane % 16, quarter * F::kTiles + n + lane / 16));
        multiply_add(out[n], p, v[0], v[1]);
        multiply_add(out[n + 1], p, v[2], v[3]);
        multiply_add(out[n], rest, v[0], v[1]);
        multiply_add(out[n + 1], rest, v[2], v[3]);
      }
    }
  }

  // Divided by the sums, and turned back: rotate_pairs, of which a thread has both of a pair.
  __device__ __forceinline__ void store(const CompressedArgs& args, int64_t token, int first_head, float scale,
                                        const float* sinks) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float own = sum[h];
      own = f32::add(own, __shfl_xor_sync(kFullWarp, own, 1));
      own = f32::add(own, __shfl_xor_sync(kFullWarp, own, 2));
      if (lane % 4 == 0) sums[quarter * kHeads + head(h)] = own;
    }
    wait_for_heads(head_tile);
    const int dim = args.layer.head_dim, plain = dim - 2 * args.half;
    const PairRotation rotation = rotation_at(args, args.position[token]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int of_token = first_head + head(h);
      if (of_token >= args.heads) continue;
      float all = 0.0f;
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) all = f32::add(all, sums[q * kHeads + head(h)]);
      if (sinks != nullptr) {  // one that is far above all scores leaves 0
        all = f32::add(all, exp2_approximate(f32::fma(sinks[of_token], kLog2e, -f32::mul(largest[h], scale))));
      }
      const float inverse = f32::div(1.0f, all);
      float* to = args.out + token * args.out_stride + static_cast<int64_t>(of_token) * dim;
#pragma unroll
      for (int n = 0; n < F::kTiles; ++n) {
        const int d = quarter * F::kQuarterDims + n * 8 + lane % 4 * 2;
        if (d >= dim) break;
        float a = f32::mul(out[n][2 * h], inverse), b = f32::mul(out[n][2 * h + 1], inverse);
        if (d >= plain) {
          const int j = (d - plain) / 2;
          const float cos = rotation.cos[j], sin = -rotation.sin[j], x = a, y = b;
          a = f32::sub(f32::mul(x, cos), f32::mul(y, sin));
          b = f32::add(f32::mul(y, cos), f32::mul(x, sin));
        }
        *reinterpret_cast<float2*>(to + d) = make_float2(a, b);
      }
    }
  }
};

template <class F>
__global__ __launch_bounds__(kThreads, 1) void attend_kernel(const __grid_constant__ CompressedArgs args,
                                                             const __grid_constant__ CompressedGroup group,
                                                             const CompressedAttendArgs attend) {
  extern __shared__ __align__(1024) unsigned char shared[];
  let_next_start();
  wait_for_previous();
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  // The last tokens of a prompt, which have the most rows, first.
  const int place = static_cast<int>(group.count) - 1 - static_cast<int>(blockIdx.y);
  const int first_head = static_cast<int>(blockIdx.x) * kHeads;
  const int64_t token = group.first + place;
  const TokenRows rows(args, group, place);
  const uint32_t queries = shared_address(shared), buffers = queries + F::kQueryBytes;

  Part<F> part;
  part.head_tile = warp / kQuarters;
  part.quarter = warp % kQuarters;
  part.lane = thread % kWarp;
  part.queries = queries;
  part.weights = buffers + 2 * F::kBufferBytes;
  part.rests = part.weights + F::kWeightBytes;
  part.maxima = reinterpret_cast<float*>(shared + F::kQueryBytes + 2 * F::kBufferBytes + 2 * F::kWeightBytes);
  part.sums = part.maxima + kQuarters * kHeads;
  const bool has_heads = first_head + part.head_tile * 16 < args.heads;

  copy_tile<F>(rows, 0, buffers);
  load_queries<F>(args, token, first_head, queries);
  const float scale = f32::mul(attend.scale, kLog2e);
  for (int first = 0, tile = 0; first < rows.count; first += kTileRows, ++tile) {
    const uint32_t buffer = buffers + static_cast<uint32_t>(tile % 2 * F::kBufferBytes);
    wait_copies<0>();
    __syncthreads();
    if (first + kTileRows < rows.count) {
      copy_tile<F>(rows, first + kTileRows, buffers + static_cast<uint32_t>((tile + 1) % 2 * F::kBufferBytes));
    }
    if (!has_heads) continue;
    typename Part<F>::Scores scores = {};
    part.score(buffer, scores);
    if (first + kTileRows > rows.count) part.mask(scores, rows.count - first);
    part.weigh(scores, scale);
    part.add_values(buffer);
  }
  if (has_heads) part.store(args, token, first_head, scale, attend.sinks);
}

// Calls f.template operator()<Form>() for the head_dim.
template <class Function>
auto with_form(int head_dim, Function&& f) {
  if (head_dim <= 64) return f.template operator()<Form<64>>();
  if (head_dim <= 128) return f.template operator()<Form<128>>();
  if (head_dim <= 256) return f.template operator()<Form<256>>();
  return f.template operator()<Form<512>>();
}

bool aligned_to(const void* pointer, int64_t stride_bytes, uintptr_t bytes) {
  return (reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride_bytes)) % bytes == 0;
}

}  // namespace

bool compressed_attend_takes(const CompressedArgs& args) {
  const CompressedLayerView& layer = args.layer;
  if (layer.head_dim <= 0 || layer.head_dim % 8 != 0 || layer.head_dim > Form<512>::kDim) return false;
  if (!aligned_to(layer.rows, layer.sequence_elements * int64_t{sizeof(bf16)}, 16)) return false;
  if (!aligned_to(args.fresh, 0, 16) || !aligned_to(args.q, args.q_stride * int64_t{sizeof(float)}, 16)) return false;
  if (!aligned_to(args.out, args.out_stride * int64_t{sizeof(float)}, 8)) return false;
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "cannot ask for the device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cannot ask for shared memory");
  return with_form(layer.head_dim, [&]<class F>() { return F::kSharedBytes <= bytes; });
}

void compressed_attend(const CompressedArgs& args, const CompressedGroup& group, const CompressedAttendArgs& attend,
                       StreamHandle stream) {
  FT_CHECK(group.count >= 1 && group.count <= kMaxGridY && attend.scale > 0 && args.layer.window >= 1);
  FT_CHECK(compressed_attend_takes(args) && 2 * args.half <= args.layer.head_dim);
  with_form(args.layer.head_dim, [&]<class F>() {
    const auto kernel = attend_kernel<F>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes),
          "cannot have the shared memory of a prompt's attention to entries");
    const dim3 grid(static_cast<unsigned>(ceil_div(args.heads, kHeads)), static_cast<unsigned>(group.count));
    launch(kernel, grid, dim3(kThreads), F::kSharedBytes, stream, args, group, attend);
  });
}

}  // namespace ft::cuda
