// Attention: kernels/ops/attention.h, and what comes before it (head norm and rotation of kernels/ops/rows.h, rounding,
// appending to the cache).
//
// A block is one token and one query head. Chunks of 64 positions go through three stages that run side by side on
// three neighbouring chunks: eight warps compute scores, half a warp to a position and four positions of each in
// flight; one warp makes a chunk's maximum, exponentials and sums; four warps add values, a thread to a dimension, in
// order of positions. One barrier of the whole block ends a round: racecheck follows it, where it does not a named one.
#include <limits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/attention.h"

namespace ft::cuda {
namespace {

constexpr int kChunk = kAttentionChunk;
constexpr int kHeadDimLimit = kMaxHeadDim;
constexpr int kValueThreads = 128;
constexpr int kScoreThreads = 256;
constexpr int kThreads = kValueThreads + kScoreThreads + kWarp;
constexpr int kStages = 3;
constexpr int kPositionsAtOnce = kScoreThreads / kLanes;  // 16
constexpr int kRounds = kChunk / kPositionsAtOnce;        // 4
constexpr int kDimsPerThread = kHeadDimLimit / kValueThreads;
constexpr int kDimsPerBlock = 2 * kLanes;
static_assert(kChunk == 2 * kWarp && kRounds * kPositionsAtOnce == kChunk);

__device__ __forceinline__ int64_t kv_stride(int kv_heads, int64_t head_dim) { return 2 * kv_heads * head_dim; }

// ---- preparation

constexpr int kHeadsPerBlock = 4;

// One warp, one head in shared memory: norm (when w is not null), then rotation.
__device__ void norm_and_rotate(float* x, const AttentionPrepareArgs& args, const float* w, int64_t position) {
  const auto lane = static_cast<int>(threadIdx.x);
  const auto head_dim = static_cast<int>(args.head_dim);
  const auto half = static_cast<int>(args.rotary_half);
  if (w != nullptr) {
    float lane_sum = 0.0f;
    for (int d = lane; lane < kLanes && d < head_dim; d += kLanes) lane_sum = f32::fma(x[d], x[d], lane_sum);
    const float sum = __shfl_sync(kFullWarp, f32::tree_sum(lane_sum), 0);
    const float mean = f32::div(sum, static_cast<float>(head_dim));
    const float r = f32::div(1.0f, f32::sqrt(f32::add(mean, args.norm_eps)));
    for (int d = lane; d < head_dim; d += kWarp) x[d] = f32::mul(f32::mul(x[d], r), w[d]);
    __syncwarp();
  }
  const float* cos = args.cos + position * half;
  const float* sin = args.sin + position * half;
  for (int j = lane; j < half; j += kWarp) {
    const float a = x[j];
    const float b = x[j + half];
    x[j] = f32::fma(a, cos[j], -f32::mul(b, sin[j]));
    x[j + half] = f32::fma(b, cos[j], f32::mul(a, sin[j]));
  }
  __syncwarp();
}

// A warp is a unit: unit < heads a query head, else a key head with its value.
__global__ __launch_bounds__(kWarp* kHeadsPerBlock) void prepare_kernel(const AttentionPrepareArgs args) {
  __shared__ float heads[kHeadsPerBlock][kHeadDimLimit];
  const auto lane = static_cast<int>(threadIdx.x);
  const int unit = static_cast<int>(blockIdx.x) * kHeadsPerBlock + static_cast<int>(threadIdx.y);
  if (unit >= args.heads + args.kv_heads) return;
  const int64_t token = blockIdx.y;
  const int64_t position = args.position[token];
  const auto head_dim = static_cast<int>(args.head_dim);
  const bool query = unit < args.heads;
  const int64_t offset = (query ? unit : unit - args.heads) * args.head_dim;
  float* q = args.q + token * args.q_stride + offset;
  const float* from = query ? q : args.k + token * args.kv_stride + offset;
  float* x = heads[threadIdx.y];
  for (int d = lane; d < head_dim; d += kWarp) x[d] = from[d];
  __syncwarp();
  norm_and_rotate(x, args, query ? args.q_norm : args.k_norm, position);
  if (query) {
    for (int d = lane; d < head_dim; d += kWarp) q[d] = low_bf16(bf16_bits(x[d]));
    return;
  }
  const float* value = args.v + token * args.kv_stride + offset;
  bf16* keys = args.kv.data +
               (args.sequence[token] * args.kv.positions + position) * kv_stride(args.kv_heads, args.head_dim) + offset;
  bf16* values = keys + args.kv_heads * args.head_dim;
  for (int d = lane; d < head_dim; d += kWarp) {
    keys[d].bits = static_cast<uint16_t>(bf16_bits(x[d]));
    values[d].bits = static_cast<uint16_t>(bf16_bits(value[d]));
  }
}

// ---- attention

// What the stages hand over: a stage works on its own of the three.
struct Chunk {
  float e[kChunk];  // scores, then exponentials
  float correction;
};

struct Walk {
  const bf16* keys = nullptr;
  const bf16* values = nullptr;
  int64_t stride = 0;
  int64_t begin = 0, length = 0;  // visible positions
  int head_dim = 0;
};

// Dimensions d and d + 1 of a row, +0 past head_dim. kPairs: rows are aligned for pairs and head_dim is even.
template <bool kPairs>
__device__ __forceinline__ uint32_t load_pair(const bf16* row, int d, int head_dim) {
  if (d >= head_dim) return 0u;
  if constexpr (kPairs) {
    return *reinterpret_cast<const uint32_t*>(row + d);
  } else {
    const uint32_t odd = d + 1 < head_dim ? row[d + 1].bits : 0u;
    return row[d].bits | odd << 16;
  }
}

// Scores of the chunk's positions, kPositionsAtOnce at a time, by the score threads. q is in shared memory, zero past
// head_dim up to whole blocks.
template <bool kPairs>
__device__ __forceinline__ void score_chunk(const Walk& walk, int64_t chunk, const float* q, float scale, int thread,
                                            float* scores) {
  const int lane = thread % kLanes;
  const int first = thread / kLanes;
  float sums[kRounds] = {};
#pragma unroll 4
  for (int d = 2 * lane; d - 2 * lane < walk.head_dim; d += kDimsPerBlock) {
    uint32_t pairs[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int64_t t = chunk + first + i * kPositionsAtOnce;
      const bool visible = t >= walk.begin && t < walk.length;
      pairs[i] = visible ? load_pair<kPairs>(walk.keys + t * walk.stride, d, walk.head_dim) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      sums[i] = f32::fma(q[d + 1], high_bf16(pairs[i]), sums[i]);
      sums[i] = f32::fma(q[d], low_bf16(pairs[i]), sums[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const float score = f32::mul(f32::tree_sum(sums[i]), scale);
    if (lane == 0) scores[first + i * kPositionsAtOnce] = score;
  }
}

// Running maximum and sum of a head; the same in all lanes of the warp that keeps them.
struct Softmax {
  float m = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  // One warp: scores to exponentials. Two positions a thread; lane l < 16 then adds e of t mod 16 == l in order of t.
  __device__ __forceinline__ void take(const Walk& walk, int64_t chunk, int lane, Chunk& out) {
    float e[2];
    bool visible[2];
    float larger = m;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = chunk + lane + i * kWarp;
      visible[i] = t >= walk.begin && t < walk.length;
      e[i] = out.e[lane + i * kWarp];
      if (visible[i]) larger = f32::max(e[i], larger);
    }
#pragma unroll
    for (int width = kWarp / 2; width >= 1; width /= 2) {
      larger = f32::max(__shfl_xor_sync(kFullWarp, larger, width), larger);
    }
    const float c = f32::exp(f32::sub(m, larger));
    m = larger;
#pragma unroll
    for (int i = 0; i < 2; ++i) e[i] = visible[i] ? f32::exp(f32::sub(e[i], m)) : 0.0f;
    // Positions that are not visible add +0 to sums that are never -0. Lane l has t = l and l + 32, lane l + 16 the
    // others of the same sum.
    float lane_sum = f32::add(0.0f, e[0]);
    lane_sum = f32::add(lane_sum, __shfl_down_sync(kFullWarp, e[0], kLanes));
    lane_sum = f32::add(lane_sum, e[1]);
    lane_sum = f32::add(lane_sum, __shfl_down_sync(kFullWarp, e[1], kLanes));
    const float chunk_sum = __shfl_sync(kFullWarp, f32::tree_sum(lane_sum), 0);
    sum = f32::fma(sum, c, chunk_sum);
#pragma unroll
    for (int i = 0; i < 2; ++i) out.e[lane + i * kWarp] = e[i];
    if (lane == 0) out.correction = c;
  }
};

// out[d] = out[d] * correction, then the chunk's visible values in order. Loads of kLoads positions are in flight.
template <int kDims>
__device__ __forceinline__ void add_values(const Walk& walk, int64_t chunk, const Chunk& in, int thread,
                                           float (&out)[kDims]) {
  constexpr int kLoads = 32 / kDims;
  const int first = chunk < walk.begin ? static_cast<int>(walk.begin - chunk) : 0;
  const int last = walk.length - chunk < kChunk ? static_cast<int>(walk.length - chunk) : kChunk;
  const bf16* row = walk.values + chunk * walk.stride + thread;
#pragma unroll
  for (int i = 0; i < kDims; ++i) out[i] = f32::mul(out[i], in.correction);
  for (int t = first; t < last; t += kLoads) {
    uint16_t v[kLoads][kDims];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const bool there = t + n < last && thread + i * kValueThreads < walk.head_dim;
        v[n][i] = there ? row[(t + n) * walk.stride + i * kValueThreads].bits : uint16_t{0};
      }
    }
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      if (t + n >= last) break;
#pragma unroll
      for (int i = 0; i < kDims; ++i) out[i] = f32::fma(in.e[t + n], low_bf16(v[n][i]), out[i]);
    }
  }
}

__device__ __forceinline__ Walk walk_of(const AttentionArgs& args, int64_t token, int head) {
  const int kv_head = head / (args.heads / args.kv_heads);
  Walk walk;
  walk.stride = kv_stride(args.kv_heads, args.head_dim);
  walk.keys = args.kv.data + args.sequence[token] * args.kv.positions * walk.stride + kv_head * args.head_dim;
  walk.values = walk.keys + args.kv_heads * args.head_dim;
  walk.length = args.position[token] + 1;
  walk.begin = args.window > 0 && walk.length > args.window ? walk.length - args.window : 0;
  walk.head_dim = static_cast<int>(args.head_dim);
  return walk;
}

// kDims: dimensions of a value thread, ceil(head_dim / kValueThreads).
template <int kDims, bool kPairs>
__global__ __launch_bounds__(kThreads) void attention_kernel(const AttentionArgs args) {
  __shared__ float q[kHeadDimLimit];
  __shared__ Chunk chunks[kStages];
  __shared__ float total;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto head = static_cast<int>(blockIdx.x);
  const int64_t token = blockIdx.y;
  const Walk walk = walk_of(args, token, head);
  const float* q_row = args.q + token * args.q_stride + head * args.head_dim;
  for (int d = thread; d < kHeadDimLimit; d += kThreads) {
    q[d] = d < walk.head_dim ? __uint_as_float(__float_as_uint(q_row[d]) & 0xffff0000u) : 0.0f;
  }
  __syncthreads();

  const int64_t first = walk.begin / kChunk;
  const int64_t count = ceil_div(walk.length, kChunk) - first;
  const bool softmaxes = thread >= kValueThreads + kScoreThreads;  // the last warp
  Softmax softmax;
  float out[kDims] = {};
  for (int64_t i = 0; i < count + kStages - 1; ++i) {
    if (softmaxes) {
      if (i >= 1 && i <= count) softmax.take(walk, (first + i - 1) * kChunk, thread % kWarp, chunks[(i - 1) % kStages]);
    } else if (thread >= kValueThreads) {
      if (i < count) {
        score_chunk<kPairs>(walk, (first + i) * kChunk, q, args.scale, thread - kValueThreads, chunks[i % kStages].e);
      }
    } else if (i >= 2) {
      add_values<kDims>(walk, (first + i - 2) * kChunk, chunks[(i - 2) % kStages], thread, out);
    }
    __syncthreads();
  }
  if (softmaxes && thread % kWarp == 0) total = softmax.sum;
  __syncthreads();
  if (thread >= kValueThreads) return;
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const int d = thread + i * kValueThreads;
    if (d >= walk.head_dim) break;
    args.out[token * args.out_stride + head * args.head_dim + d] = count > 0 ? f32::div(out[i], total) : 0.0f;
  }
}

template <int kDims>
void launch(const AttentionArgs& args, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.tokens));
  const bool pairs = args.head_dim % 2 == 0 && reinterpret_cast<uintptr_t>(args.kv.data) % 4 == 0;
  if (pairs) {
    attention_kernel<kDims, true><<<grid, kThreads, 0, stream>>>(args);
  } else {
    attention_kernel<kDims, false><<<grid, kThreads, 0, stream>>>(args);
  }
  require_launched("attention");
}

}  // namespace

void attention_prepare(const AttentionPrepareArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.tokens <= kMaxGridY && 1 <= args.head_dim && args.head_dim <= kMaxHeadDim);
  FT_CHECK(2 * args.rotary_half <= args.head_dim);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.heads + args.kv_heads, kHeadsPerBlock)),
                  static_cast<unsigned>(args.tokens));
  prepare_kernel<<<grid, dim3(kWarp, kHeadsPerBlock), 0, stream>>>(args);
  require_launched("attention_prepare");
}

void attention(const AttentionArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.tokens <= kMaxGridY && 1 <= args.head_dim && args.head_dim <= kMaxHeadDim);
  FT_CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0);
  switch (ceil_div(args.head_dim, kValueThreads)) {
    case 1:
      return launch<1>(args, stream);
    case 2:
      return launch<2>(args, stream);
    default:
      static_assert(kDimsPerThread == 4);
      return launch<4>(args, stream);
  }
}

}  // namespace ft::cuda
